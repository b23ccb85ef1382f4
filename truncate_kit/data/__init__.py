"""Read pairs and texts from files and the hub, without importing torch or datasets."""
