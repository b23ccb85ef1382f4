"""Pretrain the miniatures: a BERT, an ELECTRA pair and a GPT-2 of one shape, on the same text, with the same tokenizer.

    python -m benchmarks.miniatures.pretrain bert --text FILE --out FOLDER --steps 20000
    python -m benchmarks.miniatures.pretrain electra --text FILE --out FOLDER --steps 20000
    python -m benchmarks.miniatures.pretrain gpt2 --text FILE --out FOLDER --steps 15000 --batch-size 64
    python -m benchmarks.miniatures.pretrain electra … --start FOLDER/bert      # the discriminator begins as this BERT
    python -m benchmarks.miniatures.pretrain bert … --start FINISHED/bert       # goes on, with a schedule of its own
    python -m benchmarks.miniatures.pretrain electra … --start FINISHED         # so does the pair in this folder
    python -m benchmarks.miniatures.pretrain bert … --shape small --device cuda --packed --compile

Any text file serves, plain or .xz, one text a line. The vocabulary is learned from it and kept in `FOLDER/vocabulary`.
The same seed gives the same weights on the same machine. A run that is stopped continues where it was and ends with
the same weights. `FOLDER/bert`, `FOLDER/gpt2`, `FOLDER/electra-generator` and `FOLDER/electra-discriminator` hold the
models, `FOLDER/snapshots` what they were after every `--keep` steps, `FOLDER/*-losses.csv` the losses on held-out text.

Masked words, their loss, their head and the loop are the package's own; replaced-token detection and the next word
are added here.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from benchmarks.common import new_parser, read_rows, write_rows
from benchmarks.miniatures.bundle import RUNS
from benchmarks.miniatures.corpus import digest, learn_vocabulary, pieces, read_lines
from benchmarks.miniatures.objectives import CausalEvaluator, CausalTexts, ElectraEvaluator, ElectraHeads, electra_loss
from truncate_kit.core.files import replacing, write_json
from truncate_kit.methods.priors import MaskedEvaluator, MaskedTexts, load_masked_head
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder, random_encoder
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings

HELD_OUT, MOST_HELD_OUT = 0.05, 1000
VOCABULARY, MAX_LENGTH = 8192, 128
GENERATOR, DISCRIMINATOR = RUNS["electra"]
INITIAL_DEVIATION = 0.04
"""Of the weights: BERT's 0.02 is for 768 columns; narrow models start too flat with it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Blocks, width, heads, width of the generator and its heads; inner layers are four times as wide."""

    depth: int
    width: int
    heads: int
    generator_width: int
    generator_heads: int


SHAPES = {"mini": Shape(8, 128, 4, 64, 2), "small": Shape(12, 256, 4, 64, 1)}


def bert_config(shape: Shape, vocabulary: int) -> BertConfig:
    """Return the BERT configuration of a shape."""
    return BertConfig(**_common(shape.depth, shape.width, shape.heads, vocabulary))


def electra_config(shape: Shape, vocabulary: int, *, generator: bool) -> ElectraConfig:
    """Return the discriminator of a shape, or its generator with the same embedding width."""
    width, heads = (shape.generator_width, shape.generator_heads) if generator else (shape.width, shape.heads)
    return ElectraConfig(**_common(shape.depth, width, heads, vocabulary), embedding_size=min(128, shape.width))


