"""Tables 1 to 3 and the figures of layer-wise attention pooling run on a tiny model."""

import gzip
import math
from itertools import product

import pytest
import torch
from scipy import stats

from benchmarks.common import named_model, read_rows
from benchmarks.layer_attention import figures, retrieval, run
from benchmarks.records import Records
from tests.support.files import graded_file, write_table
from tests.support.pairs import SENTENCES, make_pairs
from tests.support.readme_commands import PAGES, commands
from truncate_kit.data.triplets import TripletSet
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate

SMALL = ("--seeds", "1", "--epochs", "1", "--batch-size", "4")
LABELS = ("entailment", "contradiction", "neutral")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """STS Benchmark, SICK with classes, STS12 and captions, each of a few made pairs."""
    folder = tmp_path_factory.mktemp("sets")
    for seed, split in enumerate(("train", "dev", "test")):
        pairs = make_pairs(16, seed=seed)
        graded_file(folder / f"stsb/en/{split}.csv", pairs)
        rows = [(one.first, one.second, round(one.target, 3), LABELS[place % 3]) for place, one in enumerate(pairs)]
        write_table(folder / f"sick/{split}.csv", ("sentence1", "sentence2", "score", "label"), rows)
    graded_file(folder / "sts12/test.csv", make_pairs(16, seed=1))
    (folder / "captions").mkdir()
    (folder / "captions/sentences.en.txt.gz").write_bytes(gzip.compress("\n".join(SENTENCES[:12]).encode()))
    return folder


@pytest.fixture
def asked(data, tiny_folder):
    return ["--data", str(data), "--model", f"tiny={tiny_folder('bert')}"]


def table(text, first):
    """Lines of the last table of a text whose head begins so, by their first cells."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    start = max(place for place, line in enumerate(lines) if line[: len(first)] == first)
    return lines[start], lines[start + 2 :]


def test_table_1_has_the_sets_of_the_folder_beside_the_published_ones(asked, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "REPORTS", tmp_path / "reports.jsonl")
    words = [*asked, *SMALL, "--rows", "cls", "--objective", "in-batch"]
    run.main(words)
    assert "STS12" not in capsys.readouterr().out
    run.main([*words, "--sets"])  # what was kept without them is run again
    head, rows = table(capsys.readouterr().out, ["model", "pooling", "STS12"])
    published = {tuple(row[:2]): row[2:] for row in rows if row[0].endswith("published")}
    printed = ["69.29", "78.69", "76.45", "80.87", "79.82", "79.41", "76.41", "77.28"]
    assert published["BERT-base, published", "CLS_last (this paper)"] == printed
    (ours,) = [dict(zip(head, row, strict=True)) for row in rows if row[0] == "tiny"]
    (cell,) = Records(tmp_path / "reports.jsonl").values()
    scores = {score["name"]: score["spearman"] for score in cell["sets"]}
    assert list(scores) == ["STS12", "STSB", "SICK-R"]
    assert ours["STS12"] == f"{scores['STS12']:.2f} (1)"
    assert ours["mean"] == f"{sum(scores.values()) / 3:.2f} (1)"
    assert scores["STSB"] == pytest.approx(cell["run"]["trials"][0]["test"], abs=1e-3)  # the same model and pairs


ROWS = {"hard-negatives": 2704, "in-batch": 2704, "dropout": 10_000, "diffcse": 10_000}


def test_the_commands_of_the_pages_ask_for_what_is_kept():
    records, known = Records(run.REPORTS), set()
    for page in PAGES:
        for words in commands(page.read_text(encoding="utf-8")):
            if words[:3] != ["python", "-m", "benchmarks.layer_attention.run"]:
                continue
            options = run.PARSER.parse_args(words[3:])
            rows = (("a", "b"),) * ROWS[options.objective]
            run.check_kept(options, records, TripletSet(name="rows", rows=rows, note=""))
            for model in options.model:
                for row, seed in product(run.asked_rows(options), range(options.seeds)):
                    known.add(run.record_name(named_model(model)[0], row, seed, options.objective))
    assert {name for name, _ in records.items()} <= known


def test_table_3_searches_with_both_ways_of_training(asked, tmp_path, capsys):
    folder, asked_of = tmp_path / "found", range(0, 30, 5)
    write_table(folder / "corpus.jsonl", ("_id", "text"), [(f"d{n}", text) for n, text in enumerate(SENTENCES)])
    write_table(folder / "queries.jsonl", ("_id", "text"), [(f"q{n}", SENTENCES[n]) for n in asked_of])
    write_table(
        folder / "qrels/test.tsv", ("query-id", "corpus-id", "score"), [(f"q{n}", f"d{n}", 1) for n in asked_of]
    )
    retrieval.main([*asked, *SMALL, "--retrieval", str(folder), "--check"])
    _, rows = table(capsys.readouterr().out, ["model", "collection"])
    assert ["BERT-base, published", "Quora", "cls", "63.48"] in [row[:4] for row in rows]
    ours = {row[2]: row for row in rows if row[0] == "tiny"}
    assert set(ours) == set(retrieval.REMOVED)
    assert {row[3] for row in ours.values()} == {"100.00 (1)"}  # a query is its own document


def test_the_figures_and_the_numbers_behind_them(asked, data, tmp_path, tiny_folder, monkeypatch, capsys, drawn):
    monkeypatch.setattr(figures, "HERE", tmp_path)
    figures.main([*asked, "--epochs", "1"])
    rows = read_rows(tmp_path / "figures/figures.csv")
    assert list(dict.fromkeys(row["figure"] for row in rows)) == ["1", "2", "3a", "3b", "abstract"]
    assert len(list((tmp_path / "figures").glob("*.png"))) == 3
    encoder = truncate(load_encoder(tiny_folder("bert"), pooling="cls"), 2)
    pairs = read_rows(data / "stsb/en/test.csv")
    first, second = (encoder.vectors([pair[side] for pair in pairs]) for side in ("sentence1", "sentence2"))
    cosines = torch.cosine_similarity(first, second)
    scores = [float(pair["score"]) for pair in pairs]
    expected = 100 * stats.spearmanr([round(float(cosine), 6) for cosine in cosines], scores)[0]
    (found,) = [float(row["value"]) for row in rows if (row["figure"], row["what"], row["place"]) == ("1", "CLS", "2")]
    assert found == pytest.approx(expected, abs=0.01)
    for part in ("3a", "3b"):
        for text in figures.SENTENCES:
            shares = [float(row["value"]) for row in rows if (row["figure"], row["what"]) == (part, text)]
            assert len(shares) == 4
            assert sum(shares) == pytest.approx(1, abs=1e-3)


def test_spread_is_that_of_a_loop_over_pairs():
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) + 0.5
    rows = [[value / math.hypot(*row) for value in row] for row in vectors.tolist()]
    pairs = [(first, second) for place, first in enumerate(rows) for second in rows[:place]]
    cosines = [math.fsum(x * y for x, y in zip(*pair, strict=True)) for pair in pairs]
    kernel = [math.exp(-2 * math.dist(*pair) ** 2) for pair in pairs]
    expected = {"mean cosine": sum(cosines) / len(pairs), "uniformity": math.log(sum(kernel) / len(pairs))}
    assert figures.spread(vectors) == pytest.approx(expected, abs=1e-6)
    assert figures.spread(3 * vectors) == pytest.approx(expected, abs=1e-6)
