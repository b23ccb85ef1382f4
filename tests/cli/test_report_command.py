"""`truncate-kit report` on the command line."""

import json

import pytest

from tests.support.commands import run, run_both
from tests.support.made_results import write_run
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder


@pytest.fixture(scope="module")
def made(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    save_encoder(load_encoder(tiny_folder("bert")), folder / "lean")
    return write_run(folder / "run", folder / "lean")


def test_the_page_and_what_would_add_to_it_are_named(made, capfd):
    said = run(capfd, "report", made).splitlines()
    assert f"Layers were not analyzed. This adds it: truncate-kit analyze 'mini <b>' --workspace {made}" in said
    assert said[-1].startswith(f"Page: {made / 'report.html'} (")
    assert (made / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_json_is_all_that_is_printed(made, tmp_path, capfd):
    out, err = run_both(capfd, "report", made, "--out", tmp_path / "page.html", "--json")
    found, page = json.loads(out), tmp_path / "page.html"
    assert err == ""
    assert (found["page"], found["file_bytes"]) == (str(page), page.stat().st_size)
    assert len(found["recommendations"]) == len(found["grounds"]) == 1


def test_it_opens_in_the_browser_that_the_system_names(made, tmp_path, capfd, monkeypatch):
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {tmp_path / "opened"}\n')
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{program} %s")
    run(capfd, "report", made, "--open")
    assert (tmp_path / "opened").read_text().strip() == (made / "report.html").as_uri()
