"""Commands that train: finetune, distill, contrast, freeze, combine."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from truncate_kit.core.errors import UsageError
from truncate_kit.core.files import unfinished
from truncate_kit.core.results import blocks_named, names
from truncate_kit.core.workspace import Source, place_in_words
from truncate_kit.training.settings import TABLE_2

from . import options
from .console import RUN, note, progress_bar, say, show, watching
from .options import (
    Hardware,
    Machine,
    Output,
    Pairs,
    Push,
    Workspace,
    command,
    data_option,
    layers_option,
    refuse,
    results_option,
    training_option,
    without_none,
)

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.triplets import TripletSet
    from truncate_kit.methods.bert_lc.settings import CombineSettings
    from truncate_kit.methods.contrast.settings import ContrastiveSettings
    from truncate_kit.methods.distill.settings import Budget, DistillSettings
    from truncate_kit.methods.frozen.settings import FrozenSettings
    from truncate_kit.methods.priors import WordPrior
    from truncate_kit.methods.tmft.settings import SweepSettings
    from truncate_kit.models.encoder import Encoder
    from truncate_kit.training.loop import Group
    from truncate_kit.training.settings import Objective, TrainingSettings

FREEZE_POOLING = "last"  # as in the FREEZE report
SHOWN_SENTENCES = 8  # in the attention figure


def check_shared(group: "Group", has_texts: bool) -> None:
    """Raise `UsageError` for several processes without texts to adapt to."""
    if group.size > 1 and not has_texts:
        raise UsageError(
            f"torchrun started {group.size} processes, but only adaptation to raw text can share them.",
            hint="Start the command without torchrun; `workers` runs several trials at once.",
        )


@command(
    "truncate-kit finetune google/electra-base-discriminator --data stsb",
    "truncate-kit finetune MODEL --data mine.csv --columns left,right,grade --layer 3,6",
    result="methods.tmft.settings:SweepResult",
)
def finetune(
    model: options.Model = None,
    *,
    pairs: Pairs,
    retrieval: Path | None = data_option(None, "Retrieval folder besides pairs, for selection on half its queries."),
    search_metric: options.SearchMetric = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    layer: options.Layers = None,
    blocks: options.Blocks = None,
    settings: "SweepSettings",
    training: "Annotated[dict[str, Any], TrainingSettings]",
    teacher: str | None = training_option(None, "Teacher model: train on its vectors and the labels."),
    teacher_weight: float = training_option(1.0, "Weight of the teacher loss relative to the label loss."),
    prior_words: Path | None = training_option(None, "Train on word similarity first: folder of rg65.csv and others."),
    prior_texts: Path | None = training_option(None, "Adapt to this raw text first, by masked language modelling."),
    prior_layer: int | None = training_option(None, "Cut at this layer before adapting; by default the last."),
    prior_epochs: int | None = training_option(None, "Epochs over --prior-texts; by default 10."),
    machine: Machine,
    workspace: Output,
    tensorboard: options.Tensorboard = False,
    push: Push,
) -> None:
    """Fine-tune the model cut at its best layer, given layers or some blocks; save it and the trained full model."""
    from truncate_kit.methods.tmft.finetune import finetune as run
    from truncate_kit.methods.tmft.finetune import sweep_prediction
    from truncate_kit.methods.tmft.trials import kept_encoder, layers_named
    from truncate_kit.models.truncation import truncate
    from truncate_kit.report.card import add_figure
    from truncate_kit.training.loop import joined
    from truncate_kit.training.settings import TrainingSettings, word_training

    if prior_texts is None:
        refuse("--prior-texts", prior_layer=prior_layer, prior_epochs=prior_epochs)
    kept = None if blocks is None else blocks_named(blocks)
    if kept is not None:
        layer = layer or str(len(kept) if prior_layer is None else prior_layer)
    settings = replace(settings, layers=layer or settings.layers)
    if settings.layers != "auto":
        refuse("`layers=auto`", strategy=settings.strategy)
    row = _objective(training.pop("objective", None), pairs.data, retrieval)
    judged, precision = row.data == "judged", training["precision"]
    if teacher is None and teacher_weight != 1:
        raise UsageError("`teacher_weight` has no effect without a teacher.", hint="Add `teacher`.")
    if retrieval is None and not judged:
        refuse("--retrieval or a retrieval folder", search_metric=search_metric)
    with joined(machine.device) as (group, here):
        RUN.quiet |= not group.leads
        named = (pairs.data, retrieval, teacher, prior_words, prior_texts)
        source = workspace.starting_model(model, pooling, max_length, or_miniature=not any(named))
        splits, searched, data_source = _labelled(workspace, row, pairs, retrieval, search_metric)
        usual = TrainingSettings() if splits.shares is None else word_training()
        trained = replace(usual, objective=row.name, **training)
        full = workspace.load(source, device=here, precision=precision)
        # Before an adaptation, which may take days.
        encoder = full if kept is None else kept_encoder(full, kept)
        layers_named(encoder if prior_layer is None else truncate(encoder, prior_layer), settings.layers)
        work: dict[str, Any] = {"settings": settings, "training": trained, "retrieval": searched}
        if prior_words is not None:
            work["prior"] = _word_prior(full, prior_words, precision)
        if teacher is not None:
            taught = workspace.load(Source(teacher, None, source.max_length), device=here)
            work |= {"teacher": taught, "teacher_weight": teacher_weight}
        with workspace.held() if group.leads else nullcontext():
            note(workspace.replaced_by(source.name))
            check_shared(group, prior_texts is not None)
            if prior_texts is not None:
                sharing: dict[str, Any] = {"layer": prior_layer, "group": group}
                encoder = _adapted(encoder, prior_texts, workspace, precision, prior_epochs, **sharing)
            if not group.leads:  # the processes share only the adaptation
                return
            work["prediction"] = sweep_prediction(encoder, splits, settings, trained, max_length=source.max_length)
    if encoder.depth < full.depth:
        work["full"] = full
    if kept is not None:
        work["blocks"] = kept[: encoder.depth]
    folder, work["before"] = workspace.folder, _first_in_words(prior_texts, prior_words, encoder, full, kept)
    adapted = nullcontext() if prior_texts is None else unfinished(folder / "adapted", shared=True)
    with adapted, machine.open() as engine, watching(folder, tensorboard=tensorboard) as watcher:
        result = run(encoder, splits, out=folder, progress=watcher, engine=engine, **work)
    scored = row.data in ("scores", "labels")  # the next command cannot use classes or judgements
    workspace.remember(source, data_source if scored else None, pairs.data if judged else retrieval)
    (curve,) = show(result, f"{workspace.lean} (seed {result.chosen_seed})", workspace.full, figures=folder)
    add_figure(workspace.lean, curve, "Scores by layer")
    note(push.upload(workspace.lean))


def _adapted(
    encoder: "Encoder", texts: Path, workspace: Workspace, precision: str, epochs: int | None, **how: Any
) -> "Encoder":
    from truncate_kit.data.tables import read_texts
    from truncate_kit.methods.priors import adapted
    from truncate_kit.training.settings import AdaptationSettings

    settings = AdaptationSettings(precision=precision, **without_none(epochs=epochs))
    place = workspace.folder / "adapted"
    model, result = adapted(encoder, read_texts(texts), place, settings, progress=progress_bar(), **how)
    before, after = result.losses[0], result.losses[result.best_epoch]
    note(
        f"Adapted at layer {result.layer} to {result.num_texts:,} texts: masked cross entropy on held-out texts "
        f"{before:.3f} before, {after:.3f} after epoch {result.best_epoch}."
    )
    return model


def _first_in_words(
    texts: Path | None, words: Path | None, encoder: "Encoder", full: "Encoder", kept: tuple[int, ...] | None
) -> str:
    parts = [] if words is None else ["word similarity, at the layer of each model"]
    if texts is not None:
        alone = "" if encoder.depth == full.depth else ", except the full model"
        parts.insert(0, f"masked words of {texts.name} at {place_in_words(encoder.depth, kept)}{alone}")
    return "; ".join(parts)


def _word_prior(full: "Encoder", folder: Path, precision: str) -> "WordPrior":
    from truncate_kit.data.pairs import load_words
    from truncate_kit.methods.priors import WordPrior
    from truncate_kit.training.settings import word_training

    words = load_words(folder)
    note(*(f"Before each trial: {statement}" for statement in words.notes))
    return WordPrior(full, words, word_training(precision))


def _objective(name: str | None, data: str | None, retrieval: Path | None) -> "Objective":
    from truncate_kit.data.tables import is_retrieval_folder
    from truncate_kit.training.settings import DATA_WORDS, SEARCH, find_objective

    judged = data is not None and is_retrieval_folder(data)
    row = find_objective(name or (SEARCH if judged else "cosine"), "tmft")
    if judged != (row.data == "judged"):
        raise UsageError(
            f"The objective {row.name} needs {DATA_WORDS[row.data]}, not {data or 'the data of the last command'}.",
            hint="Leave out `objective`, or give other `data`; `retrieval` adds queries to pairs.",
        )
    if judged:
        refuse("graded pairs", retrieval=retrieval)
    return row


def _labelled(
    workspace: Workspace, row: "Objective", pairs: Pairs, retrieval: Path | None, metric: str | None
) -> "tuple[PairSplits, RetrievalSet | None, Source]":
    if row.data == "judged":
        from truncate_kit.training.queries import read_judged

        pairs.refuse_details()
        judged, searched = read_judged(str(pairs.data), **without_none(metric=metric))
        note(*judged.notes)
        return judged, searched, Source(str(pairs.data))
    splits, data_source = workspace.data(pairs, classes=row.data == "classes")
    splits = workspace.divided(splits)
    row.check_targets(splits, scored=retrieval is None)
    if retrieval is None:
        return splits, None, data_source
    from truncate_kit.data.retrieval import read_retrieval
    from truncate_kit.training.queries import check_queries

    queries = read_retrieval(retrieval, chooses=True, **without_none(metric=metric))
    check_queries(queries)
    return splits, queries, data_source


@command(
    "truncate-kit distill sentence-transformers/all-MiniLM-L6-v2 --texts sentences.txt",
    "truncate-kit distill MODEL --texts sentences.txt --speedup 2 --exclude test.csv",
    result="methods.distill.settings:DistillResult",
)
def distill(
    model: options.Model = None,
    *,
    texts: list[Path] | None = data_option(
        None, "Raw text to train on: files or retrieval folders; required, repeatable.", metavar="PATH"
    ),
    queries: Path | None = data_option(None, "File of queries, encoded with the model's query prompt."),
    pairs: Pairs,
    search_metric: options.SearchMetric = None,
    exclude: list[Path] | None = data_option(
        None, "Exclude these texts or pairs from training (exact match); repeatable.", metavar="PATH"
    ),
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    budget: "Budget",
    layer: str = layers_option("auto", "Layer to reproduce: a number, last, or auto (before a drop)."),
    vocabulary_from: options.VocabularyFrom = None,
    settings: "DistillSettings",
    machine: Machine,
    workspace: Output,
    push: Push,
) -> None:
    """Train on raw text; keep the fewest blocks that reproduce the full model's vectors."""
    if not texts:
        raise UsageError("There are no texts to train on.", hint="Give --texts FILE of texts like those to be encoded.")
    number = int(layer) if layer.isdecimal() and len(layer) < 10 else None
    if number is None and layer not in ("auto", "last"):
        raise UsageError(f"There is no layer {layer!r}.", hint="Give a number, auto or last.")
    if (depth := workspace.depth(model)) is not None:
        budget.check(depth, number)
    if pairs.data is None:
        refuse("--data", search_metric=search_metric)
        pairs.refuse_details("--data")
    if queries is None and settings.query_weight != 1:
        raise UsageError("`query_weight` has no effect without queries.", hint="Add `queries`.")
    from truncate_kit.data.tables import iter_texts
    from truncate_kit.methods.distill.distilling import distill as run
    from truncate_kit.methods.distill.distilling import find_aim
    from truncate_kit.methods.distill.learning import RawTexts
    from truncate_kit.training.loop import joined

    excluded = {text for path in exclude or () for text in _texts_in(path)}
    with joined(machine.device) as (group, here):
        RUN.quiet |= not group.leads
        bars = progress_bar()
        source = workspace.starting_model(model, pooling, max_length)
        held_out, data_source = None, None
        if pairs.data is not None:
            from truncate_kit.data.pairs import PairSplits

            held_out, data_source = workspace.read(pairs, metric=search_metric, chooses=True)
            if isinstance(held_out, PairSplits) and held_out.dev is None:  # otherwise no train pairs are needed
                held_out = workspace.divided(held_out)
        encoder = workspace.load(source, device=here, precision=settings.precision)
        vocabulary = None if vocabulary_from is None else _texts_in(vocabulary_from)
        aim = number
        if layer == "auto" and group.leads:
            read = _learned_from(texts)
            aim, drop = find_aim(encoder, read, budget, max_length=source.max_length, progress=bars)
            if drop is not None:
                learned = f"layer {aim} is the target; --layer last chooses the last layer"
                first = f"cut it first, with truncate-kit cut {source.name} --layer {drop.last_before}, or use finetune"
                note(f"{drop.sentence} So {first if aim is None else learned}.")
        settings = replace(settings, layer=group.agree(aim))
        note(workspace.replaced_by(source.name, distilled=True))
        raw = RawTexts(
            texts=_learned_from(texts),
            queries=() if queries is None else iter_texts(queries),
            exclude=excluded,
            vocabulary=vocabulary,
        )
        work: dict[str, Any] = {"budget": budget, "settings": settings, "data": held_out, "group": group}
        with machine.open() as engine:
            result = run(encoder, raw, out=workspace.folder, engine=engine, progress=bars, **work)
        if not group.leads:
            return
    workspace.remember(source, data_source)
    show(result, workspace.lean, workspace.full, figures=workspace.folder)
    note(push.upload(workspace.lean))


