"""The view of an analysis: CKA and other measures by layer, before any training."""

from collections.abc import Sequence
from typing import Any

from truncate_kit.analysis.drop import NOT_PREDICTED
from truncate_kit.analysis.result import LayerProfile, called
from truncate_kit.data.retrieval import SEARCH_METRICS
from truncate_kit.naming import blocks_in_words
from truncate_kit.report.view import GREEN, LAYERS, ORANGE, SKY, Plot, Series, Table, View, number


def view_profile(profile: LayerProfile) -> View:
    """Show CKA, the untrained scores and the predicted drop."""
    sentences = [_best(profile), prediction(profile)]
    return View(
        key="cka",
        title="What the layers show",
        notes=_notes(profile),
        tables=(_layers(profile), _matrix(profile)),
        sentences=[*filter(None, sentences)],
        plots=_plots(profile),
    )


def prediction(profile: LayerProfile) -> str:
    """Say whether the last layers are expected to be worse."""
    if profile.drop is not None:
        return profile.drop.sentence
    return NOT_PREDICTED if profile.labels else "The model is too shallow to predict a drop."


def _best(profile: LayerProfile) -> str | None:
    """Name the layer that scores highest untrained, and the last one beside it."""
    measure, values = "Spearman", profile.spearman
    for metric, searched in [*profile.searched.items()][:1]:
        measure, values = SEARCH_METRICS[metric], searched
    scores = {layer: value for layer, value in enumerate(values or ()) if value is not None}
    if not scores:
        return None
    best, last = max(scores, key=scores.__getitem__), scores.get(profile.depth)
    place = f"layer {best}" + ", the last one" * (best == profile.depth)
    beside = "" if last is None or best == profile.depth else f", the last layer {last:.1f}"
    return f"Highest without further training: {place} ({measure} {scores[best]:.1f}{beside})."


def _notes(profile: LayerProfile) -> list[str]:
    """Say how the numbers came about."""
    left_out = [(profile.num_repeats, "repeats left out"), (profile.num_not_drawn, "more not drawn")]
    texts = [f"{profile.num_texts:,} distinct texts", *(f"{count:,} {what}" for count, what in left_out if count)]
    notes = [f"States of {'; '.join(texts)}."]
    if profile.kept_blocks is not None:
        ends = ", ".join(f"layer {layer} in block {block}" for layer, block in enumerate(profile.kept_blocks, 1))
        notes.append(f"Layers are those of {blocks_in_words(profile.kept_blocks, profile.full_depth)}: {ends}.")
    if profile.reference is None:
        middle = f"its own middle layer {profile.depth // 2}"
        notes.append(f"No reference: each layer is compared with {middle}, which is less sure.")
    elif profile.reference_depth != profile.depth:
        mapping = ", ".join(f"{layer}–{other}" for layer, other in enumerate(profile.cka.reference_layers))
        notes.append(f"The depths differ, so layers are compared at the same relative depth: {mapping}.")
    if profile.streamed:
        notes.append(f"The matrices and the outlier dimensions come from a sample of {profile.matrix_texts:,} texts.")
    if not_held := [str(layer) for layer, count in enumerate(profile.parameters) if count is None]:
        notes.append(f"No model of this family can be cut at layer {', '.join(not_held)}.")
    if profile.depth > 1 and len(set(profile.parameters[1:])) == 1:
        notes.append("The blocks of this model share their weights: cutting saves time, not parameters.")
    return notes


def _title(profile: LayerProfile) -> str:
    name = called(profile.model)
    return (
        name if profile.kept_blocks is None else f"{name}, {blocks_in_words(profile.kept_blocks, profile.full_depth)}"
    )


def _other(profile: LayerProfile) -> str:
    return called(profile.reference) if profile.reference else f"its own layer {profile.depth // 2}"


