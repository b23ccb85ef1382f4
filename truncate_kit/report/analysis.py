"""The view of an analysis: CKA and other measures by layer, before any training."""

from collections.abc import Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from truncate_kit.analysis.drop import NOT_PREDICTED
from truncate_kit.analysis.result import LayerProfile, called
from truncate_kit.core.wording import NONE, blocks_in_words, listed, number
from truncate_kit.data.retrieval import SEARCH_METRICS
from truncate_kit.report.view import GREEN, LAYERS, ORANGE, SKY, Column, Plot, Series, Table, View


def view_layer_profile(profile: LayerProfile) -> View:
    """Show CKA, the untrained scores and the predicted drop."""
    expected = NOT_PREDICTED if profile.labels else "The model is too shallow to predict a drop."
    if profile.drop is not None:
        expected = profile.drop.sentence
    names = called(profile.model), f"its own layer {profile.depth // 2}"
    if profile.kept_blocks is not None:
        names = f"{names[0]}, {blocks_in_words(profile.kept_blocks, profile.full_depth)}", names[1]
    if profile.reference is not None:
        names = names[0], called(profile.reference)
    return View(
        key="cka",
        title="What the layers show",
        notes=_notes(profile),
        tables=(_layers(profile, *names), _matrix(profile)),
        sentences=[*_best(profile), expected],
        plots=_plots(profile, *names),
    )


def _best(profile: LayerProfile) -> list[str]:
    """Name the layer that scores highest untrained, and the last one beside it."""
    measure, values = "Spearman", profile.spearman
    for metric, searched in [*profile.searched.items()][:1]:
        measure, values = SEARCH_METRICS[metric], searched
    scores = {layer: value for layer, value in enumerate(values or ()) if value is not None}
    if not scores:
        return []
    best, last = max(scores, key=scores.__getitem__), scores.get(profile.depth)
    beside = "" if last is None or best == profile.depth else f", the last layer {last:.1f}"
    return [f"Highest without further training: layer {best} ({measure} {scores[best]:.1f}{beside})."]


def _notes(profile: LayerProfile) -> list[str]:
    """Say how the numbers came about."""
    left_out = [(profile.num_repeats, "repeats left out"), (profile.num_not_drawn, "more not drawn")]
    texts = [f"{profile.num_texts:,} distinct texts", *(f"{count:,} {what}" for count, what in left_out if count)]
    notes = [f"States of {'; '.join(texts)}."]
    if profile.reference is None:
        notes.append("No reference: each layer is compared with the middle one of the model, which is less sure.")
    elif profile.reference_depth != profile.depth:
        notes.append("The depths differ, so layers are compared at the same relative depth.")
    if profile.streamed:
        notes.append(f"The matrices and the outlier dimensions come from a sample of {profile.matrix_texts:,} texts.")
    if not_held := [layer for layer, count in enumerate(profile.parameters) if count is None]:
        notes.append(f"No model of this family can be cut at layer {listed(not_held)}.")
    if profile.depth > 1 and len(set(profile.parameters[1:])) == 1:
        notes.append("The blocks of this model share their weights: cutting saves time, not parameters.")
    return notes


