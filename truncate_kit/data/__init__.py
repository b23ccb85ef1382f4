"""Files and hub sets in, typed pairs and texts out."""
