"""Run every command of README and guides, in the order of the pages, in a folder with the files they name.

MODEL, pairs.csv, FOLDER and hub names exist there under these names; options that shorten training and measuring are
added, and a command runs once. Uploads go to a hub on this machine. A block after `<!-- without THING: WORDS -->` needs
a GPU, a cluster or the hub: each command runs or is refused with these words, and at least one is refused. A block
after `<!-- not run: REASON -->` is only parsed (tests/benchmarks/test_readmes.py).
"""

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from tests.support.commands import check_json
from tests.support.fake_hub import logged_in
from tests.support.families import TINY_CONFIGS
from tests.support.files import NOUNS, pairs_file, words_folder
from tests.support.retrieval import retrieval_folder
from truncate_kit.data.pairs import load_pairs
from truncate_kit.methods.distill import distilling as speed
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep_words
from truncate_kit.training import settings as configuration
from truncate_kit_cli.app import command_of, main

ROOT = Path(__file__).resolve().parents[2]
GUIDES = "first-run own-data cpu gpu no-labels index-kept which-layer serve more-training measure clusters study python"
PAGES = ["README.md", *(f"docs/guides/{name}.md" for name in GUIDES.split()), "docs/json.md"]
MARKS = ("not run", "without the hub", "without a GPU", "without a cluster", "refused where the CPU's fp16 strays")
BLOCK = re.compile(rf"(?:<!-- ({'|'.join(MARKS)}): ([^\n]+) -->\n)?```sh\n(.*?)```", re.DOTALL)
INSTALL = re.compile(r"pip install 'truncate-kit\[\w+\]'")
PRINTED = re.compile(r"printf '([^']+)' \| ")
LAUNCHED = re.compile(r"torchrun [^$]+\$\(which truncate-kit\)")  # a process of its own says the same
COMPLETION = "truncate-kit --install-completion"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
SHORTER = {"--epochs": 1, "--prior-epochs": 1, "--seeds": 1, "--repeats": 1, "--splits": 1, "--threads": 1}
SHORTER |= {"--lengths": 4}
# How fast a tiny model gets depends on what else the machine does; compilers take half a minute (tests/bench has them).
FIXED = {"--seeds": 1, "--workers": 1, "--speedup": 1.01, "--backends": "torch-fp32,onnx-fp32"}


