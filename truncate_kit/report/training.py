"""Views of what fine-tuning, contrastive training, frozen heads, combining layers and cutting left."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from truncate_kit.analysis.drop import NOT_PREDICTED
from truncate_kit.methods.bert_lc.result import LAST, CombinationReport
from truncate_kit.methods.contrast.settings import TABLE_2, ContrastiveResult, ContrastiveSettings, LayerWeights
from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, SIAMESE, FrozenReport
from truncate_kit.methods.tmft.result import Certainty, LayerScores, SweepResult
from truncate_kit.naming import blocks_in_words, place_in_words
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
    Plot,
    Series,
    Table,
    View,
    number,
)
from truncate_kit.statistics import Span
from truncate_kit.training.cutting import CutResult, VocabularyCut
from truncate_kit.training.settings import Trial
from truncate_kit.wording import capitalized, counted, layers_in_words, points

CODES = (
    "Search by vectors compares the codes by their cosine; the trained score of a pair is what `similarities` gives."
)
RANKINGS = {"probe": "a linear map on frozen states", "multi-exit": "one epoch of all layers at once"}
_SIDES = {"dev": ORANGE, "test": BLUE}
_STEPS = {COSINE: GREY, SIAMESE: ORANGE, AUTOENCODER: BLUE}
_LONGEST = 60  # characters of a sentence in a table or beside its row


def view_sweep(result: SweepResult) -> View:
    """Show the scores of layers, what the search saw, and why the chosen layer was taken."""
    searched = result.settings.layers in ("auto", "all")
    notes = []
    if result.prediction is not None:
        whose = "" if result.blocks is None else f" Its layers are those of {blocks_in_words(result.blocks)} alone."
        notes.append(result.prediction.sentence + whose)
    elif searched and result.full.layer > 1:
        notes.append(NOT_PREDICTED)
    sentences = [result.choice] if result.certainty is None else [result.choice, certainty_in_words(result.certainty)]
    if result.search_cost:
        share = 100 * result.search_cost / max(1, result.exhaustive_cost)
        sentences.append(
            f"Search cost, with trials of earlier runs: {result.search_cost:,} block-steps, {share:.0f} % of what "
            f"trying every layer with every seed costs ({result.exhaustive_cost:,})."
        )
    tables = [sweep_table(result)]
    if result.rankings:
        scores = {name: dict(zip(row.layers, row.scores, strict=True)) for name, row in result.rankings.items()}
        layers = sorted(set().union(*scores.values()))
        rows = [(result.row_name(layer), *(number(found.get(layer)) for found in scores.values())) for layer in layers]
        columns = ("layer", *(RANKINGS.get(name, name) for name in scores))
        tables.append(Table(f"Cheap rankings of the search on dev, {result.metric}", columns, rows, detail=True))
    every = (*result.search, *result.trials)
    title = f"Every trial, those of the search first; {result.metric}"
    tables.append(_trials(title, every, [result.row_name(trial.layer) for trial in every]))
    return View(
        key="layers",
        title="Which layer",
        notes=[*notes, *filter(None, [result.seen_before])],
        tables=tables,
        sentences=sentences,
        plots=(_sweep_plot(result),),
    )


def certainty_in_words(found: Certainty) -> str:
    """Say which layers dev and seeds cannot tell apart, and which were not compared."""
    over = "dev pairs and seeds" if found.seeds > 1 else "dev pairs; one seed says nothing of seeds"
    by = f"95 % interval of each against the best, over {over}"
    said = f"Layer {found.best} is better on dev than every other layer that was compared ({by})."
    if len(found.alike) > 1:
        alike = ", ".join(map(str, found.alike))
        of = f"of the {len(found.compared)} that were compared"
        said = f"Layers {alike}, {of}, cannot be told apart on dev ({by}); {found.alike[0]} is the smallest."
    for layers, why in ((found.not_trained, "not trained out"), (found.fewer_seeds, "trained with fewer seeds")):
        if layers:
            said += f" Not compared, {why}: {layers_in_words(layers)}."
    return said


def seeds_in_words(rows: Sequence[LayerScores]) -> str:
    """Count the seeds of rows: "3 seeds", or "2 to 4 seeds" if earlier calls left more of some."""
    least, most = min(len(row.seeds) for row in rows), max(len(row.seeds) for row in rows)
    return counted(least, "seed") if least == most else f"{least} to {most} seeds"


def score_cells(row: LayerScores) -> tuple[str, str, str]:
    """Give dev, test, and Pearson's correlation on test, each with its deviation."""
    pearson = points(row.test_pearson, row.test_pearson_std)
    return points(row.dev, row.dev_std), points(row.test, row.test_std), pearson


