"""Names, streams and files as a hostile or careless surrounding hands them over: one clear line, nothing waits."""

import io
import json
import sys

from truncate_kit_cli import console


def test_characters_that_a_terminal_lacks_are_written_another_way(monkeypatch, tmp_path):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console.prepare_streams()
    print("3 × 4", flush=True)
    from truncate_kit.core.workspace import DataSource
    from truncate_kit_cli.console import print_json

    print_json(DataSource(name="größer × kleiner"))
    sys.stdout.flush()
    said = raw.getvalue().decode("ascii")
    assert said.startswith("3 \\xd7 4\n")
    assert json.loads(said.partition("\n")[2])["name"] == "größer × kleiner"