def make_masked(folder):
    """Save a random masked language model of four narrow blocks with word pieces of the bundled miniature."""
    torch.manual_seed(0)
    few = load_pairs("bundled").first(40).train.texts()  # what loads all 8,192 pieces takes six times as long
    tokenizer = keep_words(load_encoder("mini-bert"), few).tokenizer
    tokenizer.model_max_length = 36  # the length of other tiny models, to share their traces
    config = TINY_CONFIGS["bert"].to_dict() | {"num_hidden_layers": 4, "vocab_size": len(tokenizer)}
    model = BertForMaskedLM(BertConfig(**config))
    for name, parameter in model.named_parameters():
        # Spread texts apart, but keep the last blocks weak: distillation then takes two blocks, and one trace.
        if not re.search(r"layer\.[23]\.", name):
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def blocks(page):
    """Yield the mark of each block, its words, and its commands."""
    for kind, words, block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        yield kind, words, [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Make the folder with all files that guides name."""
    home = tmp_path_factory.mktemp("files")
    model = make_masked(home / "MODEL")
    for name in ("REFERENCE", "bert-base-cased", "google/electra-base-discriminator"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).symlink_to(model)
    (home / "sentence-transformers").mkdir()
    (home / "sentence-transformers/all-MiniLM-L6-v2").symlink_to(model)
    pairs_file(home / "pairs.csv", "score", (0, 1, 2, 3, 4, 5))
    lines = (home / "pairs.csv").read_text().replace(",0\n", ",1\n").splitlines()[1:]
    (home / "mine.csv").write_text("\n".join(["left,right,grade", *lines]) + "\n")
    for split in ("train", "dev", "test"):
        pairs_file(home / "stsb" / f"{split}.csv", "score", (0, 1, 2, 3, 4, 5))
    texts = [f"{one} {other} {third}" for one in ("the", "a", "on", "under") for other in NOUNS for third in NOUNS]
    # What models adapt to, and what contrasts learn from, need fewer than a distillation.
    for name, some in (("texts", texts), ("sentences", texts), ("domain", texts[::4]), ("raw", texts[::4])):
        (home / f"{name}.txt").write_text("\n".join(some) + "\n")
    (home / "queries.txt").write_text("\n".join(texts[:20]) + "\n")
    rows = [f"the {a} sat,a {a} sat,the {b} ran" for a in NOUNS for b in NOUNS if a != b]
    (home / "nli.csv").write_text("anchor,positive,negative\n" + "\n".join(rows) + "\n")
    searched = retrieval_folder(home / "FOLDER")
    with (searched / "queries.jsonl").open("a") as queries, (searched / "qrels/test.tsv").open("a") as answers:
        for number in range(22):  # to learn from queries, choose and report by them wants forty
            queries.write(f'{{"_id": "more{number}", "text": "the {NOUNS[number % 8]} {number}"}}\n')
            answers.write(f"more{number}\td{number}\t1\n")
    pairs_file(searched / "stsb.csv", "score", (0, 1, 2, 3, 4, 5))
    (searched / "mr.csv").write_text("text,label\n" + "\n".join(f"{text},{n % 2}" for n, text in enumerate(texts[:60])))
    words_folder(home / "WORDS")
    for name, there in (("LEAN", "exported/lean"), ("FULL", "exported/full"), ("A", "exported"), ("B", "taught")):
        (home / name).symlink_to(there)
    (home / "study.toml").write_text(
        'seeds = 1\nlayers = "1"\ntraining = { epochs = 1 }\n'
        'models = [{ model = "MODEL", name = "model" }]\ntasks = [{ data = "pairs.csv", name = "pairs" }]\n'
    )
    return home


def shortened(words):
    """Add the options of `SHORTER` that the command has, and set the values of `FIXED`."""
    command = command_of(words[0])
    known = {option for parameter in command.params for option in parameter.opts}
    words = [str(FIXED.get(before, word)) for before, word in zip(["", *words], words, strict=False)]
    known -= set() if "--prior-texts" in words else {"--prior-epochs"}  # refused without
    added = [option for option in SHORTER if option in known and option not in words]
    quick = ["--quick"] if (words[0] == "bench" or "transfer" in words) and "--quick" not in words else []
    quick += ["--backends", "torch-fp32"] if words[0] == "bench" and "--backends" not in words else []
    return [*words, *quick, *(str(part) for option in added for part in (option, SHORTER[option]))]


def to_run(page):
    """Yield each command of a page, its standard input, and the words that may refuse it."""
    for kind, words, lines in blocks(page):
        if kind == "not run" or (kind == "without a GPU" and torch.cuda.is_available()):
            continue
        for line in lines:
            if INSTALL.fullmatch(line) or line == COMPLETION:
                continue
            read = PRINTED.match(line)
            line = LAUNCHED.sub("truncate-kit", PRINTED.sub("", line))
            assert line.startswith("truncate-kit "), f"{page}: mark the block of {line!r} with its reason"
            text = read[1].replace("\\n", "\n") if read else ""
            yield shortened(shlex.split(line, comments=True)[1:]), text, words


def test_every_command_that_can_run_here_runs(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.setattr("webbrowser.open", lambda address: address.startswith("file:"))
    monkeypatch.setattr(configuration, "WORD_EPOCHS", 2)  # no option says how often words are read before pairs
    done, refused = set(), set()
    for page in PAGES:
        for words, text, refusal in to_run(page):
            if tuple(words) in done:
                continue
            done.add(tuple(words))
            with monkeypatch.context() as patch, ExitStack() as stack:
                patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
                if "--speedup" in words:  # two rounds, as elsewhere, say little where others take turns on the core
                    patch.setattr(speed, "MOST_ROUNDS", 25)
                hub = stack.enter_context(logged_in(patch)) if "--push-to" in words else None
                with pytest.raises(SystemExit) as end:
                    main(words)
                printed = capsys.readouterr()
                if "holds the model distilled from" in printed.err:  # by an earlier page: what the hint says
                    (files / "exported/lean").rename(files / f"distilled-{len(done)}")
                    with pytest.raises(SystemExit) as end:
                        main(words)
                    printed = capsys.readouterr()
            if refusal and end.value.code == 1:
                assert refusal in printed.err + printed.out, (page, words, printed.err)
                refused.add((page, refusal))
                continue
            assert not end.value.code, (page, words, printed.err)
            if "--json" in words:
                check_json(words[0], printed.out)
            if hub is not None:
                assert {"onnx/model.onnx", "README.md"} <= set(hub.repos["OWNER/NAME"]["files"])
    (search,) = PYTHON.findall((ROOT / "docs/guides/index-kept.md").read_text(encoding="utf-8"))
    exec(search, found := {})
    assert found["found"].shape == (20, 10)  # queries.txt, and the best texts of the index
    for kind in ("without the hub", "without a cluster", *(() if torch.cuda.is_available() else ("without a GPU",))):
        assert refused >= set(marked(kind)), kind


def test_a_shell_learns_to_complete(tmp_path):
    assert COMPLETION in (ROOT / "docs/json.md").read_text(encoding="utf-8").splitlines()
    home = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", f"{COMPLETION}; exit"], env=home, check=True, capture_output=True)
    lines = "source ~/.bashrc"
    for typed in ("dist", "finetune --lay"):
        lines += f"; COMP_WORDS=(truncate-kit {typed}); COMP_CWORD={len(typed.split())}"
        lines += "; _truncate_kit_completion truncate-kit; echo ${COMPREPLY[@]}"
    found = subprocess.run(["bash", "-c", lines], env=home, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["distill", "--layer"]


def marked(wanted):
    """List page and words of each block with this mark."""
    return [(page, words) for page in PAGES for kind, words, _ in blocks(page) if kind == wanted]


def test_the_lines_of_python_run(files, tmp_path, monkeypatch):
    """The page on Python makes the folder that the page on serving reads; small files replace its models and data."""
    monkeypatch.chdir(tmp_path)
    small = {"mini-electra-discriminator": "MODEL", "mini-bert": "REFERENCE", "bundled": "pairs.csv"}
    found = {}
    for page in ("python", "serve"):
        lines = "\n".join(PYTHON.findall((ROOT / f"docs/guides/{page}.md").read_text(encoding="utf-8")))
        for name, file in small.items():
            lines = lines.replace(f'"{name}"', repr(str(files / file)))
        lines = lines.replace("pairs.train.texts()", f"read_texts({str(files / 'texts.txt')!r})")  # the pairs are few
        found[page] = {}
        exec(lines, found[page])
    served = found["python"]["served"].encode(found["serve"]["texts"])
    np.testing.assert_allclose(found["serve"]["vectors"], served, atol=1e-6)
    assert isinstance(found["python"]["vectors"], np.ndarray)
    assert found["python"]["vectors"].shape == (16,)  # of one text
    assert found["python"]["half"].depth == 3
    assert len(found["python"]["lean"].chosen) == 3


def test_extras_that_are_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    named = {name for names in re.findall(r"install[^\n']* '[^'\n]*\[([\w,]+)\]'", text) for name in names.split(",")}
    assert {"cpu", "gpu", "ray"} <= named <= set(extras)


def test_every_guide_is_read():
    assert {path.stem for path in (ROOT / "docs/guides").glob("*.md")} == set(GUIDES.split())


def test_the_page_of_errors_quotes_messages():
    sources = chain((ROOT / "truncate_kit").rglob("*.py"), (ROOT / "cli").rglob("*.py"))
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/errors.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert len(rows) > 15
    for message in rows:
        longest = max(message.replace("; or:", "…").split("…"), key=len)
        assert longest.strip(" .:") in code, message
