"""What a model is trained on before TMFT: word similarity at the same layer, or masked words of raw text."""
