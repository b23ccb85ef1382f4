"""Many models on many tasks at every layer, from one file; tables and figures as the TMFT paper has them."""
