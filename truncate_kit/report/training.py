"""Show analysis, fine-tuning, contrast, frozen heads, combinations and cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from truncate_kit.core.errors import capitalized, counted
from truncate_kit.core.workspace import blocks_in_words, layers_in_words, listed, place_in_words
from truncate_kit.report.view import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LAYERS,
    NONE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Column,
    Plot,
    Series,
    Table,
    View,
    number,
    overlap_warning,
    points,
    ring,
    vocabulary_sentences,
)

if TYPE_CHECKING:
    from truncate_kit.analysis.result import LayerProfile
    from truncate_kit.core.vectors import Span
    from truncate_kit.methods.bert_lc.settings import CombinationReport
    from truncate_kit.methods.contrast.settings import ContrastiveResult, ContrastiveSettings, LayerWeights
    from truncate_kit.methods.frozen.settings import FrozenReport
    from truncate_kit.methods.tmft.settings import Certainty, LayerScores, SweepResult
    from truncate_kit.training.cutting import CutResult
    from truncate_kit.training.settings import Trial

CODES = (
    "The vectors are codes that a trained score compares; evaluate and exported graphs use this score, a search by "
    "cosine does not."
)
RANKINGS = {"probe": "a linear map on frozen states", "multi-exit": "one epoch of all layers at once"}
_SIDES = {"dev": ORANGE, "test": BLUE}
_LONGEST = 60  # maximum characters of a sentence in a table or figure


def view_layer_profile(profile: LayerProfile) -> View:
    """Show CKA, the untrained scores and the predicted drop."""
    from truncate_kit.analysis.result import NOT_PREDICTED, called
    from truncate_kit.core.results import SEARCH_METRICS

    name, other = called(profile.model), f"its own layer {profile.depth // 2}"
    if profile.kept_blocks is not None:
        name = f"{name}, {blocks_in_words(profile.kept_blocks, profile.full_depth)}"
    if profile.reference is not None:
        other = called(profile.reference)
    scores: Scores = {"Spearman": profile.spearman} if profile.spearman else {}
    scores |= {SEARCH_METRICS[metric]: values for metric, values in profile.searched.items()}
    expected = NOT_PREDICTED if profile.labels else "The model is too shallow to predict a drop."
    sentences = [_best(profile, scores), expected if profile.drop is None else profile.drop.sentence]
    tables = [_layers(profile, f"{name} against {other}", scores), _matrix(profile)]
    plots = _profile_plots(profile, f"{name} compared with {other}", scores)
    return View("cka", "What the layers show", tables, sentences, notes=_profile_notes(profile), plots=plots)


Scores = dict[str, tuple[float | None, ...]]


def _best(profile: LayerProfile, scores: Scores) -> str | None:
    measure = next((name for name in scores if name != "Spearman"), "Spearman")
    known = {layer: value for layer, value in enumerate(scores.get(measure, ())) if value is not None}
    if not known:
        return None
    best, last = max(known, key=known.__getitem__), known.get(profile.depth)
    beside = "" if last is None or best == profile.depth else f", the last layer {last:.1f}"
    return f"Highest without further training: layer {best} ({measure} {known[best]:.1f}{beside})."


def _profile_notes(profile: LayerProfile) -> list[Any]:
    shared = profile.depth > 1 and len(set(profile.parameters[1:])) == 1
    return [
        f"Computed on {profile.num_texts:,} distinct texts.",
        profile.reference is None
        and "No `reference`: each layer is compared with the model's middle layer. A model of the same depth without a "
        "drop is a more reliable reference.",
        profile.num_pairs
        and profile.cka.low is None
        and "No interval of CKA: it needs more texts, or pairs that have fewer texts in common.",
        profile.streamed and f"CKA matrix and outlier dimensions are from a sample of {profile.matrix_texts:,} texts.",
        shared and "The blocks of this model share their weights: cutting saves time, not parameters.",
    ]


def _layers(profile: LayerProfile, title: str, scores: Scores) -> Table:
    drop, curve, without = profile.drop, profile.cka, profile.cka_without_outliers

    def named(layer: int) -> str:
        notes = [f"block {profile.last_blocks[layer]}"] if layer and profile.kept_blocks is not None else []
        notes += ["drop"] if drop and drop.from_layer is not None and layer >= drop.from_layer else []
        return f"{layer} ({', '.join(notes)})" if notes else str(layer)

    def cka(layer: int) -> str:
        value, end = curve.values[layer], curve.high[layer] if curve.high else None
        return number(value, ".3f") + ("" if value is None or end is None else f" ± {end - value:.3f}")

    def of(values: Sequence[float | None], form: str) -> Column:
        return lambda layer: number(values[layer], form) if layer < len(values) else None

    columns: dict[str, Column] = {"layer": named, **{name: of(values, ".1f") for name, values in scores.items()}}
    columns |= {"CKA" if curve.low is None else f"CKA ({100 * profile.level:g} %)": cka}
    columns["parameters"] = of(profile.parameters, ",")
    if profile.reference is not None and profile.reference_depth != profile.depth:
        columns["reference layer"] = of(curve.reference_layers, "")
    columns[f"CKA without {profile.outliers} outliers"] = of(() if without is None else without.values, ".3f")
    columns["Block Influence"] = of(profile.block_influence, ".3f")
    columns["angular distance"] = of(profile.angular_distance, ".3f")
    columns |= {"effective rank": of(profile.effective_rank, ".1f"), "anisotropy": of(profile.anisotropy, ".3f")}
    method = f"{profile.estimator} {profile.kernel} CKA, {profile.pooling} pooling"
    return Table.of(f"{title}: {method}", range(profile.depth + 1), columns)


def _matrix(profile: LayerProfile) -> Table:
    other = "the model" if profile.reference is None else "the reference"
    rows = [(str(layer), *(number(value, ".3f") for value in row)) for layer, row in enumerate(profile.cka_matrix)]
    columns = ("layer", *map(str, range(len(rows[0]) - 1 if rows else 0)))
    return Table(f"CKA of every pair: rows are layers of the model, columns of {other}", columns, rows, detail=True)


def _profile_plots(profile: LayerProfile, title: str, scores: Scores) -> list[Any]:
    layers, drop, curve, without = range(profile.depth + 1), profile.drop, profile.cka, profile.cka_without_outliers
    over: dict[str, Any] = {"whole": True, "file": "curve"}
    if drop is not None and drop.from_layer is not None:
        over["shade"] = drop.from_layer - 0.5, profile.depth + 0.5, f"predicted drop, {drop.sureness}"
    along = LAYERS
    if profile.kept_blocks is not None:
        along = "last block kept (0 = embeddings)"
        over["ticks"] = {layer: str(block) for layer, block in enumerate(profile.last_blocks)}
    interval = f", {100 * profile.level:g} % interval" if curve.low is not None else ""
    series = [Series(layers, curve.values, f"CKA{interval}", low=curve.low or (), high=curve.high or ())]
    if without is not None:
        label = f"without the {profile.outliers} dimensions of largest variance"
        series.append(Series(layers, without.values, label, SKY, marker=".", line="--"))
    lowest = min([0.0, *(value for value in (*curve.values, *(curve.low or ())) if value is not None)])
    unit, axis = f"CKA, {profile.estimator}, {profile.kernel}", "model" if profile.reference is None else "reference"
    axes, heat = (f"layer of the {axis}", "layer of the model"), profile.cka_matrix
    untrained = []
    for (name, values), color, marker in zip(scores.items(), (GREEN, ORANGE, PURPLE, BLUE), "os^v", strict=False):
        count = f"{profile.num_pairs:,} pairs" if name == "Spearman" else f"{profile.num_queries:,} queries"
        untrained.append(Series(layers, values, f"{name}, {count}", color, marker=marker))
    shown = "Scores of the untrained states of each layer"
    return [
        Plot(f"{title}, {profile.num_texts:,} texts", along, unit, series, y_range=(lowest, 1.05), **over),
        heat and Plot("CKA of every pair of layers", *axes, heat=heat, heat_range=(0.0, 1.0)),
        untrained and Plot(shown, along, "score × 100", untrained, **over),
    ]


def view_sweep_result(result: SweepResult) -> View:
    """Show the scores by layer, the search, and the chosen layer."""
    from truncate_kit.analysis.result import NOT_PREDICTED
    from truncate_kit.training.settings import OBJECTIVES

    predicted = result.prediction and result.prediction.sentence
    if result.prediction is None and result.settings.layers in ("auto", "all") and result.full.layer > 1:
        predicted = NOT_PREDICTED
    share = 100 * result.search_cost / max(1, result.exhaustive_cost)
    columns: dict[str, Column] = {"layer": result.row_name}
    for name, row in result.rankings.items():
        columns[RANKINGS.get(name, name)] = dict(row).get
    ranked = sorted({layer for row in result.rankings.values() for layer, _ in row})
    tables = [
        sweep_table(result),
        Table.of(f"Cheap rankings of the search on dev, {result.metric}", ranked, columns, detail=True),
        _trials(f"All trials, search trials first; {result.metric}", (*result.search, *result.trials), result),
    ]
    sentences = [
        result.choice,
        result.certainty and certainty_in_words(result.certainty),
        result.search_cost and f"The search cost {share:.0f} % of trying every layer with every seed.",
    ]
    training, notes = result.training, [predicted, result.seen_before]
    recipe = f"Training: {OBJECTIVES[training.objective].card}; batch {training.batch_size}, {training.precision}."
    plots = [_sweep_plot(result)]
    return View("layers", "Which layer", tables, sentences, notes=notes, details=[recipe], plots=plots)


def certainty_in_words(sure: Certainty) -> str:
    """Describe which layers cannot be told apart on dev, and which were not compared."""
    by = f"95 %, over {sure.unit} and seeds" if sure.seeds > 1 else "one seed; another may choose another layer"
    if sure.warning:
        sentence = sure.warning
    elif len(sure.alike) > 1:
        sentence = f"Layers {listed(sure.alike)} cannot be told apart on dev ({by}); {sure.alike[0]} is the smallest."
    else:
        sentence = f"Layer {sure.best} is better on dev than every other layer that was compared ({by})."
    for layers, why in ((sure.not_trained, "not fully trained"), (sure.fewer_seeds, "trained with fewer seeds")):
        sentence += f" Not compared, {why}: {layers_in_words(layers)}." if layers else ""
    return sentence


def seeds_in_words(rows: Sequence[LayerScores]) -> str:
    """Count the seeds in words: "3 seeds", or "2 to 4 seeds" if rows differ."""
    least, most = min(len(row.seeds) for row in rows), max(len(row.seeds) for row in rows)
    return counted(least, "seed") if least == most else f"{least} to {most} seeds"


def sweep_table(result: SweepResult, marked: int | None = None) -> Table:
    """Return scores by layer; `marked` is a layer, by default the chosen one."""
    ends = {result.chosen: " (chosen)"}
    ends[result.full.layer] = f"{ends.get(result.full.layer, '')} (full model)"
    counts = f"{seeds_in_words(result.rows)}, {counted(result.training.epochs, 'epoch')}"
    columns: dict[str, Column] = {
        "layer": lambda row: f"{result.row_name(row.layer)}{ends.get(row.layer, '')}",
        "parameters": "parameters",
        **{"dev": "dev:±", "test": "test:±", "test Pearson": "test_pearson:±"},
    }
    best = next(row for row in result.rows if row.layer == (result.chosen if marked is None else marked))
    title = f"{result.metric}; {counts}, peak learning rate {result.learning_rate:g}"
    return Table.of(title, result.rows, columns, marked=best)


def _trials(title: str, trials: Sequence[Trial], sweep: SweepResult | None = None) -> Table:
    columns: dict[str, Column] = {
        "layer": lambda trial: str(trial.layer) if sweep is None else sweep.row_name(trial.layer),
        "seed": lambda trial: str(trial.seed),
        "epochs": lambda trial: f"{trial.epochs_run} of {trial.epochs}",
        **{"best epoch": "best_epoch", "dev": "dev", "test": "test", "seconds": "seconds:,.1f"},
    }
    return Table.of(title, trials, columns, detail=True)


def _sweep_plot(result: SweepResult) -> Plot:
    depth, series, faint = result.full.layer, list[Series](), "dev in the search, {}".format
    style: dict[str, Any] = {"color": GREY, "width": 0.8}
    for marker, (name, ranking) in zip("v^", result.rankings.items(), strict=False):
        label, (layers, scores) = faint(RANKINGS.get(name, name)), zip(*ranking, strict=True)
        series.append(Series(layers, scores, label, marker=marker, line="--", size=4, **style))
    for epochs in sorted({trial.epochs_run for trial in result.search}):
        seen = sorted((trial.layer, trial.dev) for trial in result.search if trial.epochs_run == epochs)
        layers, scores = zip(*seen, strict=True)
        series.append(Series(layers, scores, faint(counted(epochs, "epoch")), marker=".", line=":", **style))
    series += layer_series(result.rows, gaps=not result.rankings)
    series.append(ring(result.chosen, result.lean.test, f"chosen: {result.place(result.chosen)}"))
    over: dict[str, Any] = {"levels": ((result.full.test, "full model, test", BLUE),), "whole": True, "file": "curve"}
    along, last, of = LAYERS, depth, ""
    if result.blocks is not None:
        along, last = "last block that is kept (0 = embeddings)", len(result.blocks)
        of = f", {blocks_in_words(result.blocks, depth)},"
        over["ticks"] = {**dict(enumerate(map(str, (0, *result.blocks)))), depth: f"all {depth}"}
    if result.prediction is not None and result.prediction.from_layer is not None:
        over["shade"] = result.prediction.from_layer - 0.5, last + 0.5, "predicted drop"
    title = f"{Path(result.model).name}{of} by layer: scores on {result.data}"
    return Plot(title, along, f"score in points ({result.metric})", series, **over)


def layer_series(rows: Sequence[LayerScores], *, gaps: bool = True) -> list[Series]:
    """Return curves of dev and test scores by layer; `gaps` adds dotted lines across untrained layers."""
    drawn, several = list[Series](), any(len(row.seeds) > 1 for row in rows)
    layers, known = [row.layer for row in rows], {row.layer: row for row in rows}
    every = range(layers[0], layers[-1] + 1)  # solid lines break at untrained layers
    for side, color in _SIDES.items():
        label = f"{side}, mean ± deviation over {seeds_in_words(rows)}" if several else f"{side}, one seed"
        if gaps and any(there - here > 1 for here, there in pairwise(layers)):
            drawn.append(Series(layers, [getattr(row, side) for row in rows], "", color, marker="", line=":"))
        means, spread = ([getattr(known.get(layer), name, None) for layer in every] for name in (side, f"{side}_std"))
        drawn.append(Series(every, means, label, color, spread=spread))
    return drawn


_POOLINGS = {
    "cls": "CLS",
    "mean": "mean",
    "first-last": "mean over embeddings and last layer",
    "mean-first-last": "mean of the last layer and mean over embeddings and last layer",
    "concat": "CLS and mean of the last layer",
}


def pooling_words(settings: ContrastiveSettings) -> str:
    """Describe the pooling that training used."""
    if settings.pooling == "layer-attention":
        over = {"both": "CLS over means", "cls": "CLS over CLS", "mean": "means over means"}[settings.over]
        parts = [over, *["with the last CLS"] * settings.last_cls, *["equations as printed"] * settings.literal]
        words = f"layer-wise attention ({', '.join(parts)})"
    else:
        words = _POOLINGS[settings.pooling]
    words += ", through a tanh layer" if settings.mlp else ""
    return words if settings.keep_pooler else f"{words}; removed after training"


def view_contrastive_result(result: ContrastiveResult) -> View:
    """Show the final scores, and the dev scores during training."""
    from truncate_kit.training.settings import OBJECTIVES

    chosen, settings, series = result.chosen, result.settings, list[Series]()
    for trial, color in zip(result.trials, cycle((BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)), strict=False):
        label = f"seed {trial.seed}" + ", saved" * (trial.seed == result.chosen_seed)
        evaluations, best = range(1, len(trial.dev_scores) + 1), trial.best_epoch
        series.append(Series(evaluations, trial.dev_scores, label, color, marker="", width=1))
        series.append(Series([best], [trial.dev_scores[best - 1]], "", color, line=""))
    columns: dict[str, Column] = {
        "pooling": lambda _: pooling_words(result.settings),
        "layer": lambda _: f"{result.layer} of {result.depth}",
        **{"parameters": "parameters", "dev": "dev:±", "test": "test:±"},
        "best evaluation": lambda _: f"{chosen.best_epoch} of {len(chosen.dev_scores)}",
    }
    counts = f"{counted(len(result.trials), 'seed')}, {counted(result.epochs, 'epoch')}"
    rate = f"batch {result.batch_size}, peak learning rate {result.learning_rate:g}"
    title = f"{settings.objective}, Spearman × 100 on {result.data}; {counts}, {rate}"
    weight = settings.hard_negative_weight
    recipe = f"Training: {OBJECTIVES[settings.objective].card}, temperature {settings.temperature:g}"
    seen = f"{result.seen:,} of {result.test_texts:,} distinct test texts are among the training texts."
    drawn = "Dev score of each seed during training; points mark the saved weights"
    return View(
        "contrast",
        "Contrastive training",
        [Table.of(title, [result], columns), _trials("Every seed, Spearman × 100", result.trials)],
        [f"{result.rows.rstrip('.')}."],
        notes=[result.seen and seen, result.seen_before],
        details=[f"{recipe}; {weight:g} added to the logit of a row's own negative." if weight else f"{recipe}."],
        plots=[Plot(drawn, "evaluation on dev", "Spearman × 100 on dev", series, whole=True)],
    )


def view_layer_weights(weights_of: LayerWeights) -> View:
    """Show the attention weight of each layer for some sentences."""
    shares = [[100 * weight for weight in weights] for weights in weights_of.weights]
    low, high = min(map(min, shares)), max(map(max, shares))
    # Colors start at 0, or at the lowest weight if some are negative or all are similar.
    start = low if low < 0 or (low > high / 2 and high - low >= 0.1) else 0.0
    title, rows = f"{Path(weights_of.model).name}: weight of each layer in %", [*map(_shortened, weights_of.texts)]
    plot = Plot(title, LAYERS, "", heat=shares, heat_range=(start, high), rows=rows, file="attention")
    return View("attention", "Attention over layers", plots=[plot])


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def view_frozen_report(report: FrozenReport) -> View:
    """Show scores of heads over frozen states, and the largest errors."""
    from truncate_kit.methods.frozen.settings import AUTOENCODER

    losses, unseen = report.reconstruction, report.test_sentences_in_nli
    once = AUTOENCODER in report.steps and report.num_seeds > 1
    columns: dict[str, Column] = {
        "pair": lambda pair: f"{_shortened(pair[0])} | {_shortened(pair[1])}",
        "score": lambda pair: pair[2],
        "predicted": lambda pair: pair[3],
        "error": lambda pair: f"{pair[4]:+.2f}",
    }
    title = "Largest errors on test; scores from 0 to 1, mean difference on dev subtracted"
    sentences = [
        f"Chosen by dev: {report.chosen_step} on {report.chosen_layer} of {report.depth} blocks, seed "
        f"{report.chosen_seed}.",
        overlap_warning(report.overlap) or "Train and test share no sentence.",
        unseen is not None and f"NLI contains {unseen:,} of {report.overlap.test_sentences:,} distinct test sentences.",
        CODES,
    ]
    notes = [
        losses
        and f"The autoencoders were trained on {losses.num_sentences:,} raw sentences; {losses.left_out:,} that are in "
        "dev or test were excluded.",
        once and "The autoencoders were trained once, with the first seed; the heads with every seed.",
        *report.notes,
    ]
    tables = [_steps(report), Table.of(title, report.worst, columns, detail=True)]
    plots = _frozen_plots(report)
    return View("heads", "Heads over frozen states", tables, sentences, notes=notes, plots=plots)


def _steps(report: FrozenReport) -> Table:
    known = [(score, block) for block, score in enumerate(report.states, 1) if score is not None]
    rows = list[tuple[str, ...]]()
    for name, (score, block) in (("last block", known[-1]), ("best on test", max(known))) if known else ():
        rows.append((f"untrained states of block {block} ({name})", "1", "0", NONE, points(score), NONE))
    chosen = len(rows) + list(report.groups).index((report.chosen_step, report.chosen_layer))
    for (step, layer), trials in report.groups.items():
        spans = [report.score(step, layer, measure) for measure in ("dev", "test", "test_pearson")]
        trained = f"{trials[0].parameters:,}"
        rows.append((step, str(layer), trained, *(points(*span) for span in spans)))
    title = f"{report.model} on {report.data}: Spearman × 100, {counted(report.num_seeds, 'seed')}"
    return Table(title, ("heads", "blocks", "trained", "dev", "test", "test Pearson"), rows, marked=chosen)


def _frozen_plots(report: FrozenReport) -> list[Plot]:
    from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, SIAMESE

    colors, unit = {COSINE: GREY, SIAMESE: ORANGE, AUTOENCODER: BLUE}, "Spearman × 100 on test"
    blocks = range(1, len(report.states) + 1)

    def plot(file: str, subject: str, along: str, unit: str, series: list[Series], **options: Any) -> Plot:
        title = f"{Path(report.model).name}, frozen: {subject} ({report.data})"
        return Plot(title, along, unit, series, whole=True, file=file, **options)

    alone = [Series(blocks, report.states, "untrained states", VERMILION)]
    label = "untrained states, on the training pairs"
    alone.append(Series(blocks, report.train_states, label, VERMILION, marker=".", line="--"))
    for step, layers in report.steps.items():
        if step != COSINE:  # its codes are the states
            columns = zip(*(trial.blocks for trial in report.groups[step, layers[-1]]), strict=True)
            means = [None if None in column else fmean(column) for column in columns]
            alone.append(Series(range(1, len(means) + 1), means, f"codes, {step}", colors[step]))
    together = report.score(report.chosen_step, report.chosen_layer, "test")[0]
    levels = ((together, "all blocks together, chosen heads", INK),)
    plots = [plot("correlation", "similarity by each block alone", "block", unit, alone, levels=levels)]
    if (codes := report.reconstruction) is not None:
        scales: list[tuple[str, Sequence[float], str, dict[str, Any]]] = [
            ("reconstruction", codes.losses, "(1 = predicting the mean)", {"y_range": (0.0, 1.1 * max(codes.losses))}),
            ("reconstruction-own-units", codes.own_losses, "in the units of the states", {"logarithmic": True}),
        ]
        for file, losses, scale, options in scales:
            series = []
            for width, color in zip(sorted(set(codes.code_widths)), (GREEN, PURPLE), strict=False):
                places = [block for block, own in enumerate(codes.code_widths, 1) if own == width]
                label = f"codes of {width} of {report.width} numbers"
                series.append(Series(places, [losses[block - 1] for block in places], label, color))
            subject = "reconstruction error of the states of each block"
            plots.append(plot(file, subject, "block", f"mean squared error {scale}", series, **options))
    if any(len(layers) > 1 for layers in report.steps.values()):
        series = []
        for step, layers in report.steps.items():
            spans = {layer: report.score(step, layer, "test") for layer in layers}
            series.append(_means(step, spans, report.num_seeds, "seed", colors[step]))
        plots.append(plot("blocks", "heads on the lowest blocks", "blocks kept", unit, series))
    return plots


def _means(name: str, spans: dict[int, Span], number: int, unit: str, color: str, shift: float = 0.0) -> Series:
    label = name if number == 1 else f"{name}, mean ± deviation over {counted(number, unit)}"
    spread = [std for _, std in spans.values()] if number > 1 else ()
    means = [mean for mean, _ in spans.values()]
    return Series([place + shift for place in spans], means, label, color, spread=spread)


def view_combination_report(report: CombinationReport) -> View:
    """Show the best combination of layers by size, and the effect of each layer."""

    def sides(span_of: Callable[[Any, str], Span | None]) -> dict[str, Column]:
        def column(side: str) -> Column:
            return lambda row: None if (span := span_of(row, side)) is None else points(*span)

        return {side: column(side) for side in _SIDES}

    best, first = "best combination", report.splits[0]
    scored = sides(lambda name, side: report.best(side) if name == best else report.baseline(name, side))
    by_size = {size: listed(row[0]) for size, row in enumerate(first.by_size, 1) if row is not None}
    changed: dict[str, Column] = {"layer": lambda row: str(row[0]), "dev": lambda row: f"{row[1][0]:+.2f}"}
    changed["test"] = lambda row: f"{row[1][1]:+.2f}"
    sized = {"layers": str, **sides(report.size), "layers of the first split": by_size.get}
    vectors, rows = {"vectors": str, **scored}, [best, *first.baselines]
    tables = [
        Table.of(f"{Path(report.model).name} on {report.data}, Spearman × 100", rows, vectors, marked=best),
        Table.of("The best combination of each size", by_size, sized, detail=True),
        Table.of("Change of the best score without a layer, in points", report.effects().items(), changed, detail=True),
    ]
    unseen = (
        "" if report.unseen is None else f", {report.unseen:.2f} on the {report.num_unseen:,} not used for selection"
    )
    over = "maximum" if report.settings.over == "max" else "mean"
    chosen = (
        f"Chosen: {over} of {layers_in_words(report.chosen)} (dev {report.chosen_dev:.2f} over the splits{unseen})."
    )
    search = "all" if report.method == "exact" else "beam search"
    up_to = f", up to {report.up_to} layers each" if report.up_to <= report.depth else ""
    notes = [
        f"{report.num_subsets:,} combinations of {report.depth + 1} layers ({search}{up_to}), chosen on "
        f"{first.num_dev} pairs, {counted(len(report.splits), 'random split')}."
    ]
    plots = _combination_plots(report)
    return View("combined", "Several layers together", tables, [chosen], notes=notes, plots=plots)


def _combination_plots(report: CombinationReport) -> list[Any]:
    from truncate_kit.methods.bert_lc.settings import LAST

    last, effects = report.baseline(LAST, "test"), report.effects()
    sizes, bars = list[Series](), list[Series]()
    for (side, color), shift in zip(_SIDES.items(), (-1, 1), strict=True):
        every = range(1, len(report.splits[0].by_size) + 1)
        spans = {size: span for size in every if (span := report.size(size, side)) is not None}
        sizes.append(_means(side, spans, len(report.splits), "split", color, 0.06 * shift))
        changes = [change[side == "test"] for change in effects.values()]
        bars.append(Series([layer + 0.2 * shift for layer in effects], changes, side, color, bar=0.4))
    levels = () if last is None else ((last[0], f"{LAST}, test", BLUE),)
    title = f"{Path(report.model).name}: the best combination of each size ({report.data})"
    axes = "layers combined", "Spearman × 100"
    best = Plot(title, *axes, sizes, levels=levels, whole=True, file="sizes")
    title = f"{Path(report.model).name}: best combination without a layer, against the best of all ({report.data})"
    axes, zero = ("removed layer", "change in points (Spearman × 100)"), ((0.0, "", INK),)
    without = Plot(title, *axes, bars, levels=zero, whole=True, file="without")
    return [best, effects and without]


def view_cut_result(result: CutResult) -> View:
    """Show the kept layers and vocabulary."""
    place = capitalized(place_in_words(result.layer, result.blocks))
    kept = f"{place} of {result.depth}, not trained: {result.parameters:,} of {result.full_parameters:,} parameters."
    words = () if result.vocabulary is None else vocabulary_sentences(result.vocabulary)
    return View("cut", "The cut model", (), [kept, *words])