def _layers(profile: LayerProfile) -> Table:
    """Give each layer a row, the most wanted columns first."""
    without, high = profile.cka_without_outliers, profile.cka.high
    mapped = profile.reference is not None and profile.reference_depth != profile.depth
    layers = range(profile.depth + 1)

    def cells(values: Sequence[float | None], form: str) -> list[str]:
        return [number(values[layer] if layer < len(values) else None, form) for layer in layers]

    cka = cells(profile.cka.values, ".3f")
    if high is not None:
        for layer, (value, end) in enumerate(zip(profile.cka.values, high, strict=True)):
            cka[layer] += "" if value is None or end is None else f" ± {end - value:.3f}"
    columns = {"layer": [_name(profile, layer) for layer in layers]}
    if profile.spearman is not None:
        columns["Spearman"] = cells(profile.spearman, ".1f")
    columns |= {SEARCH_METRICS[metric]: cells(values, ".1f") for metric, values in profile.searched.items()}
    columns["CKA" if profile.cka.low is None else f"CKA ({100 * profile.level:g} %)"] = cka
    columns["parameters"] = cells(profile.parameters, ",")
    if mapped:
        columns["reference layer"] = [str(layer) for layer in profile.cka.reference_layers]
    if without is not None:
        columns[f"CKA without {profile.outliers} outliers"] = cells(without.values, ".3f")
    columns["Block Influence"] = cells(profile.block_influence, ".3f")
    columns["angular distance"] = cells(profile.angular_distance, ".3f")
    columns["effective rank"] = cells(profile.effective_rank, ".1f")
    columns["anisotropy"] = cells(profile.anisotropy, ".3f")
    how = f"{profile.estimator} {profile.kernel} CKA, {profile.pooling} pooling"
    title = f"{_title(profile)} against {_other(profile)}: {how}"
    return Table(title, [*columns], [*zip(*columns.values(), strict=True)])


def _name(profile: LayerProfile, layer: int) -> str:
    """Number a layer, with the block it ends in if some were left out, and whether a drop is expected there."""
    drop = profile.drop.from_layer if profile.drop is not None else None
    said = [f"block {profile.last_blocks[layer]}"] if layer and profile.kept_blocks is not None else []
    said += ["drop"] if drop is not None and layer >= drop else []
    return f"{layer} ({', '.join(said)})" if said else f"{layer}"


def _matrix(profile: LayerProfile) -> Table:
    other = "the model" if profile.reference is None else "the reference"
    rows = [(str(layer), *(number(value, ".3f") for value in row)) for layer, row in enumerate(profile.cka_matrix)]
    columns = ("layer", *map(str, range(len(rows[0]) - 1 if rows else 0)))
    return Table(f"CKA of every pair: rows are layers of the model, columns of {other}", columns, rows, detail=True)


def _plots(profile: LayerProfile) -> list[Plot]:
    """Draw CKA by layer with its interval, CKA of every pair of layers, and the untrained scores."""
    layers, drop, curve = range(profile.depth + 1), profile.drop, profile.cka
    shade = None
    if drop is not None and drop.from_layer is not None:
        shade = drop.from_layer - 0.5, profile.depth + 0.5, f"predicted drop, {drop.sureness}"
    ticks: dict[float, str] | None = None
    if profile.kept_blocks is not None:
        ticks = {layer: str(block) for layer, block in enumerate(profile.last_blocks)}
    along = LAYERS if ticks is None else "last block kept (0 = embeddings)"
    over: dict[str, Any] = {"shade": shade, "ticks": ticks, "whole": True, "file": "curve"}
    interval = f", {100 * profile.level:g} % interval" if curve.low is not None else ""
    series = [Series(layers, curve.values, f"CKA{interval}", low=curve.low or (), high=curve.high or ())]
    if profile.cka_without_outliers is not None:
        label = f"without the {profile.outliers} dimensions of largest variance"
        series.append(Series(layers, profile.cka_without_outliers.values, label, SKY, marker=".", line="--"))
    lowest = min([0.0, *(value for value in (*curve.values, *(curve.low or ())) if value is not None)])
    title = f"{_title(profile)} compared with {_other(profile)}, {profile.num_texts:,} texts"
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
