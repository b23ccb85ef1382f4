"""Frozen heads on real data: the paper's three steps beside plain states, for encoders and a small random GPT-2.

    python benchmarks/frozen/run.py --data FOLDER_OF_STSB_EN --texts SENTENCES --model NAME=FOLDER [--random-gpt2]

Each model's report goes to reports/ beside this script, states and trials to work/ (a killed run continues there); the
table of all reports is printed as Markdown. The saved model is exported and scored again as a graph.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2Model

from truncate_kit.data import complete_splits, load_pairs, read_texts
from truncate_kit.encoders import Encoder, load_encoder, resolve
from truncate_kit.export import OnnxEncoder, export_onnx
from truncate_kit.frozen import FrozenReport, FrozenSettings, finetune_frozen
from truncate_kit.frozen.settings import STEPS
from truncate_kit.report.frozen_figures import draw_correlations, draw_depths, draw_reconstruction
from truncate_kit.sweep.card import points
from truncate_kit.training.evaluation import evaluate

HERE = Path(__file__).parent
PARITY = 1e-4


def random_gpt2(folder: Path) -> Path:
    """Six random blocks 192 wide behind the tokenizer of the bundled BERT miniature: what no training knows."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("mini-bert"))
    torch.manual_seed(0)
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    config = GPT2Config(n_embd=192, n_layer=6, n_head=6, n_positions=128, vocab_size=len(tokenizer), **ends)
    GPT2Model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def parity(encoder: Encoder, folder: Path, texts: list[str]) -> float:
    """Largest difference of the scores of neighbouring texts between torch and the graph."""
    graph = OnnxEncoder.load(folder)
    scores = [
        model.similarities(vectors[:-1], vectors[1:])
        for model, vectors in ((encoder, encoder.encode(texts)), (graph, graph.encode(texts)))
    ]
    return float((scores[0] - scores[1]).abs().max())


def measure(name: str, folder: str, told: argparse.Namespace) -> None:
    """Train, write report and figures, export, and score the graph as well."""
    encoder = load_encoder(folder, pooling=told.pooling, max_length=told.max_length)
    encoder.name = name
    data = complete_splits(load_pairs(told.data))
    if told.pairs is not None:  # a first look
        data = replace(
            data, **{split: replace(pairs, pairs=pairs.pairs[: told.pairs]) for split, pairs in data.items()}
        )
    raw = read_texts(told.texts) if told.texts else None
    nli = load_pairs(told.nli, classes=True).items()[0][1] if told.nli else None
    settings = FrozenSettings(
        layers=told.layers,
        steps=STEPS if raw else STEPS[:2],
        score=told.score,
        seeds=tuple(range(told.seeds)),
        epochs=told.epochs,
        raw_sentences=told.sentences,
        pretraining_epochs=told.pretraining_epochs,
    )
    label = f"{name}_{told.pooling}_{told.score}{'_nli' if nli else ''}"
    out = HERE / "work" / label
    report = finetune_frozen(encoder, data, out=out, settings=settings, raw=raw, nli=nli)
    # The worst errors name sentences, which stay with their data.
    replace(report, worst=()).write(HERE / "reports" / f"{label}.json")
    draw_correlations(report, HERE / "reports" / f"{label}-correlation.png")
    if report.reconstruction is not None:
        draw_reconstruction(report, report.reconstruction, HERE / "reports" / f"{label}-reconstruction.png")
    if len(report.layers) > 1:
        draw_depths(report, HERE / "reports" / f"{label}-blocks.png")
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


def row(report: FrozenReport) -> str:
    """One model's line of the table: plain states, then each step on the most blocks; Spearman / Pearson on test."""
    plain = [(score, block) for block, score in enumerate(report.states, 1) if score is not None]
    cells = [report.model, f"{report.pooling}, {report.settings.score}{', NLI' if report.nli else ''}", report.data]
    cells += [points(report.states[-1], None), f"{max(plain)[0]:.2f} (block {max(plain)[1]})" if plain else "–"]
    for step in STEPS:
        if step not in report.settings.steps:
            cells.append("–")
            continue
        both = [report.score(step, report.layers[-1], measure) for measure in ("test", "test_pearson")]
        cells.append(" / ".join(points(span.mean, span.std) for span in both))
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure each model, then print one row for every report there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--texts", help="raw sentences; without them the autoencoders are left out")
    parser.add_argument("--nli")
    parser.add_argument("--model", action="append", default=[], help="NAME=FOLDER, a bundled miniature, or a hub name")
    parser.add_argument("--random-gpt2", action="store_true")
    parser.add_argument("--pooling", default="last")
    parser.add_argument("--score", default="exp")
    parser.add_argument("--layers", default="auto", help="all gives the curve over blocks kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pretraining-epochs", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--pairs", type=int, help="the first pairs of each split only: for a first look")
    told = parser.parse_args()
    for model in told.model:
        name, _, folder = model.rpartition("=")
        measure(name or Path(folder).name, folder, told)
    if told.random_gpt2:
        measure("random-gpt2", str(random_gpt2(HERE / "work" / "random-gpt2-model")), told)
    print("| model | states, score | data | last block | best block | layer cosines + MLP | siamese | autoencoders |")
    print("|" + "---|" * 8)
    for path in sorted((HERE / "reports").glob("*.json")):
        print(row(FrozenReport.read(path)))


if __name__ == "__main__":
    main()
