"""The same command twice: the same bytes of models, vectors, graphs, figures and JSON, but for times."""

import pytest

from tests.support.commands import run_both
from tests.support.writing import COMMANDS, TIMED, left_in, make_inputs, words_of

LESS = {
    "finetune": ("--layer", 1, "--seeds", 1, "--epochs", 2),
    "contrast": ("--seeds", 2),
    "freeze": ("--seeds", 1, "--epochs", 2),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    place = tmp_path_factory.mktemp("twice")
    make_inputs(place, texts=600)
    return place


# What bench finds are times.
@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"bench", "report"}))
def test_a_command_leaves_the_same(command, home, capfd, monkeypatch):
    for name in ("ROUNDS", "MOST_ROUNDS"):  # of timing
        monkeypatch.setattr(f"truncate_kit.methods.distill.frontier.{name}", 1)
    found = []
    for turn in ("one", "other"):
        out = home / turn / command
        out.mkdir(parents=True)
        run_both(capfd, *words_of(command, home, out, home), *LESS.get(command, ()))
        found.append({name: digest for name, digest in left_in(out).items() if name not in TIMED})
    assert found[0] == found[1]
    assert found[0]


def test_a_page_of_the_same_results_is_the_same(home, capfd, drawn):
    run_both(capfd, *words_of("finetune", home, home / "shown", home), "--layer", 1, "--seeds", 1, "--epochs", 1)
    pages = [home / "page.html", home / "other.html"]
    for page in pages:
        run_both(capfd, "report", home / "shown", "--out", page)
    assert pages[0].read_bytes() == pages[1].read_bytes()