def _retrieval_in(path: Path) -> "RetrievalSet | None":
    from truncate_kit.data.tables import is_retrieval_folder

    if not is_retrieval_folder(path):
        return None
    from truncate_kit.data.retrieval import read_retrieval

    return read_retrieval(path, chooses=True)


def _learned_from(paths: Sequence[Path]) -> Iterator[str]:
    from truncate_kit.data.tables import iter_texts

    for path in paths:
        searched = _retrieval_in(path)
        yield from iter_texts(path) if searched is None else filter(None, searched.documents)


def _texts_in(path: Path) -> list[str]:
    from truncate_kit.data.tables import read_texts

    if (searched := _retrieval_in(path)) is not None:
        return sorted(searched.held_out - {""})
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [text for file in files for text in read_texts(file)]


@command(
    "truncate-kit contrast MODEL --triplets nli.csv",
    "truncate-kit contrast MODEL --objective dropout --texts raw.txt",
    result="methods.contrast.settings:ContrastiveResult",
)
def contrast(
    model: options.Model = None,
    *,
    triplets: str | None = data_option(None, "Rows of anchor, positive[, negative], or NLI pairs: path or hub name."),
    triplet_columns: str | None = data_option(
        None, "Columns of --triplets, if not recognized by their names.", metavar="ANCHOR,POSITIVE[,NEGATIVE]"
    ),
    texts: Path | None = data_option(None, "Raw text for dropout and diffcse; by default from train pairs."),
    pairs: Pairs,
    pooling: str = layers_option("layer-attention", "Pooling from the paper's Table 2.", choices=TABLE_2),
    values: "Annotated[dict[str, Any], ContrastiveSettings]",
    generator: str | None = training_option(None, "Model that fills in words for diffcse; by default MODEL."),
    hardware: Hardware,
    workspace: Output,
    sentences: Path | None = results_option(None, "Texts for the figure of layer attention; by default test pairs."),
    push: Push,
) -> None:
    """Train contrastively on pairs of equal meaning or on raw text; --data selects and measures the model."""
    from truncate_kit.methods.contrast.settings import ContrastiveSettings
    from truncate_kit.training.settings import OBJECTIVES

    if triplets is None:
        refuse("--triplets", triplet_columns=triplet_columns)
    named = TABLE_2[pooling]
    if pooling != "layer-attention":
        refuse("`pooling=layer-attention`", over=values.get("over"), last_cls=values.get("last_cls"))
    settings = ContrastiveSettings(**named | values)
    attends = settings.pooling == "layer-attention" and settings.keep_pooler
    if not attends:
        refuse("layer attention that is kept after training", sentences=sentences)
    filling = [one.name for one in OBJECTIVES.values() if one.fills_words]
    if settings.objective not in filling:
        refuse(f"--objective {' or '.join(filling)}", generator=generator)
    from truncate_kit.data.tables import read_texts
    from truncate_kit.methods.contrast.run import finetune_contrastive, layer_weights
    from truncate_kit.models.loading import load_encoder
    from truncate_kit.report.chart import write_figures
    from truncate_kit.report.view import view_of
    from truncate_kit.training.loop import joined

    with joined(hardware.device) as (group, here):
        RUN.quiet |= not group.leads
        source = replace(workspace.starting_model(model, None, values.get("max_tokens")), pooling=None)
        encoder = workspace.load(source, device=here, precision=settings.precision)
        splits, data_source = workspace.data(pairs)
        splits = splits if splits.dev is not None else workspace.divided(splits)
        columns = None if triplet_columns is None else names(triplet_columns)
        rows = _rows(settings.objective, triplets, columns, texts, splits)
        # Fail early for a wrong file.
        shown = read_texts(sentences) if sentences is not None else splits.evaluation.texts()[:SHOWN_SENTENCES]
        fills = None if generator is None else load_encoder(generator, device=encoder.device.type)
        note(workspace.replaced_by(source.name))
        work: dict[str, Any] = {"settings": settings, "generator": fills, "group": group}
        result = finetune_contrastive(encoder, rows, splits, out=workspace.folder, progress=progress_bar(), **work)
        if not group.leads:
            return
    workspace.forget_lean()
    workspace.remember(source, data_source)
    show(result, f"{workspace.lean} (seed {result.chosen_seed})")
    if attends:
        weights = layer_weights(load_encoder(workspace.lean), shown)
        weights.write(workspace.attention)
        say(f"Figure: {write_figures(view_of(weights), workspace.folder)[0]}")
    if settings.keep_pooler and settings.pooling in ("layer-attention", "mean-first-last"):
        say("sentence-transformers needs trust_remote_code=True to load it, because the pooling is custom.")
    note(push.upload(workspace.lean))


