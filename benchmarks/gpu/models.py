"""The random models that are measured on a GPU, full and cut, and texts as long as real ones."""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    DebertaV2Config,
    ElectraConfig,
    MPNetConfig,
    PretrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from truncate_kit.core.errors import TruncateKitError
from truncate_kit.core.hardware import GRAPH_RUNTIMES, Precision
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.record import ExportSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate

LENGTHS = Path(__file__).with_name("lengths.json")


def shapes(width: int, layers: int) -> dict[str, PretrainedConfig]:
    """Return the configurations of the models; a width below 768 scales heads and blocks."""

    def sizes(scale: float = 1, depth: int = layers) -> dict[str, int]:
        wide = int(width * scale)
        return {
            "vocab_size": 30522,
            "hidden_size": wide,
            "num_attention_heads": max(2, wide // 64),
            "intermediate_size": 4 * wide,
            "num_hidden_layers": depth,
        }

    relative = {
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    }
    return {
        "bert-base": BertConfig(**sizes()),
        "bert-large": BertConfig(**sizes(4 / 3, 2 * layers)),
        "electra-base": ElectraConfig(**sizes(), embedding_size=width),
        "mpnet-base": MPNetConfig(**sizes(), pad_token_id=0),
        "xlm-roberta-base": XLMRobertaConfig(**sizes(), pad_token_id=0),
        "distilroberta-base": RobertaConfig(**sizes(depth=layers // 2), pad_token_id=0),
        "deberta-v3-base": DebertaV2Config(
            **sizes(), **relative, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0
        ),
    }


def sentences(name: str, encoder: Encoder, count: int) -> list[str]:
    """Draw random words of one token each, as long as the real texts of that set."""
    assert encoder.tokenizer is not None
    words = sorted(word for word in encoder.tokenizer.get_vocab() if re.fullmatch("[a-z]{2,}", word))
    lengths = json.loads(LENGTHS.read_text())[name]
    draw = random.Random(0)
    picked = draw.sample(lengths, min(count, len(lengths)))
    return [" ".join(draw.choices(words, k=max(1, length - 2))) for length in picked]  # [CLS] and [SEP] come on top


class Models:
    """Folders of random models, full and cut, with their graphs, made when they are first asked for."""

    def __init__(
        self, work: Path, configs: dict[str, PretrainedConfig], device: str, precisions: Sequence[Precision]
    ) -> None:
        self.work, self.configs, self.device, self.precisions = work, configs, device, precisions
        self._made: set[Path] = set()

    def layer(self, name: str, cut: int) -> int:
        """Return the layer after `cut` twelfths of the depth, at least the first."""
        return max(1, cut * int(self.configs[name].num_hidden_layers) // 12)

    def encoder(self, name: str, layer: int | None) -> Encoder:
        """Build the model with fixed random weights, cut at `layer`; None for all of it."""
        torch.manual_seed(0)
        full = random_encoder(self.configs[name], name=name)
        full.tokenizer = load_encoder("mini-bert").tokenizer
        full.max_length = min(512, self.configs[name].max_position_embeddings)
        return full if layer is None else truncate(full, layer)

    def folder(self, name: str, layer: int | None) -> Path:
        """Save the model cut at `layer` with graphs for the device, and return its folder.

        A graph that cannot be made is missing there: the rivals are measured all the same.
        """
        place = self.work / f"{name}-{'full' if layer is None else layer}"
        if place in self._made:
            return place
        if not place.exists():
            save_encoder(self.encoder(name, layer), place)
        on_cuda = self.device.startswith("cuda")
        for precision in self.precisions:
            if (place / GRAPH_RUNTIMES["onnx"].files[precision]).exists():
                continue
            try:
                export_onnx(
                    load_encoder(place), place, ExportSettings(precision=precision, target="cuda" if on_cuda else "cpu")
                )
            except TruncateKitError as error:
                print(f"{place.name} has no {precision} graph: {error} {error.hint}", flush=True)
        self._made.add(place)
        return place
