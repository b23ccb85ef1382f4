"""What a page of a run costs whoever opens it."""
