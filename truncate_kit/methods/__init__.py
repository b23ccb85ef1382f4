"""The methods: TMFT, distillation, contrast, frozen heads, BERT-LC, priors, studies."""