def sweep_table(result: SweepResult, marked: int | None = None) -> Table:
    """Give each layer a row.

    Args:
        result: The sweep.
        marked: The layer that stands out; None marks the chosen one.
    """
    cells = []
    for row in result.rows:
        which = " (chosen)" * (row.layer == result.chosen) + " (full model)" * (row.layer == result.full.layer)
        cells.append((f"{result.row_name(row.layer)}{which}", f"{row.parameters:,}", *score_cells(row)))
    counts = f"{seeds_in_words(result.rows)}, {counted(result.training.epochs, 'epoch')}"
    return Table(
        f"{result.metric}; {counts}, peak learning rate {result.learning_rate:g}",
        ("layer", "parameters", "dev", "test", "test Pearson"),
        cells,
        marked=[row.layer for row in result.rows].index(result.chosen if marked is None else marked),
    )


def _trials(title: str, trials: Sequence[Trial], names: Sequence[str]) -> Table:
    rows = [
        (
            name,
            f"{trial.seed}",
            f"{trial.epochs_run} of {trial.epochs}",
            f"{trial.best_epoch}",
            number(trial.dev),
            number(trial.test),
            f"{trial.seconds:,.1f}",
        )
        for name, trial in zip(names, trials, strict=True)
    ]
    return Table(title, ("layer", "seed", "epochs", "best epoch", "dev", "test", "seconds"), rows, detail=True)


def _sweep_plot(result: SweepResult) -> Plot:
    """Draw dev and test by layer, what the search saw, the choice, the full model and the predicted drop."""
    depth, series = result.full.layer, list[Series]()
    for marker, (name, ranking) in zip("v^", result.rankings.items(), strict=False):
        look: dict[str, Any] = {"marker": marker, "line": "--", "size": 4, "width": 0.8}
        label = f"dev in the search, {RANKINGS.get(name, name)}"
        series.append(Series(ranking.layers, ranking.scores, label, GREY, **look))
    for epochs in sorted({trial.epochs_run for trial in result.search}):
        seen = sorted((trial.layer, trial.dev) for trial in result.search if trial.epochs_run == epochs)
        layers, scores = zip(*seen, strict=True)
        label = f"dev in the search, {counted(epochs, 'epoch')}"
        series.append(Series(layers, scores, label, GREY, marker=".", line=":", width=0.8))
    series += layer_series(result.rows, gaps=not result.rankings)
    place = result.place(result.chosen)
    series.append(Series([result.chosen], [result.lean.test], f"chosen: {place}", GREEN, line="", hollow=True, size=14))
    drop, shade = result.prediction.from_layer if result.prediction else None, None
    if drop is not None:
        shade = drop - 0.5, (depth if result.blocks is None else len(result.blocks)) + 0.5, "predicted drop"
    ticks: dict[float, str] | None = None
    if result.blocks is not None:
        ticks = {**dict(enumerate(map(str, (0, *result.blocks)))), depth: f"all {depth}"}
    of = "" if result.blocks is None else f", {blocks_in_words(result.blocks, depth)},"
    title = f"{Path(result.model).name}{of} by layer: scores on {result.data}"
    axes = LAYERS if ticks is None else "last block that is kept (0 = embeddings)", f"score in points ({result.metric})"
    levels = ((result.full.test, "full model, test", BLUE),)
    return Plot("layers", title, *axes, series, levels=levels, shade=shade, ticks=ticks, whole=True, file="curve")


