"""Frozen heads on real data: the paper's three steps beside plain states, for encoders and a small random GPT-2.

    python -m benchmarks.frozen.run --data FOLDER_OF_STSB_EN --texts SENTENCES --model NAME=FOLDER [--random-gpt2]

Each model's report goes to reports.jsonl beside this script, its figures to figures/, states and trials to work/ (a
killed run continues there); the table of all reports is printed as Markdown. The saved model is exported and scored
again as a graph.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2Model

from benchmarks.common import named_model, new_parser, print_table
from benchmarks.records import Records
from truncate_kit.data.pairs import PairSplits, complete_splits, load_pairs
from truncate_kit.data.tables import read_texts
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.methods.frozen.run import finetune_frozen
from truncate_kit.methods.frozen.settings import STEPS, FrozenReport, FrozenSettings
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder, resolve
from truncate_kit.report.chart import write_plots
from truncate_kit.report.view import points, view_of

HERE = Path(__file__).parent
REPORTS = Records(HERE / "reports.jsonl")
PARITY = 1e-4
STEP_NAMES = ("layer cosines + MLP", "siamese", "autoencoders")


def random_gpt2(folder: Path) -> Path:
    """Build six random blocks 192 wide with the tokenizer of the bundled BERT."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("mini-bert"))
    torch.manual_seed(0)
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    config = GPT2Config(n_embd=192, n_layer=6, n_head=6, n_positions=128, vocab_size=len(tokenizer), **ends)
    GPT2Model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def first_pairs(data: PairSplits, count: int | None) -> PairSplits:
    """Return the first pairs of each split; all of them for None."""
    if count is None:
        return data
    return replace(data, **{split: replace(pairs, pairs=pairs.pairs[:count]) for split, pairs in data.items()})


def parity(encoder: Encoder, folder: Path, texts: list[str]) -> float:
    """Return the largest difference of scores between torch and the graph."""
    graph = OnnxEncoder.load(folder)
    scores = [
        model.similarities(vectors[:-1], vectors[1:])
        for model, vectors in ((encoder, encoder.vectors(texts)), (graph, graph.vectors(texts)))
    ]
    return float((scores[0] - scores[1]).abs().max())


def measure(name: str, folder: str, options: argparse.Namespace) -> None:
    """Train, write report and figures, export, and score the graph as well."""
    encoder = load_encoder(folder, pooling=options.pooling, max_length=options.max_length)
    encoder.name = name
    data = first_pairs(complete_splits(load_pairs(options.data)), options.pairs)
    raw = read_texts(options.texts) if options.texts else None
    nli = load_pairs(options.nli, classes=True, divide=False).items()[0][1] if options.nli else None
    settings = FrozenSettings(
        layers=options.layers,
        steps=STEPS if raw else STEPS[:2],
        score=options.score,
        seeds=tuple(range(options.seeds)),
        epochs=options.epochs,
        raw_sentences=options.sentences,
        pretraining_epochs=options.pretraining_epochs,
    )
    label = f"{name}_{options.pooling}_{options.score}{'_nli' if nli else ''}"
    out = HERE / "work" / label
    report = finetune_frozen(encoder, data, out=out, settings=settings, raw=raw, nli=nli)
    # The worst errors name sentences, which stay with their data.
    REPORTS.add(label, replace(report, worst=()).to_dict())
    figures = HERE / "figures"
    for plot in view_of(report).plots:
        if not plot.file.endswith("own-units"):
            write_plots([plot], figures / f"{label}-{plot.file}.png")
    model = load_encoder(out / "frozen")
    export_onnx(model, out / "frozen")
    assert data.test is not None
    found, graph = (evaluate(one, data.test.pairs) for one in (model, OnnxEncoder.load(out / "frozen")))
    difference = parity(model, out / "frozen", data.test.texts())
    assert difference <= PARITY, difference
    print(
        f"{label}: chosen {report.chosen_step} on {report.chosen_layer} blocks, {report.seconds:.0f} s; Spearman in "
        f"torch {found.spearman:.2f}, as a graph {graph.spearman:.2f}; largest difference of a score {difference:.1e}"
    )


def row(report: FrozenReport) -> list[str]:
    """Return one model's line of the table, Spearman / Pearson on test."""
    plain = [(score, block) for block, score in enumerate(report.states, 1) if score is not None]
    cells = [
        report.model,
        f"{report.pooling}, {report.settings.score}{', NLI' if report.test_sentences_in_nli is not None else ''}",
        report.data,
    ]
    cells += [points(report.states[-1], None), f"{max(plain)[0]:.2f} (block {max(plain)[1]})" if plain else "–"]
    for step in STEPS:
        if step not in report.settings.steps:
            cells.append("–")
            continue
        both = [report.score(step, report.steps[step][-1], measure) for measure in ("test", "test_pearson")]
        cells.append(" / ".join(points(*span) for span in both))
    return cells


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", required=True)
PARSER.add_argument("--texts", help="raw sentences; without them the autoencoders are left out")
PARSER.add_argument("--nli")
PARSER.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
PARSER.add_argument("--random-gpt2", action="store_true")
PARSER.add_argument("--pooling", default="last")
PARSER.add_argument("--score", default="exp")
PARSER.add_argument("--layers", default="auto", help="all gives the curve over blocks kept")
PARSER.add_argument("--seeds", type=int, default=3)
PARSER.add_argument("--epochs", type=int, default=20)
PARSER.add_argument("--pretraining-epochs", type=int, default=10)
PARSER.add_argument("--sentences", type=int, default=20_000)
PARSER.add_argument("--max-length", type=int, default=64)
PARSER.add_argument("--pairs", type=int, help="the first pairs of each split only: for a first look")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each model, then print one row for every report there is."""
    options = PARSER.parse_args(arguments)
    for model in options.model:
        measure(*named_model(model), options)
    if options.random_gpt2:
        measure("random-gpt2", str(random_gpt2(HERE / "work" / "random-gpt2-model")), options)
    columns = ("model", "states, score", "data", "last block", "best block", *STEP_NAMES)
    print_table(columns, [row(FrozenReport.from_dict(report)) for report in REPORTS.values()])


if __name__ == "__main__":
    main()
