"""Names of models, data and tasks that would be HTML, Markdown, formulas or commands of a terminal."""

import json
import re
import shutil

import pytest

from tests.support.commands import run_both
from tests.support.files import pairs_file

# A closing tag has a slash, which no name of a file has; tests/report has those.
EVIL = (
    "<img src=x onerror=alert(1)>$\\frac{$ [x](javascript:y) | `a` \x1b]0;mine\x07 \u202edrow\u2028 **b** {{7*7}} <!--"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


@pytest.fixture(scope="module")
def evil(tiny_folder, tmp_path_factory):
    """A folder with a model of such a name, pairs, and a study whose parts are called so."""
    home = tmp_path_factory.mktemp("evil")
    shutil.copytree(tiny_folder("bert"), home / EVIL)
    shutil.copy(pairs_file(home / "p.csv", "score", range(6)), home / f"{EVIL}.csv")
    return home


def check_said(*streams):
    assert [ascii(said) for said in streams if _CONTROLS.search(said)] == []


def test_what_is_said_and_written_of_a_model(evil, capfd, tmp_path, drawn):
    arguments = ("--data", evil / f"{EVIL}.csv", "--scale", "0,5", "--workspace", tmp_path)
    check_said(*run_both(capfd, "analyze", evil / EVIL, "--reference", "none", *arguments))
    check_said(*run_both(capfd, "cut", evil / EVIL, "--layer", 2, "--workspace", tmp_path))
    check_said(*run_both(capfd, "report", tmp_path), *run_both(capfd, "status", "--workspace", tmp_path))
    page, card = ((tmp_path / name).read_text() for name in ("report.html", "lean/README.md"))
    assert "<img src=x" not in page
    check_said(page)
    body = card.partition("\n---\n")[2]
    assert "\\<img src=x" in body
    assert not re.search(r"(?<!\\)<", body)
    check_said(card)


def test_json_has_them_escaped_and_reads_the_same(capfd):
    from truncate_kit.core.workspace import Source
    from truncate_kit_cli.console import print_json

    name = "a\x1b[2J\u202eb\x9b\u2028größer \udcff"
    print_json(Source(name=name))
    said = capfd.readouterr().out
    assert said.replace("\n", "").isprintable()
    assert "größer" in said
    assert json.loads(said)["name"] == name
