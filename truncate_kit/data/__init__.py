"""Files and hub sets in, typed pairs and texts out. Importing this imports neither torch nor datasets."""
