"""What `truncate-kit finetune` runs for TMFT: the model cut at a layer, at several, or at the best one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.wording import counted

from .engines import open_engine
from .options import SharedOptions
from .output import note, print_json, progress_bar, say, table
from .priors import adapt_first, word_prior
from .pushing import push
from .sources import DataSource, ModelSource
from .watching import watching
from .workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from truncate_kit.data import PairSplits
    from truncate_kit.encoders import Encoder
    from truncate_kit.similarity import DropPrediction
    from truncate_kit.sweep import SweepResult, SweepSettings
    from truncate_kit.training import TrainingSettings

EPOCHS, BATCH_SIZE = 10, 32
ANALYSED_TEXTS = 2000  # enough for intervals of a few hundredths, and a matter of seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TmftOptions(SharedOptions):
    """What the command line says about TMFT. epochs, batch_size: None takes what suits the data."""

    strategy: str | None
    pick: str | None
    within: float | None
    prior_words: Path | None
    prior_texts: Path | None
    prior_layer: int | None
    prior_epochs: int | None
    engine: str
    workers: int | None
    ray_address: str | None
    gpus_per_worker: float | None
    threads: int | None
    tensorboard: bool
    push_to: str | None
    public: bool

    def training(self, *, words: bool = False) -> "TrainingSettings":
        """Settings of every trial; words: of single words, which are short, few and cheap."""
        from truncate_kit.priors.words import WORD_BATCH_SIZE, WORD_EPOCHS
        from truncate_kit.training import TrainingSettings

        epochs, batch_size = (WORD_EPOCHS, WORD_BATCH_SIZE) if words else (EPOCHS, BATCH_SIZE)
        return TrainingSettings(
            objective=self.objective,  # type: ignore[arg-type]  # checked by the settings themselves
            epochs=epochs if self.epochs is None else self.epochs,
            batch_size=batch_size if self.batch_size is None else self.batch_size,
            learning_rate=self.learning_rate,
            precision=self.precision,  # type: ignore[arg-type]  # likewise
        )

    def search(self) -> "SweepSettings":
        """Which layers are tried, and how one is taken."""
        from truncate_kit.sweep import SweepSettings
        from truncate_kit.sweep.picking import DEFAULT_RULE

        return SweepSettings(
            layers=self.layer,
            strategy=self.strategy,
            pick=self.pick or DEFAULT_RULE,
            within=self.within,
            seeds=tuple(range(max(0, self.seeds))),
        )


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What is learned from. pairs: None where raw text is all there is; source: what the next command takes up."""

    pairs: "PairSplits | None"
    raw: "Sequence[str] | None"
    source: DataSource | None


def run_tmft(told: TmftOptions) -> None:
    """Train, save and show; what a prior adapts first is shared by all processes, the rest is the leading one's."""
    from truncate_kit.encoders import load_encoder, truncate
    from truncate_kit.errors import DeviceError
    from truncate_kit.hardware import bf16_instructions
    from truncate_kit.sweep import finetune
    from truncate_kit.sweep.finetune import check_sweep
    from truncate_kit.training.distributed import joined

    training, settings, workspace = told.training(), told.search(), Workspace(told.out)
    with joined(told.device) as (group, place):
        quiet = told.as_json or not group.leads
        source = workspace.model(told.model, told.pooling, told.max_length, quiet=quiet)
        encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length, device=place)
        if told.precision == "bf16" and bf16_instructions(encoder.device) is None:
            raise DeviceError(f"{encoder.device} has no bf16 instructions.", hint="Use --precision fp32.")
        # All that can be wrong is said before an adaptation, which may take days.
        check_sweep(encoder if told.prior_layer is None else truncate(encoder, told.prior_layer), settings)
        word_prior(encoder, told.prior_words, told.precision, quiet=True)
        lesson = _read(told, workspace, quiet=quiet)
        if lesson.pairs is not None and lesson.pairs.shares is not None:
            training = told.training(words=True)
        full = encoder
        with progress_bar(quiet=quiet) as progress:
            encoder = adapt_first(
                encoder,
                told.prior_texts,
                told.out,
                told.prior_layer,
                told.prior_epochs,
                told.precision,
                group=group,
                progress=progress,
                quiet=quiet,
            )
    if not group.leads:
        return
    prior = word_prior(encoder, told.prior_words, told.precision, quiet=told.as_json)
    with (
        open_engine(
            told.engine,
            told.workers,
            told.ray_address,
            told.gpus_per_worker,
            device=told.device,
            threads=told.threads,
        ) as engine,
        watching(told.out, tensorboard=told.tensorboard, quiet=told.as_json) as (progress, watcher),
    ):
        result = finetune(
            encoder,
            lesson.pairs,
            out=told.out,
            settings=settings,
            training=training,
            texts=lesson.raw,
            prediction=_prediction(encoder, source, lesson.pairs) if settings.layers in ("auto", "all") else None,
            prior=prior,
            full=full if encoder.depth < full.depth else None,
            before=_before(told, encoder.depth, full.depth),
            progress=progress,
            watcher=watcher,
            engine=engine,
        )
    workspace.remember(source, lesson.source)
    show(result, workspace, as_json=told.as_json)
    push(workspace.lean, told.push_to, told.public, quiet=told.as_json)


def _before(told: TmftOptions, layer: int, depth: int) -> str:
    """What was learned before the task, in the words of a model card."""
    parts = []
    if told.prior_texts is not None:
        alone = "" if layer == depth else ", but for the full model"
        parts.append(f"masked words of {told.prior_texts.name} at layer {layer}{alone}")
    if told.prior_words is not None:
        parts.append("word similarity, at the layer of each model")
    return "; ".join(parts)


def _read(told: TmftOptions, workspace: Workspace, *, quiet: bool) -> _Lesson:
    """Raw text, pairs, or both. Raises `DataError` where the pairs do not suit the objective."""
    from truncate_kit.data import complete_splits, read_texts
    from truncate_kit.sweep.tasks import check_targets

    raw = read_texts(told.texts) if told.texts is not None else None
    if raw is not None and told.data is None:
        return _Lesson(None, raw, None)
    training = told.training()
    entailment = training.objective == "entailment"
    pairs, source = workspace.data(told.data, told.columns, told.scale, classes=entailment, quiet=quiet)
    before = pairs.notes
    pairs = complete_splits(pairs)
    for statement in pairs.notes[len(before) :]:
        note(statement, quiet=quiet)
    if training.objective != "distill":
        check_targets(pairs, training.objective)
    # Classes are no scores: what comes next must not look for similarity in them.
    return _Lesson(pairs, raw, None if entailment else source)


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
    counts = f"{counted(seeds, 'seed')}, {counted(epochs, 'epoch')}"
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
