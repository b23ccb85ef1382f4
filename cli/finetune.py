"""`truncate-kit finetune`."""

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .contrastive import (
    AttendOpt,
    ChunkOpt,
    ContrastiveOptions,
    JudgeEveryOpt,
    LastClsOpt,
    LiteralOpt,
    RemovePoolerOpt,
    SentencesOpt,
    SharedOptions,
    TemperatureOpt,
    TrainedPoolingOpt,
    TripletColumnsOpt,
    TripletsOpt,
    is_contrastive,
    refuse_contrastive,
    run_contrastive,
)
from .engines import EngineOpt, GpusOpt, RayAddressOpt, WorkersOpt, check_alone, open_engine, shares_work
from .frozen import FrozenOptions, MethodOpt, NliOpt, ScoreOpt, StepsOpt, check_method, run_frozen
from .options import (
    DEFAULT_OUT,
    ColumnsOpt,
    DataOpt,
    DeviceOpt,
    JsonOpt,
    MaxLengthOpt,
    ModelArg,
    OutOpt,
    ScaleOpt,
    ThreadsOpt,
    refuse,
    use_threads,
)
from .output import note, print_json, progress_bar, say, table
from .priors import PriorEpochsOpt, PriorLayerOpt, PriorTextsOpt, PriorWordsOpt, adapt_first, check_priors, word_prior
from .pushing import PublicOpt, PushOpt, check_push, push
from .sources import ModelSource
from .watching import TensorboardOpt, watching
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits
    from truncate_kit.encoders import Encoder
    from truncate_kit.similarity import DropPrediction
    from truncate_kit.sweep import SweepResult

EPOCHS, BATCH_SIZE = 10, 32
WORD_EPOCHS, WORD_BATCH_SIZE = 50, 128
ANALYSED_TEXTS = 2000  # enough for intervals of a few hundredths, and a matter of seconds
PRECISIONS = "fp32, or bf16 autocast where the processor has it."


