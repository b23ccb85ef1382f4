"""Figures are what is tested here."""

import pytest


@pytest.fixture(autouse=True)
def _drawn(drawn: None) -> None:
    """See there."""
