"""The methods: TMFT, distillation, contrast, frozen heads, BERT-LC, priors, and studies of them."""
