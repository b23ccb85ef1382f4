"""How the bundled miniatures are pretrained, and what that does to their layers."""
