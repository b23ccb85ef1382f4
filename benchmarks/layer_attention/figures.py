"""Figures 1 to 3 of layer-wise attention pooling.

    python -m benchmarks.layer_attention.figures --data FOLDER_OF_SETS --model mini-bert=mini-bert

1: Spearman on STS Benchmark's test split of each layer of the untrained model, by CLS and by the mean. 2: the untrained
poolings CLS, mean, and mean over embeddings and last layer on each similarity set. 3: the weight of each layer for the
short and the long sentence that the paper names, after training with hard negatives as in `run.py`, with the last CLS
(a) and without it (b). Abstract: how far apart the vectors of different texts of that split lie, untrained and after
the same training. PNG files and the numbers behind them, figures.csv, go to figures/; trained models to work/.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.common import (
    named_model,
    new_parser,
    open_panel,
    plot_defined,
    print_table,
    whole_axis,
    write_panel,
    write_rows,
)
from benchmarks.layer_attention.run import OBJECTIVE, settings_of, training_rows
from truncate_kit.data.pairs import load_pairs
from truncate_kit.data.suites import find_sts
from truncate_kit.evaluation.graded import evaluate, score_sts
from truncate_kit.methods.contrast.run import finetune_contrastive, layer_weights
from truncate_kit.methods.contrast.settings import ContrastiveSettings, LayerWeights
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.report.chart import write_plots
from truncate_kit.report.view import BLUE, GREEN, VERMILION, view_of

HERE = Path(__file__).parent
SENTENCES = ("You should do it.", "People on motorcycles wearing racing gear ride around a racetrack.")
ATTENTIONS = {"3a": "layer-attention", "3b": "attention"}
Rows = list[dict[str, object]]


def by_layer(name: str, folder: str, data: Path, out: Path) -> Rows:
    """Draw figure 1."""
    test = load_pairs(data / "stsb/en").test
    assert test is not None
    figure, axes = open_panel(f"{name}, untrained: STS Benchmark test by layer")
    whole_axis(axes)
    rows: Rows = []
    for pooling, label, color in (("cls", "CLS", VERMILION), ("mean", "mean", BLUE)):
        encoder = load_encoder(folder, pooling=pooling)
        layers = range(encoder.depth + 1)
        # At the embeddings every text has the same CLS state.
        scores = [
            None if (pooling, layer) == ("cls", 0) else evaluate(truncate(encoder, layer), test.pairs).spearman
            for layer in layers
        ]
        plot_defined(axes, layers, scores, marker="o", color=color, label=label)
        rows += [
            {"figure": "1", "model": name, "what": label, "place": layer, "value": f"{score:.2f}"}
            for layer, score in zip(layers, scores, strict=True) if score is not None
        ]  # fmt: skip
    axes.set_ylabel("Spearman × 100")
    write_panel(figure, axes, out / f"{name}-1-layers.png")
    return rows


def by_set(name: str, folder: str, data: Path, out: Path) -> Rows:
    """Draw figure 2."""
    sets = find_sts(data)
    figure, axes = open_panel(f"{name}, untrained: poolings by set")
    rows: Rows = []
    kinds = (("CLS_last", "cls", VERMILION), ("AVG_last", "mean", BLUE), ("AVG_FL", "mean", GREEN))
    for place, (label, pooling, color) in enumerate(kinds):
        encoder = load_encoder(folder, pooling=pooling)
        if label == "AVG_FL":
            encoder.combine_layers((0, encoder.depth))
        scores = [row.values["Spearman"] or 0.0 for row in score_sts(encoder, sets, model=name).rows]
        axes.bar([number + 0.27 * (place - 1) for number in range(len(sets))], scores, 0.25, color=color, label=label)
        rows += [
            {"figure": "2", "model": name, "what": label, "place": one.name, "value": f"{score:.2f}"}
            for one, score in zip(sets, scores, strict=True)
        ]
    axes.set_xticks(range(len(sets)), [one.name for one in sets])
    axes.grid(alpha=0.3)
    axes.set_ylabel("Spearman × 100")
    write_panel(figure, axes, out / f"{name}-2-sets.png")
    return rows


def trained(name: str, folder: str, data: Path, out: Path, row: str, epochs: int) -> Encoder:
    """Train with hard negatives by a row of Table 2, once."""
    base = ContrastiveSettings(objective=OBJECTIVE, seeds=(0,), epochs=epochs, batch_size=64, evaluate_every=None)
    home = out.parent / "work" / f"{name}_{row}_figure"
    encoder = load_encoder(folder)
    encoder.name = name
    pairs, learned = load_pairs(data / "stsb/en"), training_rows(data)
    finetune_contrastive(encoder, learned, pairs, out=home, settings=settings_of(row, base))
    return load_encoder(home / "lean")


def spread(vectors: torch.Tensor) -> dict[str, float]:
    """Measure how far apart vectors (n, d) lie, over all pairs of different texts.

    The mean cosine, and the uniformity of arXiv:2005.10242, eq. 2: log of the mean of exp(−2‖x − y‖²) at length 1.
    """
    units = torch.nn.functional.normalize(vectors.double())
    cosines = (units @ units.T)[tuple(torch.triu_indices(len(units), len(units), 1))]
    return {"mean cosine": float(cosines.mean()), "uniformity": float((4 * cosines - 4).exp().mean().log())}


def by_distance(name: str, folder: str, data: Path, out: Path, epochs: int) -> Rows:
    """Measure anisotropy and uniformity, as in the abstract."""
    test = load_pairs(data / "stsb/en").test
    assert test is not None
    models = {"untrained, CLS": load_encoder(folder, pooling="cls"), "untrained, mean": load_encoder(folder)}
    for row in ("cls", *ATTENTIONS.values()):
        models[f"trained, {row}"] = trained(name, folder, data, out, row, epochs)
    return [
        {"figure": "abstract", "model": name, "what": what, "place": measure, "value": f"{value:.3f}"}
        for what, encoder in models.items() for measure, value in spread(encoder.vectors(test.texts())).items()
    ]  # fmt: skip


def by_sentence(name: str, folder: str, data: Path, out: Path, epochs: int) -> Rows:
    """Draw figure 3, a and b, in one picture."""
    rows: Rows = []
    texts: list[str] = []
    weights: list[tuple[float, ...]] = []
    for part, row in ATTENTIONS.items():
        found = layer_weights(trained(name, folder, data, out, row, epochs), SENTENCES)
        texts += [f"{part}: {text}" for text in found.texts]
        weights += found.weights
        rows += [
            {"figure": part, "model": name, "what": text, "place": layer, "value": f"{weight:.4f}"}
            for text, shares in zip(found.texts, found.weights, strict=True) for layer, weight in enumerate(shares)
        ]  # fmt: skip
    both = LayerWeights(model=name, texts=tuple(texts), weights=tuple(weights))
    write_plots(view_of(both).plots, out / f"{name}-3-weights.png")
    return rows


PARSER = new_parser(__doc__)
PARSER.add_argument("--data", type=Path, required=True)
PARSER.add_argument("--model", action="append", required=True, help="NAME=FOLDER, a bundled miniature, or a hub name")
PARSER.add_argument("--epochs", type=int, default=6, help="of the training behind figure 3; 0 leaves it out")
PARSER.add_argument("--check", action="store_true", help="results in a temporary folder")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figures of each model and write the numbers behind them."""
    options = PARSER.parse_args(arguments)
    out = (Path(tempfile.mkdtemp()) if options.check else HERE) / "figures"
    rows: Rows = []
    for name, folder in map(named_model, options.model):
        rows += by_layer(name, folder, options.data, out) + by_set(name, folder, options.data, out)
        if options.epochs:
            rows += by_sentence(name, folder, options.data, out, options.epochs)
            rows += by_distance(name, folder, options.data, out, options.epochs)
        write_rows(out / "figures.csv", rows)
    print_table(list(rows[0]), [list(map(str, row.values())) for row in rows])


if __name__ == "__main__":
    main()
