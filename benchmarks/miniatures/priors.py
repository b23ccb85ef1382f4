"""Figures 2b and 2c of the TMFT paper and its footnote 2 on the miniatures, and the columns of its Table 1.

    python -m benchmarks.miniatures.priors

Reads the scores of the study `priors.toml` in `one-seed.csv`, draws `priors.png`, and prints the table of the README.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.common import new_parser, print_table, read_rows, whole_axis
from truncate_kit.report.chart import write_figure

HERE = Path(__file__).parent
MODELS = {"mini-bert": "BERT", "mini-electra-discriminator": "discriminator", "mini-electra-generator": "generator"}
PRIORS = {"": "nothing first", ", words first": "words first", ", masked words first": "texts first"}
LAST, TASK = ", trained at layer 8", "stsb/en"
PARSER = new_parser(__doc__)
PARSER.add_argument("--out", type=Path, default=HERE, help="folder of the figure")

Row = dict[str, str]


def curves() -> dict[str, list[Row]]:
    """Return rows by the name of model and prior, layer after layer."""
    found: dict[str, list[Row]] = {}
    for row in read_rows(HERE / "one-seed.csv"):
        if row["task"] == TASK:
            found.setdefault(row["model"], []).append(row)
    return {name: sorted(rows, key=lambda row: int(row["layer"])) for name, rows in found.items()}


def best(rows: Sequence[Row]) -> Row:
    """Return the layer that is best on dev, the first of equal ones."""
    return max(rows, key=lambda row: float(row["dev"]))


def draw(found: dict[str, list[Row]], path: Path) -> None:
    """Draw the test score of each layer, a panel for each model."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    panels = figure.subplots(1, len(MODELS), sharey=True)
    for axes, (model, title) in zip(panels, MODELS.items(), strict=True):
        axes.set_title(title, loc="left")
        whole_axis(axes)
        for place, (prior, label) in enumerate(PRIORS.items()):
            for suffix, style, how in (("", "-", label), (LAST, ":", f"{label}, trained at the last layer")):
                rows = found[model + prior + suffix]
                scores = [float(row["test"]) for row in rows]
                axes.plot(
                    [int(row["layer"]) for row in rows],
                    scores,
                    style,
                    marker="os^"[place],
                    color=f"C{place}",
                    label=how,
                )
    panels[0].set_ylabel("test, Spearman × 100")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    write_figure(figure, path)


def chosen(found: dict[str, list[Row]]) -> list[list[str]]:
    """Return the rows of Table 1: the best-dev layer, its scores, and the last layer's test."""
    table = []
    for model, title in MODELS.items():
        for prior, label in PRIORS.items():
            rows = found[model + prior]
            row = best(rows)
            scores = [f"{row[split]} / {row[f'{split}_pearson']}" for split in ("dev", "test")]
            parameters = f"{int(row['parameters']) / 1e6:.2f}"
            table.append([title, label, row["layer"], parameters, *scores, rows[-1]["test"]])
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw and print."""
    options, found = PARSER.parse_args(arguments), curves()
    draw(found, options.out / "priors.png")
    columns = ("model", "first", "layer", "parameters, M", "dev", "test", "test of the last layer")
    print_table(columns, chosen(found))


if __name__ == "__main__":
    main()