def _rows(
    objective: str, triplets: str | None, columns: Sequence[str] | None, texts: Path | None, pairs: "PairSplits"
) -> "TripletSet":
    from truncate_kit.data.tables import read_texts
    from truncate_kit.data.triplets import load_triplets, raw_texts
    from truncate_kit.training.settings import OBJECTIVES

    data = OBJECTIVES[objective].data
    if data == "texts":
        refuse("objectives that train on pairs", triplets=triplets)
        if texts is not None:
            return raw_texts(texts.name, read_texts(texts))
        if pairs.train is None:
            raise UsageError("There are no texts to train on.", hint="Give --texts FILE.")
        return raw_texts(pairs.train.name, pairs.train.texts())
    refuse("objectives that train on raw text", texts=texts)
    if triplets is None:
        raise UsageError(
            f"The objective {objective} has no training data.",
            hint="Give --triplets FILE with anchor, positive[, negative] or an NLI set; --data does not train.",
        )
    return load_triplets(triplets, columns=columns, negatives=data == "negatives")


@command("truncate-kit freeze MODEL --data pairs.csv", result="methods.frozen.settings:FrozenReport")
def freeze(
    model: options.Model = None,
    *,
    pairs: Pairs,
    texts: Path | None = data_option(None, "Raw text for the autoencoders; required to train them."),
    nli: str | None = data_option(None, "NLI pairs to train on first, with scores 1, ½ and 0."),
    pooling: options.PoolingName | None = data_option(None, f"By default {FREEZE_POOLING}."),
    max_length: options.MaxLength = None,
    values: "Annotated[dict[str, Any], FrozenSettings]",
    hardware: Hardware,
    workspace: Output,
    push: Push,
) -> None:
    """Train heads on frozen states of the blocks, which are computed once."""
    from truncate_kit.data.pairs import load_pairs
    from truncate_kit.data.tables import read_texts
    from truncate_kit.methods.frozen.run import finetune_frozen
    from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, SIAMESE, STEPS, FrozenSettings

    if "steps" not in values and texts is None:
        values["steps"] = tuple(step for step in STEPS if step != AUTOENCODER)
        note("No autoencoders are trained, because they need raw text: name a file with --texts.")
    settings = FrozenSettings(**values)
    if set(settings.steps) == {COSINE}:
        refuse(f"the step {SIAMESE} or {AUTOENCODER}", codes=settings.codes, depth=settings.depth > 1)
    if AUTOENCODER not in settings.steps:
        refuse(f"the step {AUTOENCODER}", texts=texts)
    source = workspace.starting_model(model, pooling, max_length)
    read = replace(source, pooling=source.pooling or FREEZE_POOLING)
    encoder = workspace.load(read, device=hardware.device, precision=settings.precision)
    raw = read_texts(texts) if texts is not None else None
    first = None if nli is None else load_pairs(nli, classes=True, divide=False).items()[0][1]
    splits, data_source = workspace.data(pairs)
    splits = workspace.divided(splits)
    work: dict[str, Any] = {"settings": settings, "raw": raw, "nli": first}
    report = finetune_frozen(encoder, splits, out=workspace.folder, progress=progress_bar(), **work)
    workspace.remember(source, data_source)
    for name in ("reconstruction", "reconstruction-own-units", "blocks"):  # of the replaced report
        (workspace.frozen_heads / f"{name}.png").unlink(missing_ok=True)
    show(report, workspace.frozen, figures=workspace.frozen_heads)
    note(push.upload(workspace.frozen))


