"""How many tokens real sentences have, special ones included: numbers only, for machines without the texts.

    python -m benchmarks.gpu.lengths --stsb FOLDER_OF_STSB_EN --captions sentences.en.txt.gz --paragraphs raw.txt.xz

Counted with the miniatures' vocabulary: 4,096 texts of each set at equal distances. Paragraphs are the lines of the raw
text with 40 words or more.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import new_parser
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.tables import read_texts
from truncate_kit.models.loading import load_encoder

COUNT = 4096


PARSER = new_parser(__doc__)
for name in ("stsb", "captions", "paragraphs"):
    PARSER.add_argument(f"--{name}", required=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write lengths.json beside this file."""
    options = PARSER.parse_args(arguments)
    pairs = load_pairs(options.stsb)
    sets: dict[str, Sequence[str]] = {
        "stsb": pairs.train.texts() if pairs.train is not None else pairs.test.texts(),
        "captions": read_texts(options.captions),
        "paragraphs": [text for text in read_texts(options.paragraphs) if len(text.split()) >= 40],
    }
    encoder = load_encoder("mini-bert")
    encoder.max_length = 512
    found = {}
    for name, texts in sets.items():
        places = np.linspace(0, len(texts) - 1, COUNT).round().astype(int)
        found[name] = [len(row) for row in encoder.token_ids([texts[place] for place in places])]
        print(f"{name}: mean {np.mean(found[name]):.1f}, median {np.median(found[name]):.0f}, most {max(found[name])}")
    (Path(__file__).parent / "lengths.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
