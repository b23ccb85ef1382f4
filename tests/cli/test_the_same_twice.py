"""The same command twice: the same bytes of models, vectors, graphs, figures and JSON, but for times."""

import hashlib
import json
import random
import re

import pytest

from tests.support.commands import run_both
from tests.support.families import WORDS, make_tiny

PAIRS = "m --data p.csv --scale 0,5"
COMMANDS = {
    "finetune": f"{PAIRS} --layer 1 --seeds 1 --epochs 1 --batch-size 16 --learning-rate 0.003",
    "distill": "m --texts t.txt --blocks 1",
    "encode": "t.txt --model m --out {out}/v.npy",
    "study": "s.toml",
    "contrast": f"{PAIRS} --triplets t.jsonl --epochs 1 --batch-size 16 --seeds 1",
    "freeze": f"{PAIRS} --texts t.txt --seeds 1 --epochs 1",
    "combine": PAIRS,
    "analyze": "m --texts t.txt --reference none",
    "cut": "m --layer 2",
    "export": f"{PAIRS} --onnx",
    "evaluate": "m --suite sts --data sts",
}
TIMES = re.compile(r"seconds|per_second|speedup_interval|rate$|dominated|bytes_now|peak_bytes|^digest$|^crc32$")
SPEED = rb"[^\n]*(texts a second|times as fast| \xc3\x97 \|)[^\n]*"  # lines of speeds in the model cards of distill


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model of three blocks, and data of every kind that the commands want."""
    place, draw = tmp_path_factory.mktemp("twice"), random.Random(7)

    def text() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(3, 9)))

    make_tiny("bert", place / "m")
    pairs = "sentence1,sentence2,score\n" + "".join(f"{text()},{text()},{n % 6}\n" for n in range(48))
    (place / "sts").mkdir()
    for name in ("p", "sts/sts12", "sts/sts13"):
        (place / f"{name}.csv").write_text(pairs)
    (place / "t.txt").write_text("".join(f"{text()} {n}\n" for n in range(220)))
    rows = [{"anchor": text(), "positive": text(), "negative": text()} for _ in range(32)]
    (place / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = "[training]\nepochs = 1\nbatch_size = 16\nlearning_rate = 0.003\n"
    tasks = '[[models]]\nmodel = "m"\n[[tasks]]\ndata = "p.csv"\nscale = [0, 5]\n'
    (place / "s.toml").write_text(f'seeds = 2\nlayers = "1"\n{training}{tasks}')
    return place


def left_in(folder):
    """SHA-256 by place of every file that a command left, times and the folder's own name taken out."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in (".lock", "frontier.png")]
    return {str(file.relative_to(folder)): hashlib.sha256(timeless(file, folder)).hexdigest() for file in files}


def timeless(file, folder):
    content = file.read_bytes().replace(str(folder).encode(), b"OUT")
    if file.suffix == ".md":
        return re.sub(SPEED, b"as fast", content)
    if file.suffix not in (".json", ".jsonl"):
        return content
    documents = [content] if file.suffix == ".json" else content.splitlines()
    return json.dumps([without_times(json.loads(document)) for document in documents]).encode()


def without_times(value):
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if isinstance(item, dict) or not TIMES.search(key)}
        return {key: without_times(item) for key, item in kept.items()}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_leaves_the_same(command, home, capfd, monkeypatch):
    monkeypatch.chdir(home)
    for name in ("ROUNDS", "MOST_ROUNDS"):  # of timing
        monkeypatch.setattr(f"truncate_kit.methods.distill.distilling.{name}", 1)
    found = []
    for turn in ("one", "other"):
        out = home / turn / command
        out.mkdir(parents=True)
        run_both(capfd, command, *COMMANDS[command].format(out=out).split(), "--workspace", out)
        found.append(left_in(out))
    assert found[0] == found[1]
    assert found[0]


def test_a_page_of_the_same_results_is_the_same(home, capfd, drawn, monkeypatch):
    monkeypatch.chdir(home)
    run_both(capfd, "finetune", *COMMANDS["finetune"].split(), "--workspace", "shown")
    for page in ("page.html", "other.html"):
        run_both(capfd, "report", "shown", "--out", page)
    assert (home / "page.html").read_bytes() == (home / "other.html").read_bytes()
