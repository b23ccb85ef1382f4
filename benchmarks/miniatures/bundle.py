"""Put pretrained miniatures into the package, with weights in half precision.

python -m benchmarks.miniatures.bundle --models FOLDER_OF_PRETRAINING
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from benchmarks.common import new_parser
from truncate_kit.core.files import replacing, write_json

MINIATURES = Path(__file__).parents[2] / "truncate_kit" / "models" / "miniatures"
RUNS = {"bert": ("bert",), "electra": ("electra-generator", "electra-discriminator")}
"""The encoders that each run of `pretrain.py` leaves."""
BUNDLED = {**RUNS, "gpt2": ("gpt2",)}
"""And the decoder, whose frozen states FREEZE reads."""
MOST_BYTES = 8 * 2**20
CARD = "README.md"


def halve(folder: Path, target: Path) -> None:
    """Write model and tokenizer of `folder` with weights in float16; they load as float32."""
    kind = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    kind.from_pretrained(folder, dtype=torch.float32).half().save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    config = json.loads((target / "config.json").read_text())
    write_json(target / "config.json", config | {"dtype": "float32"})
    settings = json.loads((target / "tokenizer_config.json").read_text())
    kept = {name: value for name, value in settings.items() if name.endswith("_token") or name == "model_max_length"}
    # The name that older versions of transformers know as well.
    write_json(target / "tokenizer_config.json", kept | {"tokenizer_class": "PreTrainedTokenizerFast"})
    size = (target / "model.safetensors").stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{folder} takes {size:,} bytes in float16, more than the {MOST_BYTES:,} of a miniature.")


PARSER = new_parser(__doc__)
PARSER.add_argument("--models", type=Path, required=True, help="the folder that pretrain.py wrote to")
PARSER.add_argument("--out", type=Path, default=MINIATURES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the folders of all that were pretrained there; a card that lies there stays."""
    options = PARSER.parse_args(arguments)
    found = [name for names in BUNDLED.values() for name in names if (options.models / name).is_dir()]
    if not found:
        raise SystemExit(f"{options.models} holds no pretrained miniature.")
    for model in found:
        folder = options.out / f"mini-{model}"
        card = (folder / CARD).read_bytes() if (folder / CARD).exists() else None
        with replacing(folder) as target:
            halve(options.models / model, target)
            if card is not None:
                (target / CARD).write_bytes(card)


if __name__ == "__main__":
    main()
