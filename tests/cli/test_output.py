"""Tables on terminals of any width."""

import re

import pytest

from tests.support.commands import run_both
from truncate_kit.report.view import Table
from truncate_kit_cli.console import RUN, begin
from truncate_kit_cli.console import table as draw

COLUMNS = ("layer", "parameters", "CKA without outliers", "Spearman")
ROWS = [("0", "1,065,472", "0.974 ± 0.005", "49.60"), ("8 (full model)", "2,651,648", "0.404 ± 0.039", "37.40")]


def table(title, columns, rows, **details):
    draw(Table(title, columns, rows, **details))


def lines_of(capsys):
    """What a table printed, without colours."""
    return re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of a width; how much is said is as it was afterwards."""

    def of(width: int, *, verbose: bool = False) -> None:
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        begin(None, verbose=verbose)

    yield of
    begin(None)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_columns_that_do_not_fit_are_left_out_and_that_is_said(width, capsys, terminal):
    terminal(width)
    columns, rows = [*COLUMNS, *map(str, range(9))], [(*row, *["123,456"] * 9) for row in ROWS]
    table("Layers", columns, rows)
    out = capsys.readouterr().out
    title, *lines = re.sub("\x1b[^m]*m", "", out).splitlines()
    assert title.startswith("Layers")
    assert sum(set(line) == {"─"} for line in lines) == 1  # one table
    assert max(map(len, lines)) <= width
    assert RUN.shortened == (width < 160)


def test_a_long_table_is_thinned_but_keeps_its_ends_and_the_marked_row(capsys, terminal):
    rows = [(str(number), "1.0") for number in range(40)]
    for verbose in (False, True):
        terminal(80, verbose=verbose)
        table("Layers", ("layer", "score"), rows, marked=17)
        shown = [line.split()[0] for line in lines_of(capsys)[3:]]
        assert {"0", "17", "39"} < set(shown)
        assert len(shown) == 40 if verbose else len(shown) < 20


LAYERS = ("layer", "Spearman", "CKA (95 %)", "parameters", "CKA without 3 outliers", "Block Influence", "what it is")
ORIGIN = "google/electra-base-discriminator cut at layer 5 and fine-tuned on the bundled pairs"
LAYER_ROWS = [
    ("5 (drop)", "48.0", "0.952 ± 0.004", "1,065,472", "0.944", "0.084", ORIGIN),
    ("6", "49.6", "0.810 ± 0.012", "1,263,744", "0.797", "–", ""),
]


def test_every_width_has_whole_numbers(capsys, terminal):
    for width in range(27, 161):
        terminal(width)
        table("Layers", LAYERS, LAYER_ROWS)
        lines = lines_of(capsys)
        assert max(len(line.rstrip()) for line in lines) <= width
        row = next(line for line in lines if line.startswith("5 (drop)"))
        numbers = re.findall(r"(?<!\S)[\d.,]+(?: ± [\d.]+)?(?!\S)", row.removeprefix("5 (drop)"))
        assert numbers[:5] == [*LAYER_ROWS[0][1:6]][: len(numbers)], width
        terminal(width, verbose=True)
        table("Layers", COLUMNS, ROWS)
        lines = lines_of(capsys)
        assert all(cell in "\n".join(lines) for row in ROWS for cell in row if len(cell) < width - 14), width


def test_signed_numbers_stand_to_the_right(capsys, terminal):
    terminal(80)
    table("Change", ("layer", "difference", "note"), [("0", "-0.5", "as"), ("1", "+12.25", "before it")])
    shown = [line.rstrip() for line in lines_of(capsys)[3:]]
    assert shown == ["0             -0.5   as", "1           +12.25   before it"]


def test_a_long_text_is_broken_between_words(capsys, terminal):
    terminal(60)
    table("Models", ("one", "other"), [(ORIGIN, "12.5")])
    first = [line[:54].strip() for line in lines_of(capsys)[3:]]
    assert " ".join(first).replace("12.5", "").split() == ORIGIN.split()


def test_a_hidden_table_is_told_of_and_shown_when_asked(capsys, terminal):
    terminal(80)
    table("Details", COLUMNS, ROWS, detail=True)
    assert (capsys.readouterr().out, RUN.shortened) == ("", True)
    terminal(80, verbose=True)
    table("Details", COLUMNS, ROWS, detail=True)
    assert "Details" in capsys.readouterr().out


def test_quiet_says_results_alone(capfd, tmp_path):
    asked = "cut", "mini-bert", "--layer", "1", "--workspace", str(tmp_path / "w")
    loud = run_both(capfd, *asked)
    assert "Saved" in loud[0]
    assert run_both(capfd, *asked, "--quiet")[1] == ""
    assert run_both(capfd, *asked, "-q")[0] == loud[0]
