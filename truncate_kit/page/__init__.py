"""One self-contained HTML file that tells what a workspace holds."""
