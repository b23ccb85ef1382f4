"""Commands run in an empty folder."""

import functools

import pytest

from tests.support.commands import ended


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Run a command in an empty folder; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(ended, capfd)
