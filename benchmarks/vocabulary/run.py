"""What is left of all-MiniLM-L6-v2, and of its score, when its vocabulary is cut to that of some texts.

    python -m benchmarks.vocabulary.run --data FOLDER

FOLDER has captions/sentences.en.txt.gz, corpus/english.txt.xz, stsb/en/train.csv and stsb/en/test.csv. Writes
vocabulary.csv beside this file, row by row, without those that are there, and prints it as Markdown.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

from benchmarks.common import machine, new_parser, print_table, read_rows, write_rows
from benchmarks.suites.run import bundled_minilm
from truncate_kit.data.pairs import PairSet, read_pairs
from truncate_kit.data.tables import iter_texts
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import piece_ids
from truncate_kit.training.cutting import cut_vocabulary

HERE = Path(__file__).parent
TABLE = HERE / "vocabulary.csv"
FILES = {
    "captions": "captions/sentences.en.txt.gz",
    "corpus": "corpus/english.txt.xz",
    "stsb train": "stsb/en/train.csv",
}
# Of each file the first texts, None for all of them.
CASES = [(source, count) for source in ("captions", "corpus") for count in (1_000, 10_000, 100_000)]
CASES.append(("stsb train", None))

PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--threads", type=int, default=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Cut, score, write, print."""
    options = PARSER.parse_args(arguments)
    torch.set_num_threads(options.threads)
    encoder, pairs = load_encoder(bundled_minilm()), read_pairs(options.data / "stsb/en/test.csv")
    rows: list[dict[str, object]] = list(read_rows(TABLE)) if TABLE.exists() else []
    for source, count in CASES[len(rows) :]:
        texts = list(dict.fromkeys(islice(iter_texts(options.data / FILES[source]), count)))
        whole = evaluate(encoder, pairs).spearman
        rows.append({"source": source} | row(encoder, texts, pairs) | {"stsb_whole": f"{whole:.2f}"})
        write_rows(TABLE, rows)
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    print(machine())


def row(encoder: Encoder, texts: Sequence[str], pairs: PairSet) -> dict[str, object]:
    """Return one cut's size, coverage and scores."""
    cut, found = cut_vocabulary(encoder, texts)
    names = set(cut.tokenizer.get_vocab())  # type: ignore[union-attr]  # it has one
    test = list(dict.fromkeys(pairs.texts()))
    old = [encoder.tokenizer.convert_ids_to_tokens(ids) for ids in piece_ids(encoder, test)]  # type: ignore[union-attr]  # likewise
    covered = [text for text, pieces in zip(test, old, strict=True) if names.issuperset(pieces)]
    lengths = [sum(map(len, ids)) for ids in (old, piece_ids(cut, test))]
    return {
        "texts": found.texts,
        "pieces": found.pieces,
        "megabytes": f"{found.model_bytes / 1e6:.1f}",
        "megabytes_whole": f"{found.full_model_bytes / 1e6:.1f}",
        "held_out_pieces_covered": f"{100 * (found.covered_pieces or 0):.2f}",
        "held_out_texts_covered": f"{100 * (found.covered_texts or 0):.1f}",
        "stsb_texts_covered": f"{100 * len(covered) / len(test):.1f}",
        "their_largest_difference": float((cut.vectors(covered) - encoder.vectors(covered)).abs().max()),
        "stsb_more_tokens": f"{100 * (lengths[1] / lengths[0] - 1):.2f}",
        "stsb": f"{evaluate(cut, pairs).spearman:.2f}",
    }


if __name__ == "__main__":
    main()