def gpt2_config(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> GPT2Config:
    """Return the GPT-2 configuration of a shape."""
    return GPT2Config(
        n_layer=shape.depth,
        n_embd=shape.width,
        n_head=shape.heads,
        n_positions=MAX_LENGTH,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        initializer_range=INITIAL_DEVIATION,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


def _common(depth: int, width: int, heads: int, vocabulary: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": depth,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocab_size": vocabulary,
        "max_position_embeddings": MAX_LENGTH,
        "initializer_range": INITIAL_DEVIATION,
        # One pass over the text or a few: there is nothing to overfit.
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def new_encoder(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, device: str) -> Encoder:
    """Build an encoder with random weights and the tokenizer."""
    encoder = random_encoder(config)
    encoder.tokenizer, encoder.max_length = tokenizer, MAX_LENGTH
    return encoder.to(device)


def begin_as(encoder: Encoder, start: Path) -> None:
    """Give an encoder the weights of another of its shape; BERT and ELECTRA name their modules alike."""
    encoder.backbone.load_state_dict(load_encoder(start).backbone.state_dict())
    encoder.name = str(start)  # where `load_masked_head` looks for the head


@dataclass(frozen=True, slots=True)
class Part:
    """One model of a run: its class in transformers, its backbone, and its head's weights by their names there."""

    kind: type[PreTrainedModel]
    encoder: Encoder
    head: Callable[[], dict[str, Tensor]]

    def save(self, folder: Path) -> None:
        """Write the model with its head, and its tokenizer, as transformers loads them."""
        with torch.random.fork_rng(devices=[]):  # a snapshot must not change what the run draws next
            model = self.kind(self.encoder.backbone.config)
        prefix = model.base_model_prefix
        weights = {f"{prefix}.{name}": value for name, value in self.encoder.backbone.state_dict().items()}
        model.load_state_dict(weights | self.head())
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as target:
            model.save_pretrained(target)
            self.encoder.reader.tokenizer.save_pretrained(target)


def bert(tokenizer: PreTrainedTokenizerFast, ids: list[list[int]], options: argparse.Namespace) -> None:
    """Pretrain a BERT on masked words."""
    encoder = new_encoder(bert_config(SHAPES[options.shape], len(tokenizer)), tokenizer, options.device)
    if options.start is not None:
        begin_as(encoder, options.start)
    head = load_masked_head(encoder)
    held, rest = divided(ids)
    parts = {"bert": Part(BertForMaskedLM, encoder, head.model.state_dict)}
    examples, evaluator = MaskedTexts(encoder, rest, head), MaskedEvaluator(encoder, held, head)
    pretrain("bert", encoder, examples, evaluator, parts, options)


def gpt2(tokenizer: PreTrainedTokenizerFast, ids: list[list[int]], options: argparse.Namespace) -> None:
    """Pretrain a GPT-2 on the next word."""
    encoder = new_encoder(gpt2_config(SHAPES[options.shape], tokenizer), tokenizer, options.device)
    if options.start is not None:
        begin_as(encoder, options.start)
    words = encoder.backbone.get_input_embeddings()
    parts = {"gpt2": Part(GPT2LMHeadModel, encoder, lambda: {"lm_head.weight": words.weight})}
    held, rest = divided(ids)
    pretrain("gpt2", encoder, CausalTexts(rest), CausalEvaluator(held), parts, options)


def electra(tokenizer: PreTrainedTokenizerFast, ids: list[list[int]], options: argparse.Namespace) -> None:
    """Pretrain a discriminator of replaced tokens, with its generator."""
    shape = SHAPES[options.shape]
    discriminator, generator = (
        new_encoder(electra_config(shape, len(tokenizer), generator=which), tokenizer, options.device)
        for which in (False, True)
    )
    pair = options.start is not None and (options.start / DISCRIMINATOR).is_dir()
    if pair:
        begin_as(discriminator, options.start / DISCRIMINATOR)
        begin_as(generator, options.start / GENERATOR)
    elif options.start is not None:
        begin_as(discriminator, options.start)
    generator.backbone.embeddings = discriminator.backbone.embeddings
    heads = ElectraHeads(discriminator, generator, load_masked_head(generator)).to(options.device)
    if pair:
        finished = ElectraForPreTraining.from_pretrained(options.start / DISCRIMINATOR)
        heads.replaced.load_state_dict(finished.discriminator_predictions.state_dict())
    held, rest = divided(ids)
    examples = MaskedTexts(discriminator, rest, heads, objective=partial(electra_loss, weight=options.detection_weight))
    parts = {
        DISCRIMINATOR: Part(
            ElectraForPreTraining,
            discriminator,
            lambda: {f"discriminator_predictions.{name}": value for name, value in heads.replaced.state_dict().items()},
        ),
        GENERATOR: Part(ElectraForMaskedLM, generator, heads.words.model.state_dict),
    }
    pretrain("electra", discriminator, examples, ElectraEvaluator(generator, heads, held), parts, options)


def pretrain(
    name: str,
    encoder: Encoder,
    examples: MaskedTexts | CausalTexts,
    evaluator: MaskedEvaluator | CausalEvaluator,
    parts: dict[str, Part],
    options: argparse.Namespace,
) -> None:
    """Train, or go on training, and write the models."""
    settings = TrainingSettings(
        epochs=max(1, round(options.steps * options.batch_size / len(examples))),
        batch_size=options.batch_size,
        learning_rate=options.rate,
        precision=options.precision,
        buckets=not options.packed,
    )
    total = settings.epochs * -(-len(examples) // settings.batch_size)
    if options.compile:
        for part in parts.values():
            part.encoder.backbone.compile(dynamic=not options.packed)

    def note(stage: int, loss: float, score: float) -> None:
        """Write a line of losses, and a snapshot after every `--keep` steps."""
        step = min(stage * options.every, total)
        figures = getattr(evaluator, "figures", {"words": -score})
        row = {"step": step, "training_loss": f"{loss:.4f}"} | {key: f"{value:.4f}" for key, value in figures.items()}
        print(time.strftime("%H:%M:%S"), json.dumps(row), flush=True)
        add_row(options.out / f"{name}-losses.csv", row)
        if options.keep and step % options.keep == 0:
            for folder, part in parts.items():
                part.save(options.out / "snapshots" / f"{folder}-{step}")

    checkpoint = options.out / f"{name}.checkpoint"
    state = TrainingRun(encoder, examples, evaluator, settings, seed=options.seed, evaluate_every=options.every).train(
        checkpoint=checkpoint, stage_done=note, task=name
    )
    for folder, part in parts.items():
        part.save(options.out / folder)
    write_json(
        options.out / f"{name}.json",
        {
            "training": settings.to_dict(),
            "shape": asdict(SHAPES[options.shape]),
            "seed": options.seed,
            "start": options.start.name if options.start else None,
            "detection_weight": options.detection_weight if name == "electra" else None,
            "text": options.digest,
            "pieces": len(examples),
            "tokens": sum(examples.lengths()) * settings.epochs,
            "steps": total,
            "seconds": state.seconds,
        },
    )
    checkpoint.unlink(missing_ok=True)


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row; rows of a run that got further before it was stopped go."""
    before = [old for old in read_rows(path) if int(old["step"]) < row["step"]] if path.exists() else []
    write_rows(path, [*before, row])


def divided(ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Divide into held-out pieces and the rest."""
    held = min(MOST_HELD_OUT, max(2, round(HELD_OUT * len(ids))))
    return ids[:held], ids[held:]


def text_ids(options: argparse.Namespace) -> tuple[PreTrainedTokenizerFast, list[list[int]]]:
    """Return the tokenizer of this text and its pieces in a random order, held out first."""
    lines = read_lines(options.text)
    options.digest = digest(lines)
    folder = options.out / "vocabulary"
    if not folder.exists():
        with replacing(folder) as target:
            learn_vocabulary(lines, VOCABULARY, MAX_LENGTH).save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    random.Random(0).shuffle(lines)
    return tokenizer, pieces(tokenizer, lines, MAX_LENGTH, packed=options.packed)


PARSER = new_parser(__doc__)
PARSER.add_argument("model", choices=("bert", "electra", "gpt2"))
PARSER.add_argument("--text", type=Path, nargs="+", required=True)
PARSER.add_argument("--out", type=Path, required=True, help="outside the repository")
PARSER.add_argument("--shape", choices=SHAPES, default="mini")
PARSER.add_argument("--steps", type=int, default=20_000, help="rounded to whole passes over the text")
PARSER.add_argument("--batch-size", type=int, default=128)
PARSER.add_argument("--rate", type=float, default=1.5e-3, help="peak; 5e-4 for a discriminator with --start")
PARSER.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
PARSER.add_argument("--device", default="cpu")
PARSER.add_argument("--packed", action="store_true", help="full pieces without padding: faster on a GPU")
PARSER.add_argument("--compile", action="store_true", help="compile the backbones with torch.compile")
PARSER.add_argument("--start", type=Path, help="weights to begin with: a BERT, or a folder with a finished pair")
PARSER.add_argument("--detection-weight", type=float, default=50.0, help="electra: beside the generator's loss")
PARSER.add_argument("--every", type=int, default=250, help="steps between two looks at the held-out text")
PARSER.add_argument("--keep", type=int, default=0, help="steps between two snapshots, a multiple of --every")
PARSER.add_argument("--seed", type=int, default=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and pretrain."""
    options = PARSER.parse_args(arguments)
    torch.manual_seed(options.seed)
    tokenizer, ids = text_ids(options)
    {"bert": bert, "electra": electra, "gpt2": gpt2}[options.model](tokenizer, ids, options)


if __name__ == "__main__":
    main()
