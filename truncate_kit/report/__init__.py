"""Views of results, by subject; `chart` draws figures, `page` writes HTML, `card` model cards."""
