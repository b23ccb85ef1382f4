"""TMFT from end to end: which layer, how good, against the full model; the lean model saved."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from truncate_kit.data import PairSplits
from truncate_kit.encoders import Encoder
from truncate_kit.engines import Engine, Sequential
from truncate_kit.errors import UsageError
from truncate_kit.progress import TrialWatcher
from truncate_kit.runs.output import output_folder
from truncate_kit.runs.store import RunStore, run_key
from truncate_kit.similarity.drop import DropPrediction
from truncate_kit.sweep.picking import Picker
from truncate_kit.sweep.results import SweepResult
from truncate_kit.sweep.running import Sweep
from truncate_kit.sweep.settings import SweepSettings
from truncate_kit.sweep.strategies import check_strategy
from truncate_kit.sweep.trials import TrialRunner, layers_named
from truncate_kit.sweep.work import Prior
from truncate_kit.training.configuration import TrainingSettings
from truncate_kit.training.tasks import DistillTask, LabelledTask, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What is learned before the task."""

    prior: Prior | None = None  # what every trial learns first
    # the full model, where the encoder was cut before, to adapt it there: it is trained as the yardstick then. None
    # takes the encoder in full, and distillation always does
    full: Encoder | None = None
    words: str = ""  # what model cards say of all that was learned before
    blocks: tuple[int, ...] | None = None  # of `full` that the encoder has; None where these are the first ones


def finetune(
    encoder: Encoder,
    data: PairSplits | None,
    *,
    out: Path,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    texts: Sequence[str] | None = None,
    prediction: DropPrediction | None = None,
    before: Before | None = None,
    watcher: TrialWatcher | None = None,
    engine: Engine | None = None,
) -> SweepResult:
    """Fine-tune `encoder` cut at one or several layers, choose one, and save it beside the full model.

    Args:
        encoder: Whose layers are tried; it is not changed.
        data: Train, dev and test pairs with what the objective learns from; may be None for distillation, which is
            then scored by closeness to the full model.
        out: Gets `lean/` and `full/` (sentence-transformers folders), `sweep.json` and `trials/`, from which the same
            call continues after a kill.
        settings: Layers, strategy, pick rule and seeds.
        training: Of every trial.
        texts: Raw text to distil from, None takes the texts of the training pairs.
        prediction: Bounds pick and search.
        before: What is learned before the task, and what was cut before; None for nothing.
        watcher: Is called with the progress of all work, with every epoch and every finished trial.
        engine: Where trials run, None is one after another here; the result does not depend on it.

    Raises:
        UsageError: Settings make no sense, alone or beside each other.
        DataError: The data do not suit the objective.
        LayerOutOfRangeError: A layer does not exist.
        LayerNotHeldError: A layer exists, but a model cut there cannot be saved exactly.
        FileProblemError: `out` cannot be written, or another process works there.
        TruncateKitError: Training diverged, or the engine lost a trial several times.
    """
    training, before, watcher = training or TrainingSettings(), before or Before(), watcher or TrialWatcher()
    settings = settings or SweepSettings()
    layers = check_sweep(encoder, settings)

    def runner_of(model: Encoder) -> TrialRunner:
        task, prior = _task(model, data, texts, training), before.prior
        parts = [training.to_json(), data.fingerprint() if data else "", "\n".join(texts or ()), type(task).__name__]
        key = run_key(model, *parts, *([prior.fingerprint()] if prior else []))
        store = RunStore(Path(out) / "trials", key, {"model": model.name, "training": training.to_dict()})
        return TrialRunner(model, task, training, store, prior, watcher, engine or Sequential())

    with output_folder(Path(out), encoder, "lean", "full"), ExitStack() as stores:
        runner = runner_of(encoder)
        full = runner if before.full is None or training.row.method == "distill" else runner_of(before.full)
        for one in dict.fromkeys([runner.store, full.store]):
            stores.enter_context(one.open())
        return Sweep(runner, full, layers, settings, prediction, data, before.words, before.blocks).run(Path(out))


def check_sweep(encoder: Encoder, settings: SweepSettings) -> tuple[int, ...]:
    """The layers that `settings` allow for this encoder; raises what `finetune` raises for other values."""
    Picker(settings.pick, settings.within)
    check_strategy(settings.strategy)
    if not settings.seeds:
        raise UsageError("No seeds were given.", hint="Give one or more `seeds`.")
    if encoder.heads is not None:
        raise UsageError(
            f"{encoder.name} is a frozen model with heads: its vectors are theirs, not those of a layer.",
            hint="Name the model that they were trained for; `finetune_frozen()` trains heads.",
        )
    return layers_named(encoder, settings.layers)


def _task(encoder: Encoder, data: PairSplits | None, texts: Sequence[str] | None, training: TrainingSettings) -> Task:
    if training.row.method == "distill":
        if texts is None and (data is None or data.train is None):
            raise UsageError("Distillation has no texts.", hint="Give `texts`, or `data` with a train set.")
        raw = list(texts) if texts is not None else data.train.texts()  # type: ignore[union-attr]  # checked above
        return DistillTask(encoder, raw, data, training.objective)
    if data is None:
        raise UsageError(
            "Fine-tuning needs pairs with scores or classes.", hint='Give `data`; or `texts` and `objective="distill"`.'
        )
    return LabelledTask(encoder, data, training.objective)