def _layers(profile: LayerProfile, name: str, other: str) -> Table:
    """Give each layer a row, the most wanted columns first."""
    names, high, without = [], profile.cka.high, profile.cka_without_outliers
    for layer in range(profile.depth + 1):
        said = [f"block {profile.last_blocks[layer]}"] if layer and profile.kept_blocks is not None else []
        if profile.drop is not None and profile.drop.from_layer is not None and layer >= profile.drop.from_layer:
            said.append("drop")
        names.append(f"{layer} ({', '.join(said)})" if said else f"{layer}")
    cka = [number(value, ".3f") for value in profile.cka.values]
    for layer, (value, end) in enumerate(zip(profile.cka.values, high or (), strict=False)):
        cka[layer] += "" if value is None or end is None else f" ± {end - value:.3f}"
    mapped = profile.reference is not None and profile.reference_depth != profile.depth
    measures: list[tuple[str, Sequence[Any], str]] = [
        ("Spearman", profile.spearman or (), ".1f"),
        *((SEARCH_METRICS[metric], values, ".1f") for metric, values in profile.searched.items()),
        ("CKA" if profile.cka.low is None else f"CKA ({100 * profile.level:g} %)", cka, ""),
        ("parameters", profile.parameters, ","),
        ("reference layer", profile.cka.reference_layers if mapped else (), ""),
        (f"CKA without {profile.outliers} outliers", () if without is None else without.values, ".3f"),
        ("Block Influence", profile.block_influence, ".3f"),
        ("angular distance", profile.angular_distance, ".3f"),
        ("effective rank", profile.effective_rank, ".1f"),
        ("anisotropy", profile.anisotropy, ".3f"),
    ]
    cells = [[number(value, form) for value in values] for _, values, form in measures]
    how = f"{profile.estimator} {profile.kernel} CKA, {profile.pooling} pooling"
    rows = [*zip_longest(names, *cells, fillvalue=NONE)]
    columns: dict[str, Column] = {"layer": itemgetter(0)}
    columns |= {heading: itemgetter(place) for place, (heading, _, _) in enumerate(measures, 1)}
    return Table.of(f"{name} against {other}: {how}", rows, columns)


def _matrix(profile: LayerProfile) -> Table:
    other = "the model" if profile.reference is None else "the reference"
    rows = [(str(layer), *(number(value, ".3f") for value in row)) for layer, row in enumerate(profile.cka_matrix)]
    columns = ("layer", *map(str, range(len(rows[0]) - 1 if rows else 0)))
    return Table(f"CKA of every pair: rows are layers of the model, columns of {other}", columns, rows, detail=True)


def _plots(profile: LayerProfile, name: str, other: str) -> list[Plot]:
    """Draw CKA by layer with its interval, CKA of every pair of layers, and the untrained scores."""
    layers, drop, curve = range(profile.depth + 1), profile.drop, profile.cka
    over: dict[str, Any] = {"whole": True, "file": "curve"}
    if drop is not None and drop.from_layer is not None:
        over["shade"] = drop.from_layer - 0.5, profile.depth + 0.5, f"predicted drop, {drop.sureness}"
    along = LAYERS
    if profile.kept_blocks is not None:
        along = "last block kept (0 = embeddings)"
        over["ticks"] = {layer: str(block) for layer, block in enumerate(profile.last_blocks)}
    interval = f", {100 * profile.level:g} % interval" if curve.low is not None else ""
    series = [Series(layers, curve.values, f"CKA{interval}", low=curve.low or (), high=curve.high or ())]
    if profile.cka_without_outliers is not None:
        label = f"without the {profile.outliers} dimensions of largest variance"
        series.append(Series(layers, profile.cka_without_outliers.values, label, SKY, marker=".", line="--"))
    lowest = min([0.0, *(value for value in (*curve.values, *(curve.low or ())) if value is not None)])
    title = f"{name} compared with {other}, {profile.num_texts:,} texts"
    unit = f"CKA, {profile.estimator}, {profile.kernel}"
    plots = [Plot("cka", title, along, unit, series, y_range=(lowest, 1.05), **over)]
    if profile.cka_matrix:
        axes = f"layer of the {'model' if profile.reference is None else 'reference'}", "layer of the model"
        title = "CKA of every pair of layers"
        plots.append(Plot("matrix", title, *axes, heat=profile.cka_matrix, heat_range=(0.0, 1.0)))
    untrained = []
    if profile.spearman is not None:
        untrained.append(Series(layers, profile.spearman, f"Spearman, {profile.num_pairs:,} pairs", GREEN))
    for metric, values in [*profile.searched.items()][:1]:
        label = f"{SEARCH_METRICS[metric]}, {profile.num_queries:,} queries"
        untrained.append(Series(layers, values, label, ORANGE, marker="s"))
    if untrained:
        title = "Scores of the untrained states of each layer"
        plots.append(Plot("untrained", title, along, "score × 100", untrained, **over))
    return plots
