"""Numbers with their nouns, as users read them."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """The number with its noun: "1 list", "2,758 texts". many: None adds an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
