"""The grammar behind the bundled sentence pairs."""