def layer_series(rows: Sequence[LayerScores], *, gaps: bool = True) -> list[Series]:
    """Draw dev and test by layer with bars and a band of one deviation; gaps: dotted over missing layers."""
    found, several = [], any(len(row.seeds) > 1 for row in rows)
    for side, color in _SIDES.items():
        label = f"{side}, mean ± deviation over {seeds_in_words(rows)}" if several else f"{side}, one seed"
        layers, means = [row.layer for row in rows], [getattr(row, side) for row in rows]
        if gaps and any(there - here > 1 for here, there in pairwise(layers)):
            found.append(Series(layers, means, "", color, marker="", line=":"))
        known = dict(zip(layers, rows, strict=True))
        every = range(layers[0], layers[-1] + 1)  # no line runs over a layer that was not trained
        means = [getattr(known.get(layer), side, None) for layer in every]
        spreads = [getattr(known.get(layer), f"{side}_std", None) for layer in every]
        low, high = tuple[float | None, ...](), tuple[float | None, ...]()
        if any(spreads):
            ends = zip(means, spreads, strict=True)
            halves = [(mean, spread or 0.0) for mean, spread in ends]
            low = tuple(mean and mean - half for mean, half in halves)
            high = tuple(mean and mean + half for mean, half in halves)
        found.append(Series(every, means, label, color, spread=spreads, low=low, high=high))
    return found


def pooling_words(settings: ContrastiveSettings) -> str:
    """Say how a sentence vector was made in training, and whether it still is."""
    if settings.pooling == "layer-attention":
        over = {"both": "CLS over means", "cls": "CLS over CLS", "mean": "means over means"}[settings.over]
        words = f"layer-wise attention ({over}{', with the last CLS' if settings.last_cls else ''}"
        words += ", equations as printed)" if settings.literal else ")"
    else:
        words = TABLE_2[settings.pooling].words
    words += ", through a tanh layer" if settings.mlp else ""
    if settings.keep_pooler:
        return words
    left = {"first-last": "this mean", "mean": "this mean", "mean-first-last": "the top mean"}
    return f"{words}; removed after training, a vector is {left.get(settings.pooling, 'the top CLS state')}"


def view_contrast(result: ContrastiveResult) -> View:
    """Show the scores, and dev while the model learned."""
    settings, chosen = result.settings, result.chosen
    how = f"batch {result.batch_size}, peak learning rate {result.learning_rate:g}"
    row = (
        pooling_words(settings),
        f"{result.layer} of {result.depth}",
        f"{result.parameters:,}",
        points(result.dev, result.dev_std),
        points(result.test, result.test_std),
        f"{chosen.best_epoch} of {len(chosen.dev_scores)}",
    )
    counts = f"{counted(len(result.trials), 'seed')}, {counted(result.epochs, 'epoch')}"
    scores = Table(
        f"{settings.objective}, Spearman × 100 on {result.data}; {counts}, {how}",
        ("pooling", "layer", "parameters", "dev", "test", "kept look"),
        [row],
    )
    seen = f"{result.seen:,} of {result.test_texts:,} distinct test texts are among the training texts."
    series = []
    for trial, color in zip(
        result.trials, (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY) * len(result.trials), strict=False
    ):
        label = f"seed {trial.seed}" + ", saved" * (trial.seed == result.chosen_seed)
        looks, best = range(1, len(trial.dev_scores) + 1), trial.best_epoch
        series.append(Series(looks, trial.dev_scores, label, color, marker="", width=1))
        series.append(Series([best], [trial.dev_scores[best - 1]], "", color, line=""))
    title = "Dev score of each seed while the model learned; the points were kept"
    return View(
        key="contrast",
        title="Contrastive training",
        notes=[*([seen] if result.seen else []), *filter(None, [result.seen_before])],
        tables=(
            scores,
            _trials("Every seed, Spearman × 100", result.trials, [str(trial.layer) for trial in result.trials]),
        ),
        sentences=(f"{result.rows.rstrip('.')}.",),
        plots=(Plot("attempts", title, "look at dev", "Spearman × 100 on dev", series, whole=True),),
    )


