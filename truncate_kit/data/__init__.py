"""Read pairs and texts from files and the hub. Imports neither torch nor datasets."""