def finetune(
    model: ModelArg = None,
    method: MethodOpt = "tmft",
    layer: Annotated[str, typer.Option("--layer", help="auto, all, or layers such as 3, 3,6,9 or 2..5.")] = "auto",
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            help="Behind auto: rankings (default with labels), guided (default without), exhaustive, "
            "probe, multi-exit, cka, last or random.",
        ),
    ] = None,
    pick: Annotated[
        str | None, typer.Option("--pick", help="depth-bonus, best-dev, robust or small; by default the first.")
    ] = None,
    within: Annotated[
        float | None, typer.Option("--within", help="Points of the pick rule; by default 2.5, depth-bonus 5.75.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds, from 0.")] = 3,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="The best on dev is kept; by default 10, for word pairs 50.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Pairs per step; by default 32, for word pairs 128.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Peak rate; by default 2e-5, more for narrow models.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help=PRECISIONS)] = "fp32",
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="cosine, paraphrase (labels 0, 1), entailment (classes), distill (raw text); contrastive: in-batch, "
            "hard-negatives, dropout (raw text).",
        ),
    ] = "cosine",
    texts: Annotated[
        Path | None,
        typer.Option("--texts", help="Raw text to distil from, for dropout, or for the autoencoders of frozen."),
    ] = None,
    prior_words: PriorWordsOpt = None,
    prior_texts: PriorTextsOpt = None,
    prior_layer: PriorLayerOpt = None,
    prior_epochs: PriorEpochsOpt = None,
    triplets: TripletsOpt = None,
    triplet_columns: TripletColumnsOpt = None,
    attend: AttendOpt = "both",
    last_cls: LastClsOpt = True,
    literal: LiteralOpt = False,
    remove_pooler: RemovePoolerOpt = False,
    temperature: TemperatureOpt = 0.05,
    chunk_size: ChunkOpt = None,
    judge_every: JudgeEveryOpt = 100,
    sentences: SentencesOpt = None,
    steps: StepsOpt = None,
    score: ScoreOpt = None,
    nli: NliOpt = None,
    data: DataOpt = None,
    columns: ColumnsOpt = None,
    scale: ScaleOpt = None,
    pooling: TrainedPoolingOpt = None,
    max_length: MaxLengthOpt = None,
    engine: EngineOpt = "local",
    workers: WorkersOpt = None,
    ray_address: RayAddressOpt = None,
    gpus_per_worker: GpusOpt = None,
    device: DeviceOpt = None,
    threads: ThreadsOpt = None,
    tensorboard: TensorboardOpt = False,
    push_to: PushOpt = None,
    public: PublicOpt = False,
    out: OutOpt = DEFAULT_OUT,
    as_json: JsonOpt = False,
) -> None:
    """Fine-tune the model cut at a layer, at several, or at the best one; save it beside the full model."""
    check_push(push_to, public)
    check_priors(prior_texts, prior_layer, prior_epochs)
    sharing = shares_work(engine, workers, ray_address, gpus_per_worker)
    from truncate_kit.data import complete_splits, read_texts
    from truncate_kit.encoders import load_encoder, truncate
    from truncate_kit.errors import DeviceError
    from truncate_kit.hardware import bf16_instructions
    from truncate_kit.sweep import SweepSettings
    from truncate_kit.sweep import finetune as run
    from truncate_kit.sweep.finetune import check_sweep
    from truncate_kit.sweep.picking import DEFAULT_RULE
    from truncate_kit.sweep.tasks import check_targets
    from truncate_kit.training import TrainingSettings
    from truncate_kit.training.distributed import joined

    use_threads(threads)
    search: dict[str, object] = {"strategy": strategy, "pick": pick, "within": within, "tensorboard": tensorboard}
    search |= {"prior_words": prior_words, "prior_texts": prior_texts}
    own = ContrastiveOptions(
        triplets=triplets,
        triplet_columns=triplet_columns,
        attend=attend,
        last_cls=last_cls,
        literal=literal,
        remove_pooler=remove_pooler,
        temperature=temperature,
        chunk=chunk_size,
        judge_every=judge_every,
        sentences=sentences,
    )
    if check_method(method, steps=steps, score=score, nli=nli):
        refuse_contrastive(own, "--method frozen", "Leave it out.")
        refuse("--method tmft", objective=None if objective == "cosine" else objective, **search)
        check_alone(sharing, "heads over a frozen model are trained in one process")
        told = locals()
        run_frozen(FrozenOptions(**{field.name: told[field.name] for field in fields(FrozenOptions)}))
        return
    if is_contrastive(objective, pooling, own):
        refuse("an objective of TMFT", **search)
        check_alone(sharing, "contrastive training uses several processes where torchrun starts it")
        shared = SharedOptions(
            model=model,
            layer=layer,
            seeds=seeds,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            precision=precision,
            objective=objective,
            texts=texts,
            data=data,
            columns=columns,
            scale=scale,
            pooling=pooling,
            max_length=max_length,
            device=device,
            out=out,
            as_json=as_json,
        )
        if run_contrastive(shared, own):
            push(Path(out) / "lean", push_to, public, quiet=as_json)
        return
    training = TrainingSettings(
        objective=objective,  # type: ignore[arg-type]  # checked by the settings themselves
        epochs=EPOCHS if epochs is None else epochs,
        batch_size=BATCH_SIZE if batch_size is None else batch_size,
        learning_rate=learning_rate,
        precision=precision,  # type: ignore[arg-type]
    )
    settings = SweepSettings(
        layers=layer,
        strategy=strategy,
        pick=pick or DEFAULT_RULE,
        within=within,
        seeds=tuple(range(max(0, seeds))),
    )
    workspace = Workspace(out)
    with joined(device) as (group, place):
        quiet = as_json or not group.leads
        source = workspace.model(model, pooling, max_length, quiet=quiet)
        encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length, device=place)
        if precision == "bf16" and bf16_instructions(encoder.device) is None:
            raise DeviceError(f"{encoder.device} has no bf16 instructions.", hint="Use --precision fp32.")
        # All that can be wrong is said before an adaptation, which may take days.
        check_sweep(encoder if prior_layer is None else truncate(encoder, prior_layer), settings)
        word_prior(encoder, prior_words, quiet=True)
        raw = read_texts(texts) if texts is not None else None
        splits: PairSplits | None = None
        found = None
        if raw is None or data is not None:
            entailment = training.objective == "entailment"
            splits, found = workspace.data(data, columns, scale, classes=entailment, quiet=quiet)
            if entailment:
                found = None  # classes are no scores: what comes next must not look for similarity in them
            before = splits.notes
            splits = complete_splits(splits)
            for statement in splits.notes[len(before) :]:
                note(statement, quiet=quiet)
            if training.objective != "distill":
                check_targets(splits, training.objective)
            if splits.shares is not None:  # single words: short, few, cheap
                training = replace(
                    training,
                    epochs=WORD_EPOCHS if epochs is None else epochs,
                    batch_size=WORD_BATCH_SIZE if batch_size is None else batch_size,
                )
        with progress_bar(quiet=quiet) as progress:
            encoder = adapt_first(
                encoder,
                prior_texts,
                out,
                prior_layer,
                prior_epochs,
                precision,
                group=group,
                progress=progress,
                quiet=quiet,
            )
    if not group.leads:  # only the adaptation is shared
        return
    prior = word_prior(encoder, prior_words, quiet=as_json)
    with (
        open_engine(engine, workers, ray_address, gpus_per_worker, device=device, threads=threads) as chosen,
        watching(out, tensorboard=tensorboard, quiet=as_json) as (progress, watcher),
    ):
        prediction = _prediction(encoder, source, splits) if settings.layers in ("auto", "all") else None
        result = run(
            encoder,
            splits,
            out=out,
            settings=settings,
            training=training,
            texts=raw,
            prediction=prediction,
            prior=prior,
            progress=progress,
            watcher=watcher,
            engine=chosen,
        )
    workspace.remember(source, found)
    show(result, workspace, as_json=as_json)
    push(workspace.lean, push_to, public, quiet=as_json)


