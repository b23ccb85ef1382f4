"""Tables for the terminal and figures for files."""
