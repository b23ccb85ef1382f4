"""TMFT at every layer of real models, and what each strategy would have chosen."""
