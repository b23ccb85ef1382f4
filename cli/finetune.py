"""`truncate-kit finetune`: TMFT on labelled pairs, at a layer, at several, or at the best one."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.bounds import first_seeds
from truncate_kit.errors import UsageError
from truncate_kit.methods.tmft.picking import PICK_RULES, Picker
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.methods.tmft.strategies import STRATEGIES, check_strategy
from truncate_kit.naming import blocks_in_words
from truncate_kit.training.objectives import SEARCH, described
from truncate_kit.training.settings import TrainingSettings, word_training
from truncate_kit.workspace import LearnedSource, ModelSource

from . import options
from .labelled import labelled_data, objective_for
from .machine import Machine
from .options import data_option, given, layers_option, refuse, training_option, use_threads
from .output import print_json, progress_bar, say, table
from .priors import PriorEpochsOpt, PriorLayerOpt, Priors, PriorTextsOpt, PriorWordsOpt
from .pushing import check_push, push
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.analysis.drop import DropPrediction
    from truncate_kit.data import PairSplits
    from truncate_kit.methods.tmft.sweep_result import SweepResult
    from truncate_kit.models import Encoder
    from truncate_kit.training.distributed import Group
    from truncate_kit.training.tasks import Teacher

SWEEP, TRAINING, WORDS = SweepSettings(), TrainingSettings(), word_training()
SEEDS = len(SWEEP.seeds)
WITHIN = ", ".join(f"{row.within:g} for {row.name}" for row in PICK_RULES.values() if row.within)


def finetune(
    model: options.Model = None,
    data: Annotated[
        str | None,
        data_option(
            "Pairs: a CSV, TSV, JSONL or Parquet file, a folder of splits, or a hub name such as stsb; or queries and "
            "documents, a retrieval folder (BEIR's layout), of which some queries teach and others choose; by default "
            "the pairs of the last command that analyzed, trained or exported, else the bundled set."
        ),
    ] = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    retrieval: Annotated[
        Path | None,
        data_option("Beside pairs, a retrieval folder: nDCG@10 of half its queries chooses epochs and layer."),
    ] = None,
    search_metric: options.SearchMetric = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    layer: options.Layers = None,
    blocks: Annotated[
        str | None,
        layers_option("Keep these blocks, such as 1,4,6 or 1..3,6, and train them all; --layer cuts them too."),
    ] = None,
    strategy: Annotated[
        str | None, layers_option(f"Behind auto: {', '.join(STRATEGIES)}; by default the first.")
    ] = SWEEP.strategy,
    pick: Annotated[str, layers_option(f"Among trained layers: {', '.join(PICK_RULES)}.")] = SWEEP.pick,
    within: Annotated[float | None, layers_option(f"Points of --pick; by default {WITHIN}.")] = SWEEP.within,
    objective: Annotated[
        str | None,
        training_option(
            f"{described('tmft')}; by default {TRAINING.objective}, {SEARCH} of a retrieval folder. Classes are scored "
            "by macro F1 of the likeliest one; the TMFT paper has a threshold."
        ),
    ] = None,
    seeds: Annotated[int, training_option("Number of seeds, from 0; the TMFT paper has 5.")] = SEEDS,
    epochs: Annotated[
        int | None, training_option(f"The best on dev is kept; by default {TRAINING.epochs}, {WORDS.epochs} for words.")
    ] = None,
    batch_size: Annotated[
        int | None, training_option(f"Pairs per step; by default {TRAINING.batch_size}, {WORDS.batch_size} for words.")
    ] = None,
    learning_rate: options.Rate = TRAINING.learning_rate,
    precision: options.Precision = TRAINING.precision,
    teacher: Annotated[
        str | None,
        training_option("Model whose vectors are learned beside the labels, such as the fine-tuned full model."),
    ] = None,
    teacher_weight: Annotated[float, training_option("Weight of the teacher's vectors against the labels.")] = 1.0,
    prior_words: PriorWordsOpt = None,
    prior_texts: PriorTextsOpt = None,
    prior_layer: PriorLayerOpt = None,
    prior_epochs: PriorEpochsOpt = None,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    gpus_per_worker: options.Gpus = None,
    device: options.Device = None,
    threads: options.SharedThreads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    tensorboard: options.Tensorboard = False,
    push_to: options.Push = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Fine-tune the model cut at a layer, several, the best one, or to some blocks; save it beside the full model."""
    from truncate_kit.methods.tmft.finetune import Preparation, check_sweep
    from truncate_kit.methods.tmft.finetune import finetune as run
    from truncate_kit.methods.tmft.trials import kept_encoder
    from truncate_kit.models import truncate
    from truncate_kit.training.distributed import joined

    check_push(push_to, public)
    priors = Priors(prior_words, prior_texts, prior_layer, prior_epochs, precision)
    machine = Machine(engine, workers, ray_address, gpus_per_worker, device, threads)
    kept = options.blocks_in(blocks)
    if layer is None:
        layer = SWEEP.layers if kept is None else str(len(kept) if prior_layer is None else prior_layer)
    settings = SweepSettings(layers=layer, strategy=strategy, pick=pick, within=within, seeds=first_seeds(seeds))
    row = objective_for(objective, data, retrieval)
    searches = retrieval is not None or row.data == "judged"
    _check_ignored(settings, strategy, 1 if teacher else teacher_weight, None if searches else search_metric)
    use_threads(threads)
    with joined(device) as (group, here):
        workspace = Workspace(folder, quiet=as_json or not group.leads)
        nothing_given = all(name is None for name in (data, retrieval, teacher, prior_words, prior_texts))
        source = workspace.starting_model(model, pooling, max_length, or_miniature=nothing_given)
        pairs, searched, found = labelled_data(workspace, row, data, columns, scale, retrieval, search_metric)
        numbers = given(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, precision=precision)
        training = replace(TRAINING if pairs.shares is None else WORDS, objective=row.name, **numbers)
        full = workspace.load(source, device=here, precision=precision)
        # All that can be wrong is said before an adaptation, which may take days.
        begun = full if kept is None else kept_encoder(full, kept)
        check_sweep(begun if prior_layer is None else truncate(begun, prior_layer), settings)
        priors.word_prior(full)
        taught = _teacher(workspace, teacher, teacher_weight, source.max_length, here, full)
        encoder, predicted = _adapted(priors, begun, workspace, source, group, pairs, settings, training)
    if not group.leads:  # only an adaptation is shared
        return
    with machine.at_work(folder, tensorboard=tensorboard, quiet=as_json) as (at_work, watcher), priors.kept(workspace):
        result = run(
            encoder,
            pairs,
            out=folder,
            settings=settings,
            training=training,
            prediction=predicted,
            before=Preparation(
                prior=priors.word_prior(encoder, workspace),
                full=full if encoder.depth < full.depth else None,
                teacher=taught,
                words=priors.for_card(encoder.depth, full.depth, kept),
                blocks=None if kept is None else kept[: encoder.depth],
            ),
            retrieval=searched,
            progress=watcher,
            engine=at_work,
        )
    learned = LearnedSource(result.data_fingerprint, source, found)
    _remember(workspace, learned, data if row.data == "judged" else retrieval, graded=row.data in ("scores", "labels"))
    _show(result, workspace)
    push(workspace.lean, push_to, public, quiet=as_json)


