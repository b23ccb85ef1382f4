"""The evaluations of the neighbouring papers: semantic similarity, transfer to classification, retrieval."""
