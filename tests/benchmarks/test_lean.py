"""The page of lean models shows the rows that were measured."""

import csv
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from benchmarks.lean.texts import mixed, without

LEAN = Path(__file__).resolve().parents[2] / "benchmarks/lean"
SCORES = ("stsb", "sts_mean", "trecqa", "trecqa_mixed", "cranfield", "cranfield_mixed")


def rounded(number: str, unit: str) -> str:
    return str(Decimal(number).quantize(Decimal(unit), ROUND_HALF_UP))


def cells(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading of the page."""
    text = (LEAN / "README.md").read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1]
    lines = [line for line in text[: text.index("\n- ")].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def measured_rows(*, on_a_gpu: bool) -> list[dict[str, str]]:
    rows = [row for row in table_of("rows.csv") if row["blocks"] and not row["name"].startswith("mini-")]
    return [row for row in rows if (row["threads"] == "cuda") == on_a_gpu]


def test_the_table_of_blocks_is_that_of_its_rows():
    expected = [
        [
            row["blocks"].replace(" ", ", "),
            *(row[name] for name in SCORES),
            rounded(row["agreement"], "0.1"),
            f"{rounded(row['speedup'], '0.1')} ×",
            rounded(row["learning_minutes"], "1"),
        ]
        for row in measured_rows(on_a_gpu=False)
    ]
    assert sorted([row[0], *row[2:]] for row in cells("Blocks")[1:]) == sorted(expected)  # after the full model


def test_the_table_of_subsets_is_that_of_the_rows_of_a_gpu():
    expected = [
        [row["blocks"].replace(" ", ", "), *(row[name] for name in ("seed", *SCORES, "agreement"))]
        for row in measured_rows(on_a_gpu=True)
        if row["texts"] == "120000"
    ]
    shown = [[row[0].split(" and ")[0], *row[1:]] for row in cells("Subsets of the same size")]
    assert sorted(shown) == sorted(expected)


def test_the_table_of_numbers_of_texts_is_that_of_its_rows():
    shown = []
    for texts, _, agreement, *scores in cells("How many texts")[:-1]:  # the last one is the full model
        numbers = [cell.split(", ") for cell in (*scores, agreement)]
        shown += [[texts.replace(",", ""), *seed] for seed in zip(*numbers, strict=True)]
    expected = [
        [row["texts"], *(row[name] for name in (*SCORES, "agreement"))]
        for row in measured_rows(on_a_gpu=True)
        if row["blocks"] == "1 3 6" and row["name"] != "cuda-questions"
    ]
    assert len(expected) == 7
    assert sorted(shown) == sorted(expected)


def test_the_table_of_miniatures_is_that_of_their_rows():
    expected = [
        [
            row["name"].removeprefix("mini-"),
            row["blocks"].replace(" ", ", ") or "all 8",
            row["agreement"] or "–",
            *(row[name] for name in SCORES),
            f"{rounded(row['speedup'] or '1', '0.1')} ×",
        ]
        for row in table_of("rows.csv")
        if row["name"].startswith("mini-")
    ]
    assert len(expected) == 5
    assert sorted(cells("The miniatures")) == sorted(expected)


def table_of(name: str) -> list[dict[str, str]]:
    with (LEAN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ablation(variant: str, *, asked: str = "8000", batch: str = "16") -> list[dict[str, str]]:
    """The rows of a variant in bfloat16, by seed."""
    where = {"variant": variant, "asked": asked, "batch": batch, "precision": "bf16"}
    rows = [row for row in table_of("ablations.csv") if where.items() <= row.items()]
    return sorted(rows, key=lambda row: row["seed"])


VARIANTS = (
    *("cosine", "states", "similarity", "embeddings", "rate 1e-3", "rate 2.5e-4", "sentences", "joined"),
    *("muon", "muon three"),
)


def test_the_table_of_what_learning_depends_on_is_that_of_its_rows():
    measured = [ablation(name) for name in VARIANTS] + [ablation("cosine", batch="64")]
    for shown, rows in zip(cells("What learning depends on"), measured, strict=True):
        seeds = [", ".join(row[name] for row in rows) for name in ("agreement", "stsb", "sts_mean")]
        means = [
            rounded(str(sum(Decimal(row[name]) for row in rows) / len(rows)), "0.01")
            for name in ("trecqa", "trecqa_mixed", "cranfield", "cranfield_mixed")
        ]
        assert [cell.replace("**", "") for cell in shown[1:8]] == [*seeds, *means], (shown[0], *seeds, *means)
        assert float(shown[8]) == min(float(row["minutes"]) for row in rows), shown[0]


def test_the_tables_of_documents_and_queries_are_those_of_their_rows():
    documents = [ablation(name) for name in ("cosine", "half of the documents", "documents")]
    queries = [ablation("cosine"), ablation("cosine", asked="13000")]
    queries += [ablation(name) for name in ("questions", "questions weighted", "pieces", "pieces weighted", "words")]
    for heading, measured in (
        ("The documents that are searched", documents),
        ("Queries among what is learned from", queries),
    ):
        for shown, rows in zip(cells(heading)[:-1], measured, strict=True):  # the last one is the full model
            expected = [", ".join(row[name] for row in rows) for name in ("agreement", *SCORES)]
            assert [cell.replace("**", "") for cell in shown[2:]] == expected, (heading, shown[0])


def test_the_tables_beside_other_recipes_are_those_of_their_rows():
    rates = [float(row["texts_per_second"]) for row in table_of("peer.csv")]
    ours, theirs, factors = cells("Beside sentence-transformers' recipe")[:3]  # what follows is of the next heading
    assert [float(cell) for cell in (*ours[1:], *theirs[1:])] == rates
    assert factors[1:] == [f"{rates[place] / rates[place + 2]:.1f} ×" for place in (0, 1)]
    order = [0, 1, 3, 2]  # both rates of one recipe follow each other
    rows = [table_of("recipes.csv")[place] for place in order]
    for shown, row in zip(cells("Half of the blocks in five minutes"), rows, strict=True):
        texts = [row["blocks"].replace(" ", ", "), f"{int(row['texts']):,}", row["minutes"]]
        assert [cell.replace("**", "") for cell in shown[1:]] == [*texts, *(row[name] for name in SCORES)]


def test_no_text_holds_one_of_an_evaluation_set():
    # A short text is looked for as a whole line alone.
    held = ["a dog  runs through the high grass", "He: a dog runs through the high grass! So it was.", "two cats"]
    free = ["Two cats sleep.", "A dog runs through the grass."]
    banned = ["A dog runs through the high grass.", "Two cats."]
    assert without([*held, *free], banned) == free
    for lines, found in ((free, False), ([*held, *free], True)):
        joined = list(mixed(lines * 200, 50, passages=0.0, joined=1.0))
        assert any("through the high grass" in text for text in joined) == found