def view_weights(found: LayerWeights) -> View:
    """Show how much each layer counts in the vectors of given sentences."""
    shares = [[100 * weight for weight in weights] for weights in found.weights]
    flat = [share for row in shares for share in row]
    low, high = min(flat), max(flat)
    # From 0, so that colours show shares; from the lowest if it is negative, or if all are alike and differ in digits.
    start = low if low < 0 or (low > high / 2 and high - low >= 0.1) else 0.0
    rows, title = [_shortened(text) for text in found.texts], f"{Path(found.model).name}: weight of each layer in %"
    plot = Plot("attention", title, LAYERS, "", heat=shares, heat_range=(start, high), rows=rows, file="attention")
    return View(key="attention", title="Attention over layers", plots=(plot,))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def view_frozen(report: FrozenReport) -> View:
    """Show the scores of heads over frozen states, and where the saved ones err most."""
    chosen, layer = report.chosen, report.chosen_layer
    norm = " and the final norm" if report.settings.final_norm else ""
    notes = [
        f"The model is frozen: {report.pooling}-pooled states of blocks 1 to "
        f"{max(trial.layer for trial in report.trials)} of {report.depth}{norm}, {report.num_texts:,} texts."
    ]
    if (losses := report.reconstruction) is not None:
        codes = " and ".join(map(str, sorted(set(losses.code_widths))))
        notes.append(
            f"Autoencoders: {losses.num_sentences:,} raw sentences ({losses.left_out:,} left out that are in dev or "
            f"test), codes of {codes} numbers for states of {report.width}."
        )
    if report.nli is not None:
        notes.append("The heads were trained on the classes of NLI pairs first.")
    if AUTOENCODER in report.steps and report.num_seeds > 1:
        notes.append("The autoencoders were trained once, with the first seed; the heads with every seed.")
    shared = [report.overlap.warning() or "Train and test share no sentence."]
    if report.test_sentences_in_nli is not None:
        total = report.overlap.test_sentences or 0
        shared.append(f"NLI: {report.test_sentences_in_nli:,} of the {total:,} distinct test sentences.")
    plain = report.states[layer - 1]
    best = (
        f"Chosen by dev: {report.chosen_step} on {layer} of {report.depth} blocks, seed {report.chosen_seed}; "
        f"{report.parameters:,} frozen and {chosen.parameters:,} trained parameters. It has {points(chosen.test)} on "
        f"test; the states of block {layer} as they are have {'no score' if plain is None else f'{plain:.2f}'}."
    )
    return View(
        key="heads",
        title="Heads over frozen states",
        notes=[*notes, *report.notes],
        tables=(_steps(report), _worst(report)),
        sentences=(best, *shared, CODES),
        plots=_frozen_plots(report),
    )


def _steps(report: FrozenReport) -> Table:
    """Give each step and number of blocks a row, before them the best plain block."""
    known = [(score, block) for block, score in enumerate(report.states, 1) if score is not None]
    rows: list[tuple[str, ...]] = []
    for name, (score, block) in (("the last one", known[-1]), ("best on test", max(known))) if known else ():
        rows.append((f"states of block {block} as they are, {name}", "1", "0", NONE, points(score), NONE))
    chosen = len(rows) + report.groups.index((report.chosen_step, report.chosen_layer))
    for step, layer in report.groups:
        spans = [report.score(step, layer, measure) for measure in ("dev", "test", "test_pearson")]
        trained = f"{report.of(step, layer)[0].parameters:,}"
        rows.append((step, str(layer), trained, *(points(span.mean, span.std) for span in spans)))
    title = f"{report.model} on {report.data}: Spearman × 100, {counted(report.num_seeds, 'seed')}"
    return Table(title, ("heads", "blocks", "trained", "dev", "test", "test Pearson"), rows, marked=chosen)


def _worst(report: FrozenReport) -> Table:
    rows = [
        (
            f"{_shortened(pair.first)} | {_shortened(pair.second)}",
            f"{pair.target:.2f}",
            f"{pair.predicted:.2f}",
            f"{pair.error:+.2f}",
        )
        for pair in report.worst
    ]
    title = "Largest errors on test, from 0 to 1; the mean difference on dev is taken off"
    return Table(title, ("pair", "score", "predicted", "error"), rows, detail=True)


