"""Evaluation data and models beside the checkout."""

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"


def shared_part(part: str, beside: Path = SHARED) -> Path:
    """A folder of what lies beside the checkout; the test is skipped where it is missing, and fails in CI."""
    folder = beside / part
    if not folder.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{folder} is missing, and CI must run this test")
        pytest.skip(f"needs {part} of the evaluation data beside the checkout")
    return folder
