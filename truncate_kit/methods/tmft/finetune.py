"""TMFT from end to end: which layer, how good, against the full model; the lean model saved."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from truncate_kit.analysis.drop import DropPrediction
from truncate_kit.data import PairSplits, RetrievalSet
from truncate_kit.errors import UsageError
from truncate_kit.files import local_path
from truncate_kit.methods.tmft.picking import Picker
from truncate_kit.methods.tmft.running import DataNames, Sweep
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.methods.tmft.strategies import check_strategy
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.methods.tmft.trials import TrialRunner, layers_named
from truncate_kit.methods.tmft.work import Prior
from truncate_kit.models import Encoder, encoder_digest
from truncate_kit.parallel import Engine, Sequential
from truncate_kit.progress import WatchOption, watcher_of
from truncate_kit.seen import merged, query_keys, seen_before
from truncate_kit.training.distributed import isolated
from truncate_kit.training.evaluators import choosing_queries, scored_as
from truncate_kit.training.settings import TrainingSettings
from truncate_kit.training.store import RunStore, output_folder, run_key
from truncate_kit.training.tasks import LabelledTask, Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is learned before the task, and beside it."""

    prior: Prior | None = None  # what every trial learns first
    # the full model, where the encoder was cut before: it is trained as the yardstick then. None takes the encoder
    full: Encoder | None = None
    teacher: Teacher | None = None  # whose vectors are learned beside the labels
    words: str = ""  # what model cards say of all that was learned before
    blocks: tuple[int, ...] | None = None  # of `full` that the encoder has; None where these are the first ones

    def for_card(self) -> str:
        """All of it in words."""
        taught = ""
        if self.teacher is not None:
            taught = f"Beside the labels: the vectors of {self.teacher.encoder.name}, weight {self.teacher.weight:g}."
        return " ".join(part for part in (self.words, taught) if part)


@isolated()
def finetune(
    encoder: Encoder,
    data: PairSplits,
    *,
    out: Path,
    settings: SweepSettings | None = None,
    training: TrainingSettings | None = None,
    prediction: DropPrediction | None = None,
    before: Preparation | None = None,
    retrieval: RetrievalSet | None = None,
    progress: WatchOption = False,
    engine: Engine | None = None,
) -> SweepResult:
    """Fine-tune `encoder` cut at one or several layers, choose one, and save it beside the full model.

    Args:
        encoder: Whose layers are tried; it is not changed.
        data: Train, dev and test pairs with what the objective learns from.
        out: Gets `lean/` and `full/` (sentence-transformers folders), `sweep.json` and `trials/`, from which the same
            call continues after a kill.
        settings: Layers, strategy, pick rule and seeds.
        training: Of every trial.
        prediction: Bounds pick and search.
        before: What is learned before the task, and what was cut before; None for nothing.
        retrieval: Whose metric, nDCG@10 mostly, chooses epoch and layer, by half of its queries, and is reported on
            the other half, in the place of dev and test pairs; training pairs with one of its texts are left out, where
            they are judged themselves (`read_judged`) those with one of its queries. None for the pairs.
        progress: True draws bars and logs epochs; a `TrialWatcher` hears of every epoch and every finished trial.
        engine: Where trials run, None is one after another here; the result does not depend on it.

    Raises:
        UsageError: Settings make no sense, alone or beside each other.
        DataError: The data do not suit the objective.
        LayerOutOfRangeError: A layer does not exist.
        LayerNotHeldError: A layer exists, but a model cut there cannot be saved exactly.
        FileProblemError: `out` cannot be written, or another process works there.
        TruncateKitError: Training diverged, or the engine lost a trial several times.
    """
    training, before = training or TrainingSettings(), before or Preparation()
    settings, watcher = settings or SweepSettings(), watcher_of(progress)
    layers = check_sweep(encoder, settings)
    judged = training.row.data == "judged"
    names = _names(encoder, data, before, retrieval, judged=judged)
    data = _learnable(data, retrieval, judged=judged)

    def runner_of(model: Encoder) -> TrialRunner:
        task, prior = LabelledTask(model, data, training.objective, before.teacher, retrieval), before.prior
        key = _key(model, data, training, before, retrieval)
        store = RunStore(local_path(out) / "trials", key, {"model": model.name, "training": training.to_dict()})
        return TrialRunner(model, task, training, store, prior, watcher, engine or Sequential(), keeps_weights=True)

    teachers = [] if before.teacher is None else [before.teacher.encoder]
    with output_folder(local_path(out), encoder, "lean", "full", teachers=teachers), ExitStack() as stores:
        runner = runner_of(encoder)
        full = runner if before.full is None else runner_of(before.full)
        for one in dict.fromkeys([runner.store, full.store]):
            stores.enter_context(one.open())
        sweep = Sweep(runner, full, layers, settings, prediction, data, names, before.for_card(), before.blocks)
        return sweep.run(local_path(out))


def _learnable(data: PairSplits, retrieval: RetrievalSet | None, *, judged: bool) -> PairSplits:
    """Without training pairs that hold what queries are to choose and report by."""
    if retrieval is None:
        return data
    # Documents are there for many queries, those that teach among them: of judged pairs only queries are left out.
    return data.without_texts(retrieval.asked if judged else retrieval.held_out)


def _names(
    encoder: Encoder, data: PairSplits, before: Preparation, retrieval: RetrievalSet | None, *, judged: bool
) -> DataNames:
    """What the data, the queries and the teacher are known by afterwards."""
    taught = {} if before.teacher is None else {before.teacher.encoder.name: before.teacher.encoder.seen}
    names = DataNames(data, seen=merged(*taught.values()))
    if retrieval is None:
        return replace(names, before=seen_before(data.evaluation, {encoder.name: encoder.seen} | taught))
    chose = choosing_queries(retrieval)
    taught_by = {pair.first for pair in data.train} if judged and data.train is not None else set[str]()
    seen = merged(names.seen, query_keys((*chose, *taught_by)))
    queries = retrieval.queries_fingerprint()
    return replace(names, retrieval=retrieval.name, queries=queries, num_queries=len(chose), seen=seen)


def _key(
    model: Encoder, data: PairSplits, training: TrainingSettings, before: Preparation, retrieval: RetrievalSet | None
) -> str:
    """What the trials of a model are kept under: all that they depend on."""
    # The last two parts are what they always were: another key would not find the trials that are there.
    parts = [training.settled(model.width).to_json(), data.fingerprint(), "", "LabelledTask"]
    prior = [before.prior.fingerprint()] if before.prior else []
    taught = [encoder_digest(before.teacher.encoder), str(before.teacher.weight)] if before.teacher else []
    searched = [] if retrieval is None else [retrieval.fingerprint() + scored_as(retrieval, model)]
    return run_key(model, *parts, *prior, *taught, *searched)


def check_sweep(encoder: Encoder, settings: SweepSettings) -> tuple[int, ...]:
    """The layers that `settings` allow for this encoder; raises what `finetune` raises for other values."""
    Picker(settings.pick, settings.within)
    check_strategy(settings.strategy)
    if encoder.heads is not None:
        raise UsageError(
            f"{encoder.name} is a frozen model with heads: its vectors are theirs, not those of a layer.",
            hint="Name the model that they were trained for; `finetune_frozen()` trains heads.",
        )
    return layers_named(encoder, settings.layers)
