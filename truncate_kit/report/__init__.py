"""Turn results into views; `chart` draws figures, `page` writes HTML, `card` writes model cards."""
