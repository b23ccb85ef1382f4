"""A small study for engines, and the command line that runs it."""

from pathlib import Path

import pytest

from truncate_kit_cli.app import main


def study_file(model: Path, home: Path, *, epochs: int = 20) -> Path:
    """Four layers, two seeds; epochs that take a trial about a second, or less."""
    words = ["cat", "dog", "tree", "mat", "red", "blue", "big", "small"]
    rows = [f"the {a} sat,a {b} ran,{(3 * i + j) % 6}" for i, a in enumerate(words) for j, b in enumerate(words)]
    (home / "pairs.csv").write_text("sentence1,sentence2,score\n" + "\n".join(rows) + "\n")
    (home / "study.toml").write_text(
        f"""
        seeds = 2
        training = {{ epochs = {epochs}, batch_size = 8, learning_rate = 1e-3 }}
        models = [{{ model = "{model}", name = "bert" }}]
        tasks = [{{ data = "pairs.csv", name = "pairs" }}]
        """
    )
    return home / "study.toml"


def run(capfd, *arguments) -> tuple[str, str]:
    """What a command prints on stdout and on stderr."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    printed = capfd.readouterr()
    assert not end.value.code, printed
    return printed