def _frozen_plots(report: FrozenReport) -> list[Plot]:
    """Draw each block alone, what codes lose of the states, and heads on the lowest blocks."""
    name, unit = f"{Path(report.model).name}, frozen: {{}} ({report.data})", "Spearman × 100 on test"
    blocks = range(1, len(report.states) + 1)
    series = [Series(blocks, report.states, "states as they are", VERMILION)]
    if report.train_states is not None:
        label = "states as they are, on the training pairs"
        series.append(Series(blocks, report.train_states, label, VERMILION, marker=".", line="--"))
    for step, layers in report.steps.items():
        if step != COSINE:  # its codes are the states themselves
            codes = report.codes_by_block(step, layers[-1])
            series.append(Series(range(1, len(codes) + 1), codes, f"codes, {step}", _STEPS[step]))
    best = report.score(report.chosen_step, report.chosen_layer, "test").mean
    levels = ((best, "all blocks together, chosen heads", INK),)
    title = name.format("similarity by each block alone")
    plots = [Plot("blocks", title, "block", unit, series, levels=levels, whole=True, file="correlation")]
    if (found := report.reconstruction) is not None:
        title = name.format("what the codes lose of each block's states")
        own = "mean squared error in the states' own units"
        for file, losses, what, own_units in (
            ("reconstruction", found.losses, "mean squared error (1 = always the mean)", False),
            ("reconstruction-own-units", found.own_losses, own, True),
        ):
            series = []
            for code, color in zip(sorted(set(found.code_widths)), (GREEN, PURPLE), strict=False):
                places = [block for block, width in enumerate(found.code_widths, 1) if width == code]
                values = [losses[block - 1] for block in places] if losses else []
                series.append(Series(places, values, f"codes of {code} of {report.width} numbers", color))
            if losses is not None:
                look: dict[str, Any] = {"logarithmic": own_units, "on_page": not own_units, "file": file}
                y_range = (None, None) if own_units else (0.0, 1.1 * max(losses))
                plots.append(Plot(file, title, "block", what, series, whole=True, y_range=y_range, **look))
    if any(len(layers) > 1 for layers in report.steps.values()):
        series = []
        for step, layers in report.steps.items():
            spans = {layer: report.score(step, layer, "test") for layer in layers}
            series.append(_means(step, spans, report.num_seeds, "seed", _STEPS[step]))
        title = name.format("heads on the lowest blocks only")
        plots.append(Plot("depths", title, "blocks kept", unit, series, whole=True, file="blocks"))
    return plots


def _means(name: str, spans: dict[int, Span], number: int, what: str, color: str, shift: float = 0.0) -> Series:
    """Draw means with bars of one deviation over a number of seeds or splits."""
    label = name if number == 1 else f"{name}, mean ± deviation over {counted(number, what)}"
    spread = [span.std for span in spans.values()] if number > 1 else ()
    means = [span.mean for span in spans.values()]
    return Series([place + shift for place in spans], means, label, color, spread=spread)


def view_combination(report: CombinationReport) -> View:
    """Show the best combination of layers of each size, and what each layer is good for."""

    def cells(spans: Sequence[Span | None]) -> list[str]:
        return [NONE if span is None else points(span.mean, span.std) for span in spans]

    names = [row.name for row in report.splits[0].baselines]
    rows = [("best combination", *cells([report.best("dev"), report.best("test")]))]
    rows += [(name, *cells([report.baseline(name, "dev"), report.baseline(name, "test")])) for name in names]
    name = f"{Path(report.model).name} on {report.data}, Spearman × 100"
    sizes = [
        (str(size), *cells([report.size(size, "dev"), report.size(size, "test")]), ", ".join(map(str, row.layers)))
        for size, row in enumerate(report.splits[0].by_size, 1)
        if row is not None
    ]
    effects = [(str(layer), f"{dev:+.2f}", f"{test:+.2f}") for layer, (dev, test) in report.effects().items()]
    unseen = "" if report.unseen is None else f", {report.unseen:.2f} on the {report.num_unseen:,} that none chose on"
    chosen = f"Chosen: {layers_in_words(report.chosen)} (dev {report.chosen_dev:.2f} over the splits{unseen})."
    return View(
        key="combined",
        title="Several layers together",
        notes=_combination_notes(report),
        tables=(
            Table(name, ("vectors", "dev", "test"), rows, marked=0),
            Table("The best of each size", ("layers", "dev", "test", "first split's"), sizes, detail=True),
            Table("Without a layer: change of the best, in points", ("layer", "dev", "test"), effects, detail=True),
        ),
        sentences=(chosen,),
        plots=_combination_plots(report),
    )