def _prediction(encoder: "Encoder", source: ModelSource, splits: "PairSplits | None") -> "DropPrediction | None":
    """A look at the layers on training texts alone: what `analyze` stored may have seen the test scores."""
    from truncate_kit.analysis import profile
    from truncate_kit.encoders import default_reference, load_encoder

    if splits is None or splits.train is None:
        return None
    usual = default_reference(source.name)
    reference = load_encoder(usual, max_length=source.max_length) if usual else None
    return profile(encoder, splits.train.texts(), reference=reference, max_texts=ANALYSED_TEXTS).drop


def show(result: "SweepResult", workspace: Workspace, *, as_json: bool) -> None:
    """The result as JSON, or as sentences, a table and a figure."""
    from truncate_kit.report.sweep_figure import draw_sweep
    from truncate_kit.sweep.card import points

    draw_sweep(result, workspace.sweep_curve)
    if as_json:
        print_json(result)
        return
    if result.prediction is not None:
        say(result.prediction.sentence)
    rows = sorted({row.layer: row for row in (*result.layers, result.full)}.values(), key=lambda row: row.layer)
    cells = [
        (
            f"{row.layer}"
            + (" (chosen)" if row.layer == result.chosen else "")
            + (" (full model)" if row.layer == result.full.layer else ""),
            f"{row.parameters:,}",
            points(row.dev, row.dev_std),
            points(row.test, row.test_std),
            points(row.test_pearson, row.test_pearson_std),
        )
        for row in rows
    ]
    seeds = len(result.settings.seeds)
    epochs = result.training.epochs
    counts = f"{seeds} seed{'s' if seeds > 1 else ''}, {epochs} epoch{'s' if epochs > 1 else ''}"
    title = f"{result.metric}; {counts}, peak learning rate"
    table(
        f"{title} {result.learning_rate:g}",
        ("layer", "parameters", "dev", "test", "test Pearson"),
        cells,
        marked=[row.layer for row in rows].index(result.chosen),
    )
    say(result.choice)
    if result.search_cost:
        share = 100 * result.search_cost / max(1, result.exhaustive_cost)
        say(
            f"Search cost: {result.search_cost:,} block-steps, {share:.0f} % of what trying every layer "
            f"with every seed costs ({result.exhaustive_cost:,})."
        )
    say(f"Saved: {workspace.lean} (seed {result.chosen_seed}), {workspace.full}, {workspace.sweep_curve}")
