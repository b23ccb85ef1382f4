"""How soon the program answers."""