def _combination_notes(report: CombinationReport) -> list[str]:
    over = "a mean" if report.settings.over == "mean" else "a maximum"
    head = ", through the pooler head" if report.settings.head else ""
    how = "every one" if report.method == "exact" else "beam search"
    up_to = f" of up to {report.up_to} layers" if report.up_to <= report.depth else ""
    notes = [
        f"{report.num_subsets:,} combinations of {report.depth + 1} layers by {over} over layers{head} ({how}{up_to}), "
        f"chosen on {report.splits[0].num_dev} pairs, {counted(len(report.splits), 'random split')}."
    ]
    if report.up_to <= report.depth:
        many = f"{report.depth + 1} layers have too many subsets to compute each of them"
        why = ", as asked" if report.settings.up_to == report.up_to else f": {many}"
        notes.append(f"Combinations of more than {report.up_to} layers were left out{why}.")
    if report.beam_loss is not None and report.beam_layers is not None:
        tried = f"{len(report.beam_layers)} of {report.depth + 1} layers"
        notes.append(f"Tried on {tried}, the beam search lost at most {report.beam_loss:.3f} points against exact.")
    return notes


def _combination_plots(report: CombinationReport) -> list[Plot]:
    """Draw the best combination of each size, and what leaving out each layer changes."""
    name = f"{Path(report.model).name}: {{}} ({report.data})"
    last, effects = report.baseline(LAST, "test"), report.effects()
    sizes, bars = list[Series](), list[Series]()
    for (side, color), shift in zip(_SIDES.items(), (-1, 1), strict=True):  # bars side by side
        every = range(1, len(report.splits[0].by_size) + 1)
        spans = {size: span for size in every if (span := report.size(size, side)) is not None}
        sizes.append(_means(side, spans, len(report.splits), "split", color, 0.06 * shift))
        changes = [change[side == "test"] for change in effects.values()]
        bars.append(Series([layer + 0.2 * shift for layer in effects], changes, side, color, bar=0.4))
    levels = () if last is None else ((last.mean, f"{LAST}, test", BLUE),)
    axes = "layers combined", "Spearman × 100"
    title = name.format("the best combination of each size")
    best = Plot("combined-sizes", title, *axes, sizes, levels=levels, whole=True, file="sizes")
    title = name.format("best combination without a layer, against the best of all")
    axes, zero = ("layer left out", "change in points (Spearman × 100)"), (0.0, "", INK)
    without = Plot("without", title, *axes, bars, levels=(zero,), whole=True, file="without", on_page=bool(effects))
    return [best, without]


def view_cut(result: CutResult) -> View:
    """Show what was kept of the layers and of the vocabulary."""
    place = capitalized(place_in_words(result.layer, result.blocks))
    kept = f"{place} of {result.depth}, not trained: {result.parameters:,} of {result.full_parameters:,} parameters."
    words = () if result.vocabulary is None else vocabulary_sentences(result.vocabulary)
    return View(key="cut", title="What was cut", sentences=(kept, *words))


def vocabulary_sentences(found: VocabularyCut) -> tuple[str, ...]:
    """Say which word pieces are kept, and what of other texts they cover."""
    kept = (
        f"{found.pieces:,} of {found.full_pieces:,} word pieces are kept, for {found.texts:,} texts: "
        f"{found.full_model_bytes / 1e6:.1f} MB of weights in float32 become {found.model_bytes / 1e6:.1f} MB."
    )
    if found.covered_pieces is None or found.covered_texts is None:
        return (kept, "With fewer than ten texts, how far their word pieces cover others is not measured.")
    return (
        kept,
        f"Chosen on nine tenths of the texts, they cover {100 * found.covered_pieces:.2f} % of the word pieces in the "
        f"rest; {100 * found.covered_texts:.1f} % of {counted(found.held_out, 'text')} there keep their vectors.",
    )
