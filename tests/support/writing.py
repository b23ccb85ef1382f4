"""Every command that writes, called on tiny inputs, and what it leaves: all of it but the times that it took."""

import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

from tests.support.families import WORDS, make_tiny

_SCALE = "--scale 0,5"
_QUICK = "--quick --backends torch-fp32 --lengths 16 --batch-sizes 1 --repeats 2"
COMMANDS = {
    "finetune": f"{{home}}/m --data {{home}}/p.csv {_SCALE} --layer all --seeds 2 --epochs 3 --batch-size 16 "
    "--learning-rate 0.003",
    "distill": "{home}/m --texts {home}/t.txt --blocks 1",
    "encode": "{home}/many.txt --model {home}/m --out {out}/v.npy",
    "study": "{home}/s.toml",
    "contrast": f"{{home}}/m --data {{home}}/p.csv {_SCALE} --triplets {{home}}/t.jsonl --epochs 2 --batch-size 16",
    "freeze": f"{{home}}/m --data {{home}}/p.csv {_SCALE} --texts {{home}}/t.txt --seeds 2 --epochs 6",
    "combine": f"{{home}}/m --data {{home}}/p.csv {_SCALE}",
    "analyze": "{home}/m --texts {home}/t.txt --reference none",
    "cut": "{home}/m --layer 2",
    "export": f"{{home}}/m --onnx --data {{home}}/p.csv {_SCALE}",
    "bench": f"{{home}}/m --full {{home}}/m --data {{home}}/p.csv {_SCALE} {_QUICK}",
    "evaluate": "{home}/m --suite sts --data {home}/sts",
    "report": "{made}/finetune --out {out}/report.html",
}
"""Arguments by command; `{home}` has the inputs, `{out}` is the place for the results, `{made}` what others left."""

TIMED = {"bench.json", "bench.png", "frontier.png", "report.html"}
"""Files that show times: the same twice in what they hold, not in their bytes."""

_TIMES = re.compile(r"seconds|per_second|speedup_interval|rate$|dominated|bytes_now|peak_bytes")
_SPEED = rb"[\d.]+ (\\?\[[\d., ]+\\?\] )?times the texts a second"  # in distill's model cards, which escape brackets
_SEALS = {"digest", "crc32"}  # of what holds times, too


def make_inputs(home: Path, texts: int = 30_000) -> None:
    """A model of three blocks, and data of every kind that the commands want. texts: number of those to encode."""
    draw = random.Random(7)

    def text() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(3, 9)))

    make_tiny("bert", home / "m")
    pairs = "sentence1,sentence2,score\n" + "".join(f"{text()},{text()},{n % 6}\n" for n in range(120))
    (home / "p.csv").write_text(pairs)
    (home / "t.txt").write_text("".join(f"{text()} {n}\n" for n in range(300)))
    (home / "many.txt").write_text("".join(f"{text()}\n" for n in range(texts)))
    rows = [{"anchor": text(), "positive": text(), "negative": text()} for _ in range(120)]
    (home / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "sts").mkdir()
    for name in ("sts12", "sts13"):
        (home / "sts" / f"{name}.csv").write_text(pairs)
    training = "[training]\nepochs = 3\nbatch_size = 16\nlearning_rate = 0.003\n"
    model, task = f'[[models]]\nmodel = "{home / "m"}"\n', f'[[tasks]]\ndata = "{home / "p.csv"}"\nscale = [0, 5]\n'
    (home / "s.toml").write_text(f'seeds = 2\nlayers = "1..2"\n{training}{model}{task}')


def words_of(command: str, home: Path, out: Path, made: Path) -> list[str]:
    """The command line that leaves its results in `out`."""
    words = [word.format(home=home, out=out, made=made) for word in COMMANDS[command].split()]
    return [command, *words, *([] if command == "report" else ["--workspace", str(out)])]


def left_in(folder: Path) -> dict[str, str]:
    """SHA-256 by place of every file that a command left, times and the folder's own name taken out."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(folder)): hashlib.sha256(_timeless(file, folder)).hexdigest() for file in files}


def _timeless(file: Path, folder: Path) -> bytes:
    content = re.sub(_SPEED, b"as fast", file.read_bytes().replace(str(folder).encode(), b"OUT"))
    if file.suffix == ".json":
        return json.dumps(_without_times(json.loads(content)), indent=1).encode()
    if file.suffix == ".jsonl":
        return b"\n".join(json.dumps(_without_times(json.loads(line))).encode() for line in content.splitlines())
    return content


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "a time" if _TIMES.search(key) and not isinstance(item, dict) else _without_times(item)
            for key, item in value.items()
            if key not in _SEALS
        }
    return [_without_times(item) for item in value] if isinstance(value, list) else value