@command("truncate-kit combine MODEL --data stsb", result="methods.bert_lc.settings:CombinationReport")
def combine(
    model: options.Model = None,
    *,
    pairs: Pairs,
    split: str | None = data_option(None, "Split to use: train, dev or test; by default the last."),
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    settings: "CombineSettings",
    hardware: Hardware,
    workspace: Output,
) -> None:
    """Search for the layers with the best mean or maximum as sentence vectors (BERT-LC); save the combined model."""
    from truncate_kit.core.hardware import usable_cores
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.methods.bert_lc.combine import combine as run
    from truncate_kit.methods.bert_lc.combine import combined_encoder
    from truncate_kit.methods.bert_lc.settings import CombineSettings
    from truncate_kit.models.loading import find_pooler_head
    from truncate_kit.models.pipeline import save_encoder
    from truncate_kit.models.store import origin_of, output_folder

    if settings.search == "exact" or not settings.has_grams:
        refuse("a beam search", width=settings.width != CombineSettings().width)
    lean_is_there = model is None and workspace.lean.is_dir()
    choose = workspace.finished_model if lean_is_there else workspace.starting_model
    source = choose(model, pooling, max_length)
    encoder = workspace.load(source, device=hardware.device)
    trained = find_pooler_head(source.name)  # only a baseline without --head
    splits, named = workspace.data(pairs)
    if split is not None:
        splits = PairSplits(name=splits.name, test=splits.split(split), notes=splits.notes)
    scored = workspace.unseen(splits, source.name).evaluation
    with output_folder(workspace.folder, encoder, workspace.combined.name):  # fail before the search
        work: dict[str, Any] = {"settings": settings, "head": trained, "threads": hardware.threads or usable_cores()}
        report = run(encoder, scored, progress=progress_bar(), **work)
        report.write(workspace.combination_file)
        workspace.remember(None if workspace.holds(source.name) else source, named)
        show(report, workspace.combination_file, figures=workspace.combination)
        head = trained if settings.head else None
        lean = combined_encoder(encoder, report.chosen, over=settings.over, head=head)  # type: ignore[arg-type]  # checked there
        chosen = report.settings.to_dict() | {"layers": report.chosen}
        origin = origin_of("combine", encoder, lean, data=scored, settings=chosen)
        save_encoder(lean, workspace.combined, model_card=report.card(lean, origin), origin=origin)
    say(f"Saved: {workspace.combined}")
    if lean.pooler is not None:
        say("sentence-transformers needs trust_remote_code=True to load it.")
