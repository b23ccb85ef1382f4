"""Views of results, by subject; `chart` draws figures, `page` HTML, `card` model cards."""