def _remember(workspace: Workspace, learned: LearnedSource, folder: str | Path | None, *, graded: bool) -> None:
    # Classes and judgements are no scores: what comes next must not look for similarity in them.
    last, queries = learned.data if graded else None, None if folder is None else str(folder)
    workspace.remember(learned.model, last, queries=queries, learned=learned)


def _check_ignored(settings: SweepSettings, strategy: str | None, weight: float, metric: str | None) -> None:
    """Raise `UsageError` for options of a search or a rule that there is not.

    weight: Of a teacher, where there is none. metric: Of a retrieval set, likewise.
    """
    if weight != 1:
        raise UsageError("`teacher_weight` weighs the vectors of a teacher.", hint="Add `teacher`.")
    refuse("--retrieval or a retrieval folder", search_metric=metric)
    Picker(settings.pick, settings.within)
    check_strategy(strategy)
    if strategy is not None and settings.layers != "auto":
        raise UsageError(
            f"--strategy {strategy} searches for a layer, and --layer {settings.layers} is given.",
            hint="Leave out one of the two.",
        )


def _teacher(
    workspace: Workspace,
    name: str | None,
    weight: float,
    max_length: int | None,
    device: str | None,
    learner: "Encoder",
) -> "Teacher | None":
    """It reads as many tokens as what learns from it, on the same device."""
    from truncate_kit.training.tasks import Teacher

    if name is None:
        return None
    teacher = Teacher(workspace.load(ModelSource(name, max_length=max_length), device=device), weight)
    teacher.check_width(learner)
    return teacher


def _adapted(
    priors: Priors,
    encoder: "Encoder",
    workspace: Workspace,
    source: ModelSource,
    group: "Group",
    pairs: "PairSplits",
    settings: SweepSettings,
    training: TrainingSettings,
) -> "tuple[Encoder, DropPrediction | None]":
    """The encoder behind its priors, and the prediction by these pairs.

    Both may take long: no other command leaves a model here meanwhile, which training would then replace.
    """
    from truncate_kit.methods.tmft.predicting import sweep_prediction

    with workspace.held() if group.leads else nullcontext(), progress_bar(quiet=workspace.quiet) as progress:
        workspace.note_replaced(source)
        adapted = priors.adapt(encoder, workspace, group=group, progress=progress)
        if not group.leads:
            return adapted, None
        return adapted, sweep_prediction(adapted, pairs, settings, training, max_length=source.max_length)


def _show(result: "SweepResult", workspace: Workspace) -> None:
    """The result as JSON, or as sentences, a table and a figure."""
    from truncate_kit.analysis.drop import NOT_PREDICTED
    from truncate_kit.report.card import add_figure
    from truncate_kit.report.sweep_figure import draw_sweep
    from truncate_kit.report.training_tables import sweep_table
    from truncate_kit.training.objectives import OBJECTIVES

    curve = draw_sweep(result, workspace.curve)
    add_figure(workspace.lean, curve, "Scores by layer")
    if workspace.quiet:
        print_json(result)
        return
    if result.prediction is not None:
        whose = "" if result.blocks is None else f" Its layers are those of {blocks_in_words(result.blocks)} alone."
        say(result.prediction.sentence + whose)
    elif result.settings.layers in ("auto", "all") and (
        not OBJECTIVES[result.training.objective].is_graded or result.full.layer > 1  # all scores are 0 or 1
    ):
        say(NOT_PREDICTED)
    layers = [row.layer for row in result.rows]
    table(*sweep_table(result), marked=layers.index(result.chosen))
    say(*result.choice_sentences, *filter(None, [result.seen_before]), *result.cost_sentences)
    say(f"Saved: {workspace.lean} (seed {result.chosen_seed}), {workspace.full}, {curve}")
