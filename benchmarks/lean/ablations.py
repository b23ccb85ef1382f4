"""What learning from the full model depends on: which blocks, which loss, how many texts of which kind, which rate.

All variants share one set of texts and the full model's vectors of them; each is one row of ablations.csv, and rows
that are there are not made again.

    python -m benchmarks.lean.ablations --model MODEL --data DATA --work WORK [--variants cosine,states]
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from benchmarks.common import new_parser, read_rows, write_rows
from benchmarks.lean.texts import evaluation_texts, learned_lines, mixed, questions, scores_of
from truncate_kit.core.hardware import TRAINING_PRECISIONS
from truncate_kit.data.retrieval import read_retrieval
from truncate_kit.methods.distill.learning import (
    AgreementEvaluator,
    RawTexts,
    TaughtTexts,
    add_vectors,
    store_texts,
    student_run,
)
from truncate_kit.methods.distill.settings import Blocks, DistillSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep

ROWS = Path(__file__).parent / "ablations.csv"
HELD = 1000
QUERIES, SHORT, LONG = 5000, 3, 15
"""Queries at most, and the words of those that are pieces of lines."""

BF16 = DistillSettings(precision="bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What is different from the default.

    Attributes:
        blocks: That are kept.
        settings: How they learn.
        passages: Share of passages among the texts.
        joined: Share of joined sentences.
        texts: Number of texts, None for that of the command.
        documents: Share of Cranfield's documents that are among them.
        queries: What is learned from on top: `questions` of TREC's classes, or `pieces` of other lines.
    """

    blocks: Blocks = (1, 3, 6)
    settings: DistillSettings = BF16
    passages: float = 0.2
    joined: float = 0.1
    texts: int | None = None
    documents: float = 0.0
    queries: Literal["", "questions", "pieces"] = ""


USUAL = Variant()
MORE = replace(USUAL, passages=0.15, joined=0.05)  # as the texts of rows.csv


def learning(**changes: object) -> Variant:
    """Return the usual variant with other settings."""
    return replace(USUAL, settings=replace(USUAL.settings, **changes))  # type: ignore[arg-type]  # checked by the settings


VARIANTS = {
    "cosine": USUAL,
    "1-5-6": replace(USUAL, blocks=(1, 5, 6)),
    "1-4-6": replace(USUAL, blocks=(1, 4, 6)),
    "1-2-6": replace(USUAL, blocks=(1, 2, 6)),
    "states": learning(states=1.0),
    "similarity": learning(similarity=10.0),
    "embeddings": learning(train_embeddings=True),
    "rate 1e-3": learning(learning_rate=1e-3),
    "rate 2.5e-4": learning(learning_rate=2.5e-4),
    "sentences": replace(USUAL, passages=0.0, joined=0.0),
    "joined": replace(USUAL, passages=0.0, joined=0.3),
    "documents": replace(USUAL, documents=1.0),
    "half of the documents": replace(USUAL, documents=0.5),
    "questions": replace(USUAL, queries="questions"),
    "questions weighted": replace(learning(query_weight=4.0), queries="questions"),
    "pieces": replace(USUAL, queries="pieces"),
    "pieces weighted": replace(learning(query_weight=4.0), queries="pieces"),
    "more": MORE,
}
PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True, help="the folder of all-MiniLM-L6-v2")
PARSER.add_argument("--data", type=Path, required=True, help="the folder of the evaluation data")
PARSER.add_argument("--work", type=Path, required=True, help="folder of texts and vectors")
PARSER.add_argument("--variants", default=",".join(VARIANTS))
PARSER.add_argument("--seeds", type=int, default=1)
PARSER.add_argument("--texts", type=int, default=24_000)
PARSER.add_argument("--batch-size", type=int, default=BF16.batch_size)
PARSER.add_argument("--precision", choices=TRAINING_PRECISIONS, default=BF16.precision)
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--device", default="cpu")


def queries_of(kind: str, lines: Sequence[str], data: Path, number: int) -> list[str]:
    """Return at most `number` additional texts; `lines` are unused lines."""
    if kind == "questions":
        return questions(data)[:number]
    draw, found = random.Random(0), list[str]()
    for line in lines if kind else ():
        words, length = line.split(), draw.randint(SHORT, LONG)
        if len(words) >= length and len(found) < number:
            first = draw.randint(0, len(words) - length)
            found.append(" ".join(words[first : first + length]))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the rows that are missing."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(given.threads)
    full = load_encoder(given.model, max_length=256, device=given.device)
    lines, exclude = learned_lines(given.data), evaluation_texts(given.data)
    documents = [text for text in read_retrieval(given.data / "retrieval" / "cranfield").documents if text]
    random.Random(0).shuffle(documents)
    for seed in range(given.seeds):
        for name in given.variants.split(","):
            variant = VARIANTS[name]
            number = variant.texts or given.texts
            key = {"variant": name, "seed": str(seed), "asked": str(number), "batch": str(given.batch_size)}
            key["precision"] = given.precision
            rows = read_rows(ROWS) if ROWS.exists() else []
            if any(all(row[column] == value for column, value in key.items()) for row in rows):
                continue
            folder = given.work / f"{number}-{variant.passages}-{variant.joined}-{variant.documents}{variant.queries}"
            served = documents[: round(variant.documents * len(documents))]
            others = mixed(lines, number - len(served), variant.passages, variant.joined)
            asked = queries_of(variant.queries, lines[::-1], given.data, QUERIES)  # others begin in front
            raw = RawTexts(texts=[*others, *served], queries=asked, exclude=exclude - set(served))
            store = store_texts(full, raw, folder / "texts")
            add_vectors(full, store)
            first = store.num_queries  # held-out texts are of one kind in all variants
            order = first + np.random.default_rng(0).permutation(len(store) - first)
            held, learned_from = order[:HELD], np.concatenate([np.arange(first), order[HELD:]])
            settings = replace(variant.settings, seed=seed, batch_size=given.batch_size, precision=given.precision)
            student = keep(full, variant.blocks)
            examples = TaughtTexts(store, learned_from, settings, (full, variant.blocks))
            evaluator = AgreementEvaluator(store.ids_at(held), store.vectors_at(held.tolist()))
            run = student_run(student, examples, evaluator, settings)
            state = run.train()
            row = {
                **key,
                "blocks": " ".join(map(str, variant.blocks)),
                "tokens": str(store.counts["tokens"]),
                "minutes": f"{state.seconds / 60:.1f}",
                "agreement": f"{max(state.scores):.2f}",
                **scores_of(student, full, given.data).row(),
            }
            print(row, flush=True)
            write_rows(ROWS, [*(read_rows(ROWS) if ROWS.exists() else []), row])


if __name__ == "__main__":
    main()
