"""Distil all-MiniLM-L6-v2 to 5, 4, 3, 2 and 1 blocks, and score each on similarity and search.

Rows that are in rows.csv are not made again; a distillation that was stopped goes on.

    python -m benchmarks.lean.run --model MODEL --data DATA --work WORK [--blocks 3,2] [--name default] [options]
"""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.common import new_parser, read_rows, write_rows
from benchmarks.lean.texts import Scores, evaluation_texts, learned_lines, mixed, questions, scores_of
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.learning import RawTexts
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep

ROWS = Path(__file__).parent / "rows.csv"
COLUMNS = (
    *("name", "asked", "blocks", "seed", "batch", "epochs", "threads", "texts", "tokens", "excluded"),
    *("learning_minutes", "minutes", "speedup"),
    *("agreement", "overlap", *Scores.__dataclass_fields__),
)


USUAL = DistillSettings()
PARSER = new_parser(__doc__)
PARSER.add_argument("--model", required=True)
PARSER.add_argument("--data", type=Path, required=True, help="the folder of the evaluation data")
PARSER.add_argument("--work", type=Path, required=True, help="folder of vectors, trials and models")
PARSER.add_argument("--blocks", default="full,5,4,3,2,1", help="numbers of blocks, or subsets such as 1-3-6")
PARSER.add_argument("--name", default="default", help="of the variant, in the table")
PARSER.add_argument("--texts", type=int, default=150_000)
PARSER.add_argument("--texts-from", type=Path, help="a file that benchmarks.lean.texts made, instead of those numbers")
PARSER.add_argument("--passages", type=float, default=0.1, help="share of passages of long lines")
PARSER.add_argument("--joined", type=float, default=0.1, help="share of joined sentences")
PARSER.add_argument("--questions", action="store_true", help="learn from TREC's training questions as well, as queries")
PARSER.add_argument("--epochs", type=int, default=1)
PARSER.add_argument("--rate", type=float)
PARSER.add_argument("--batch-size", type=int, default=USUAL.batch_size)
PARSER.add_argument("--similarity", type=float, default=USUAL.similarity)
PARSER.add_argument("--states", type=float, default=USUAL.states)
PARSER.add_argument("--train-embeddings", action="store_true")
PARSER.add_argument("--precision", default="fp32")
PARSER.add_argument("--seed", type=int, default=0)
PARSER.add_argument("--layer", type=int, help="whose vectors are learned; by default the last one")
PARSER.add_argument("--max-length", type=int, default=256)
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--device", default="cpu")
PARSER.add_argument("--out", type=Path, default=ROWS, help="the table; processes beside each other need one each")
PARSER.add_argument("--untrained", action="store_true", help="score the choice without training")


def printed_progress(task: str, done: int, total: int) -> None:
    """Print each twentieth of a task."""
    if done == total or done % max(1, total // 20) == 0:
        print(f"{time.strftime('%H:%M:%S')} {task}: {done}/{total}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Add the rows that are missing."""
    given = PARSER.parse_args(arguments)
    torch.set_num_threads(given.threads)
    full = load_encoder(given.model, max_length=given.max_length, device=given.device)
    settings = DistillSettings(
        layer=given.layer,
        epochs=given.epochs,
        batch_size=given.batch_size,
        learning_rate=given.rate,
        similarity=given.similarity,
        states=given.states,
        train_embeddings=given.train_embeddings,
        precision=given.precision,
        seed=given.seed,
    )
    exclude = evaluation_texts(given.data)
    if given.texts_from is not None:
        texts = given.texts_from.read_text(encoding="utf-8").splitlines()
    else:
        texts = list(mixed(learned_lines(given.data), given.texts, given.passages, given.joined))
    queries = questions(given.data) if given.questions else []
    for blocks in given.blocks.split(","):
        rows = read_rows(given.out) if given.out.exists() else []
        if any((row["name"], row["asked"], row["seed"]) == (given.name, blocks, str(given.seed)) for row in rows):
            continue
        if blocks == "full":
            row = {"name": given.name, "asked": blocks, "seed": given.seed, **scores_of(full, full, given.data).row()}
            write_rows(given.out, [*rows, dict.fromkeys(rows[0] if rows else COLUMNS, "") | row])
            continue
        begin = time.perf_counter()
        budget = Budget(blocks=blocks.replace("-", ",") if "-" in blocks else blocks)
        result = distill(
            full,
            RawTexts(texts=texts, queries=queries, exclude=exclude),
            out=given.work,
            budget=budget,
            settings=settings,
            progress=printed_progress,
        )
        minutes = (time.perf_counter() - begin) / 60
        learned = load_encoder(given.work / "lean", max_length=given.max_length, device=given.device)
        lean = keep(full, result.chosen) if given.untrained else learned
        student = result.student
        row = {
            "name": given.name,
            "asked": blocks,
            "blocks": " ".join(map(str, result.chosen)),
            "seed": given.seed,
            "batch": given.batch_size,
            "epochs": given.epochs,
            "threads": given.threads if given.device == "cpu" else given.device,
            "texts": result.texts["num_texts"],
            "tokens": result.texts["tokens"],
            "excluded": result.texts["excluded"],
            "learning_minutes": f"{student.seconds / 60:.1f}",
            "minutes": f"{minutes:.1f}",
            "speedup": f"{result.speedup:.2f}",
            "agreement": f"{student.agreement.correlation:.2f}",
            "overlap": f"{student.agreement.overlap:.2f}",
            **scores_of(lean, full, given.data).row(),
        }
        print(row, flush=True)
        write_rows(given.out, [*rows, row])


if __name__ == "__main__":
    main()
