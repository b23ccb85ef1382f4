"""The valid inputs that attacks change, and a valid command line for each command on them."""

import contextlib
import io
from pathlib import Path

from tests.support import writing
from tests.support.families import make_tiny
from tests.support.retrieval import retrieval_folder

PAIRS = "--data p.csv --scale 0,5"
VALID = {
    "analyze": "m --texts t.txt --reference none --workspace w",
    "finetune": f"m {PAIRS} --layer 2 --seeds 1 --epochs 1 --workspace w",
    "export": f"m --onnx {PAIRS} --workspace w",
    "bench": f"m --full m {PAIRS} --quick --backends torch-fp32 --lengths 16 --batch-sizes 1 --repeats 2 --workspace w",
    "distill": "m --texts t.txt --blocks 1 --max-texts 100 --workspace w",
    "contrast": f"m {PAIRS} --triplets t.jsonl --seeds 1 --epochs 1 --workspace w",
    "freeze": f"m {PAIRS} --seeds 1 --epochs 1 --workspace w",
    "combine": f"m {PAIRS} --workspace w",
    "cut": "m --layer 2 --workspace w",
    "evaluate": f"m {PAIRS} --workspace w",
    "compare": "m m --data r",
    "encode": "t.txt --model m --out v.npy --workspace w",
    "study": "s.toml --workspace w",
    "report": "done --out report.html",
    "status": "done",
    "doctor": "--runtime torch --device cpu",
}
"""Arguments by command, in a folder that `make_inputs` filled."""


def words_of(command: str, *more: str) -> tuple[str, ...]:
    """A valid command line, and what comes after it."""
    return (command, *VALID[command].split(), *more)


def make_inputs(folder: Path) -> None:
    """Models `m`, `gpt2` and, as a sentence-transformers folder, `st`; data of every kind; a workspace `done`."""
    from truncate_kit.models import load_encoder, save_encoder
    from truncate_kit_cli.app import main

    folder.mkdir()
    writing.make_inputs(folder, texts=300)
    make_tiny("gpt2", folder / "gpt2")
    save_encoder(load_encoder(folder / "m"), folder / "st")
    retrieval_folder(folder / "r")
    training = "[training]\nepochs = 1\nbatch_size = 16\n"
    tables = '[[models]]\nmodel = "m"\n[[tasks]]\ndata = "p.csv"\nscale = [0, 5]\n'
    (folder / "s.toml").write_text(f"seeds = 1\nlayers = [2]\n{training}{tables}")
    done, data = str(folder / "done"), ("--data", str(folder / "p.csv"), "--scale", "0,5")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for words in (
            ("finetune", str(folder / "m"), *data, "--layer", "2", "--seeds", "1", "--epochs", "1"),
            ("export", "--onnx"),
        ):
            try:
                main([*words, "--quiet", "--workspace", done])
            except SystemExit as end:
                if end.code:
                    raise
