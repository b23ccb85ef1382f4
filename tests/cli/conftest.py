"""Commands run in an empty folder."""

import functools

import pytest

from tests.support.commands import run_both


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capfd):
    """Run a command that succeeds; return stdout and stderr."""
    return functools.partial(run_both, capfd)
