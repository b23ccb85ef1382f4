"""Commands that train: finetune, distill, contrast, freeze, combine."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from truncate_kit.core.errors import ModelError, UsageError, known_name
from truncate_kit.core.files import unfinished
from truncate_kit.core.settings import TRAINING, blocks_named, setting
from truncate_kit.core.wording import place_in_words
from truncate_kit.core.workspace import DataSource, ModelSource

from . import options
from .console import progress_bar, show, watching
from .options import (
    Machine,
    Push,
    argument,
    command,
    data_option,
    given,
    layers_option,
    names_in,
    refuse,
    results_option,
    training_option,
    use_threads,
)
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.core.progress import Progress
    from truncate_kit.data.pairs import PairSet, PairSplits
    from truncate_kit.data.retrieval import RetrievalSet
    from truncate_kit.data.triplets import TripletSet
    from truncate_kit.methods.bert_lc.settings import CombineSettings
    from truncate_kit.methods.contrast.settings import ContrastiveSettings
    from truncate_kit.methods.distill.settings import Budget, DistillSettings
    from truncate_kit.methods.frozen.settings import FrozenSettings
    from truncate_kit.methods.priors import WordPrior
    from truncate_kit.methods.tmft.settings import SweepSettings
    from truncate_kit.models.encoder import Encoder
    from truncate_kit.training.distributed import Group
    from truncate_kit.training.settings import Objective, TrainingSettings

FREEZE_POOLING = "last"  # the FREEZE report reads the last token
SHOWN_SENTENCES = 8  # whose attention is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """What `finetune` trains on first. Raises `UsageError` where an option of `--prior-texts` stands alone."""

    prior_words: Path | None = setting(
        None,
        "Learn word similarity first, at the same layer: a folder with rg65.csv, …; of WordSim-353 the part "
        "wordsim353_sim.csv where it is there.",
        TRAINING,
        kind=Path,
    )
    prior_texts: Path | None = setting(
        None,
        "Adapt to this raw text first, by filling in masked words, at least one of a text; 5 % are held out and the "
        "best epoch is kept, of which the TMFT paper says nothing.",
        TRAINING,
        kind=Path,
    )
    prior_layer: int | None = setting(None, "Cut there before adapting; by default the last layer.", TRAINING, kind=int)
    prior_epochs: int | None = setting(None, "Epochs over --prior-texts; by default 10.", TRAINING, kind=int)

    def __post_init__(self) -> None:
        if self.prior_texts is None and (self.prior_layer is not None or self.prior_epochs is not None):
            raise UsageError(
                "`prior_layer` and `prior_epochs` say how to adapt to raw text.", hint="Add --prior-texts FILE."
            )

    def adapt(
        self, encoder: "Encoder", workspace: Workspace, precision: str, group: "Group", progress: "Progress"
    ) -> "Encoder":
        """Adapt the encoder to the texts and note the cost; without texts return it as it is."""
        check_shared(group, self.prior_texts is not None)
        if self.prior_texts is None:
            return encoder
        from truncate_kit.data.tables import read_texts
        from truncate_kit.methods.priors import adapted
        from truncate_kit.training.settings import AdaptationSettings

        settings = AdaptationSettings(precision=precision, **given(epochs=self.prior_epochs))
        raw, place = read_texts(self.prior_texts), workspace.folder / "adapted"
        workspace.note(f"First the encoder is adapted to {len(raw):,} texts of {self.prior_texts}.")
        model, result = adapted(encoder, raw, place, settings, layer=self.prior_layer, group=group, progress=progress)
        head = "the checkpoint's head" if result.head_pretrained else "a new head"
        workspace.note(
            f"Adapted at layer {result.layer} to {result.num_texts:,} texts with {head}: masked cross entropy "
            f"{result.losses[0]:.3f} before, {result.losses[result.best_epoch]:.3f} after epoch {result.best_epoch}, "
            f"on {result.num_held_out:,} texts held out."
        )
        return model

    def word_prior(self, encoder: "Encoder", precision: str, workspace: Workspace | None = None) -> "WordPrior | None":
        """Return word similarity as the first training of every trial, noted in the workspace."""
        if self.prior_words is None:
            return None
        from truncate_kit.data.pairs import load_words
        from truncate_kit.methods.priors import WordPrior
        from truncate_kit.training.settings import word_training

        words = load_words(self.prior_words)
        if workspace is not None:
            workspace.note(*(f"Before each trial: {statement}" for statement in words.notes))
        return WordPrior(encoder, words, word_training(precision))

    def for_card(self, layer: int, depth: int, blocks: tuple[int, ...] | None = None) -> str:
        """Return what was learned before the task, in the words of a model card."""
        parts = []
        if self.prior_texts is not None:
            alone = "" if layer == depth else ", but for the full model"
            parts.append(f"masked words of {self.prior_texts.name} at {place_in_words(layer, blocks)}{alone}")
        if self.prior_words is not None:
            parts.append("word similarity, at the layer of each model")
        return "; ".join(parts)


def check_shared(group: "Group", has_texts: bool) -> None:
    """Raise `UsageError` where several processes were started and there is no adaptation for them to share."""
    if group.size > 1 and not has_texts:
        raise UsageError(
            f"There is nothing to adapt to that these {group.size} processes could share.",
            hint="Start the command without torchrun; `workers` runs several trials at once.",
        )


@command(
    "truncate-kit finetune google/electra-base-discriminator --data stsb",
    "truncate-kit finetune MODEL --data mine.csv --columns left,right,grade --layer 3,6",
)
def finetune(
    model: options.Model = None,
    data: str | None = data_option(
        None,
        "Pairs: a CSV, TSV, JSONL or Parquet file, a folder of splits, or a hub name such as stsb; or queries and "
        "documents, a retrieval folder (BEIR's layout), of which some queries teach and others choose; by default "
        "the pairs of the last command that analyzed, trained or exported, else the bundled set.",
    ),
    columns: options.Columns = None,
    scale: options.Scale = None,
    retrieval: Path | None = data_option(
        None, "Beside pairs, a retrieval folder: nDCG@10 of half its queries chooses epochs and layer."
    ),
    search_metric: options.SearchMetric = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    layer: options.Layers = None,
    blocks: str | None = layers_option(
        None, "Keep these blocks, such as 1,4,6 or 1..3,6, and train them all; --layer cuts them too."
    ),
    *,
    settings: "SweepSettings",
    training: "Annotated[dict[str, Any], TrainingSettings]",
    teacher: str | None = training_option(
        None, "Model whose vectors are learned beside the labels, such as the fine-tuned full model."
    ),
    teacher_weight: float = training_option(1.0, "Weight of the teacher's vectors against the labels."),
    priors: Priors,
    machine: Machine,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    tensorboard: options.Tensorboard = False,
    push: Push,
    as_json: options.Json = False,
) -> None:
    """Fine-tune the model cut at a layer, several, the best one, or to some blocks; save it beside the full model."""
    from truncate_kit.methods.tmft.finetune import Preparation, check_sweep, sweep_prediction
    from truncate_kit.methods.tmft.finetune import finetune as run
    from truncate_kit.methods.tmft.trials import kept_encoder
    from truncate_kit.models.truncation import truncate
    from truncate_kit.report.card import add_figure
    from truncate_kit.training.distributed import joined
    from truncate_kit.training.settings import TrainingSettings, word_training

    kept = None if blocks is None else blocks_named(blocks)
    if layer is None and kept is not None:
        layer = str(len(kept) if priors.prior_layer is None else priors.prior_layer)
    settings = replace(settings, layers=layer or settings.layers)
    if settings.strategy is not None and settings.layers != "auto":
        raise UsageError(
            f"`strategy={settings.strategy}` searches for a layer, and `layers={settings.layers}` is given.",
            hint="Leave out one of the two.",
        )
    row = _objective(training.pop("objective", None), data, retrieval)
    judged, precision = row.data == "judged", training["precision"]
    if teacher is None and teacher_weight != 1:
        raise UsageError("`teacher_weight` weighs the vectors of a teacher.", hint="Add `teacher`.")
    if retrieval is None and not judged:
        refuse("--retrieval or a retrieval folder", search_metric=search_metric)
    use_threads(machine.threads)
    with joined(machine.device) as (group, here):
        workspace = Workspace(folder, quiet=as_json or not group.leads)
        before = (data, retrieval, teacher, priors.prior_words, priors.prior_texts)
        source = workspace.starting_model(model, pooling, max_length, or_miniature=all(one is None for one in before))
        pairs, searched, found = _labelled(workspace, row, data, columns, scale, retrieval, search_metric)
        trained = replace(
            TrainingSettings() if pairs.shares is None else word_training(), objective=row.name, **training
        )
        full = workspace.load(source, device=here, precision=precision)
        # All that can be wrong is said before an adaptation, which may take days.
        encoder = full if kept is None else kept_encoder(full, kept)
        check_sweep(encoder if priors.prior_layer is None else truncate(encoder, priors.prior_layer), settings)
        priors.word_prior(full, precision)
        taught = None if teacher is None else _teacher(workspace, teacher, teacher_weight, source, here, full)
        prediction = None
        # Both take long: no other command leaves a model here meanwhile, which training would then replace.
        with workspace.held() if group.leads else nullcontext(), progress_bar(quiet=workspace.quiet) as progress:
            workspace.note_replaced(source)
            encoder = priors.adapt(encoder, workspace, precision, group, progress)
            if group.leads:
                prediction = sweep_prediction(encoder, pairs, settings, trained, max_length=source.max_length)
    if not group.leads:  # only an adaptation is shared
        return
    adapted = nullcontext() if priors.prior_texts is None else unfinished(workspace.folder / "adapted", shared=True)
    with adapted, machine.open() as engine, watching(folder, tensorboard=tensorboard, quiet=as_json) as watcher:
        result = run(
            encoder,
            pairs,
            out=folder,
            settings=settings,
            training=trained,
            prediction=prediction,
            before=Preparation(
                prior=priors.word_prior(encoder, precision, workspace),
                full=full if encoder.depth < full.depth else None,
                teacher=taught,
                words=priors.for_card(encoder.depth, full.depth, kept),
                blocks=None if kept is None else kept[: encoder.depth],
            ),
            retrieval=searched,
            progress=watcher,
            engine=engine,
        )
    queries = data if judged else retrieval
    # Classes and judgements are no scores: what comes next must not look for similarity in them.
    workspace.remember(
        source,
        found if row.data in ("scores", "labels") else None,
        queries=None if queries is None else str(queries),
    )
    (curve,) = show(result, as_json=as_json, figures=workspace.folder)
    add_figure(workspace.lean, curve, "Scores by layer")
    workspace.say(f"Saved: {workspace.lean} (seed {result.chosen_seed}), {workspace.full}, {curve}")
    workspace.note(push.upload(workspace.lean))


def _objective(name: str | None, data: str | None, retrieval: Path | None) -> "Objective":
    """Return the objective named, else the usual one of the data. Raises `UsageError` if they do not fit."""
    from truncate_kit.data.retrieval import is_retrieval_folder
    from truncate_kit.training.settings import DATA_WORDS, SEARCH, find_objective

    judged = data is not None and is_retrieval_folder(data)
    row = find_objective(name or (SEARCH if judged else "cosine"), "tmft")
    learns = f"The objective {row.name} learns from {DATA_WORDS[row.data]}"
    if judged and row.data != "judged":
        raise UsageError(
            f"{learns}, and {data} holds queries and documents.",
            hint="Leave out `objective`, or give pairs as `data` and the folder as `retrieval`.",
        )
    if judged and retrieval is not None:
        raise UsageError(
            f"{data} has queries of its own to choose by, and `retrieval` names others.",
            hint="Leave out `retrieval`, or give pairs as `data`.",
        )
    if not judged and row.data == "judged":
        raise UsageError(
            f"{learns}.",
            hint="Name one as `data`, with corpus.jsonl, queries.jsonl and qrels/, or leave out `objective`.",
        )
    return row


def _labelled(
    workspace: Workspace,
    row: "Objective",
    data: str | None,
    columns: str | None,
    scale: str | None,
    retrieval: Path | None,
    metric: str | None,
) -> "tuple[PairSplits, RetrievalSet | None, DataSource]":
    """Return the training pairs, the optional selection queries, and the data source."""
    from truncate_kit.data.retrieval import read_retrieval
    from truncate_kit.training.examples import check_queries
    from truncate_kit.training.tasks import read_judged

    if row.data == "judged":
        refuse("graded pairs", columns=columns, scale=scale)
        assert data is not None
        pairs, searched = read_judged(data, **given(metric=metric))
        workspace.note(*pairs.notes)
        return pairs, searched, DataSource(data)
    pairs, found = workspace.data(data, columns, scale, classes=row.data == "classes")
    pairs = workspace.divided(pairs)
    row.check_targets(pairs, scored=retrieval is None)
    if retrieval is None:
        return pairs, None, found
    queries = read_retrieval(retrieval, chooses=True, **given(metric=metric))
    check_queries(queries)
    workspace.note(queries.note)
    return pairs, queries, found


def _teacher(
    workspace: Workspace, name: str, weight: float, source: ModelSource, device: str | None, learner: "Encoder"
) -> Any:
    """Load a teacher that reads as many tokens as what learns from it, on the same device."""
    from truncate_kit.training.tasks import Teacher

    return Teacher(workspace.load(ModelSource(name, max_length=source.max_length), device=device), weight)


@command(
    "truncate-kit distill sentence-transformers/all-MiniLM-L6-v2 --texts sentences.txt",
    "truncate-kit distill MODEL --texts sentences.txt --speedup 2 --exclude test.csv",
)
def distill(
    model: options.Model = None,
    texts: list[Path] | None = data_option(
        None,
        "Raw text to learn from, tens of thousands or more, as long as yours, or a folder for retrieval, of which "
        "the documents count; needed, repeatable.",
        metavar="PATH",
    ),
    queries: Path | None = data_option(
        None, "Texts that will be searched with; they get the model's prompt for queries."
    ),
    data: str | None = data_option(
        None, "Graded pairs, or a retrieval folder, to choose by; by default agreement with the full model."
    ),
    columns: options.Columns = None,
    scale: options.Scale = None,
    search_metric: options.SearchMetric = None,
    exclude: list[Path] | None = data_option(
        None,
        "Texts or pairs, a folder of them or for retrieval, not to learn from; whole texts count; repeatable.",
        metavar="PATH",
    ),
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    *,
    budget: "Budget",
    layer: str = layers_option(
        "auto", "Learn this layer's vectors: a number, last, or auto, the one before a predicted drop."
    ),
    vocabulary_from: options.VocabularyFrom = None,
    settings: "DistillSettings",
    machine: Machine,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    push: Push,
    as_json: options.Json = False,
) -> None:
    """Keep the fewest blocks that still give the full model's vectors, which they learn from raw text."""
    if not texts:
        raise UsageError("There are no texts to learn from.", hint="Give --texts FILE, like those to be served.")
    number = int(layer) if layer.isdecimal() and len(layer) < 10 else None
    if number is None and layer not in ("auto", "last"):
        raise UsageError(f"There is no layer {layer!r}.", hint="Give it as a number, or auto or last.")
    if data is None:
        refuse("--data", columns=columns, scale=scale, search_metric=search_metric)
    if queries is None and settings.query_weight != 1:
        raise UsageError("`query_weight` weighs queries.", hint="Add `queries`.")
    from truncate_kit.data.tables import iter_texts
    from truncate_kit.methods.distill.distilling import distill as run
    from truncate_kit.methods.distill.distilling import find_aim
    from truncate_kit.methods.distill.texts import RawTexts
    from truncate_kit.training.distributed import joined

    use_threads(machine.threads)
    left_out = {text for path in exclude or () for text in _texts_in(path)}
    with joined(machine.device) as (group, here):
        workspace = Workspace(folder, quiet=as_json or not group.leads)
        source = workspace.starting_model(model, pooling, max_length)
        held_out, found = _held_out(data, columns, scale, search_metric, workspace)
        encoder = workspace.load(source, device=here, precision=settings.precision)
        vocabulary = None if vocabulary_from is None else _texts_in(vocabulary_from)
        aim = number
        if layer == "auto" and group.leads:
            aim, drop = find_aim(encoder, _learned_from(texts), budget, max_length=source.max_length)
            if drop is not None and aim is None:
                workspace.note(
                    f"{drop.sentence} The vectors of its end are no good aim: cut it first (`truncate-kit cut "
                    f"{source.name} --layer {drop.last_before}`), or train it with `truncate-kit finetune`."
                )
            elif drop is not None:
                workspace.note(
                    f"{drop.sentence} So the vectors of layer {aim} are learned; --layer last learns those of the end."
                )
        settings = replace(settings, layer=group.agree(aim))
        workspace.note_replaced(source, distilled=True)
        with machine.open() as engine, progress_bar(quiet=workspace.quiet) as progress:
            result = run(
                encoder,
                RawTexts(
                    texts=_learned_from(texts),
                    queries=() if queries is None else iter_texts(queries),
                    exclude=left_out,
                    vocabulary=vocabulary,
                ),
                out=folder,
                budget=budget,
                settings=settings,
                data=held_out,
                engine=engine,
                group=group,
                progress=progress,
            )
        if not group.leads:
            return
    workspace.remember(source, found, queries=None if found else data)
    (figure,) = show(result, as_json=as_json, figures=workspace.folder)
    workspace.say(f"Saved: {workspace.lean}, {workspace.full}, {figure}")
    workspace.note(push.upload(workspace.lean))


def _held_out(
    data: str | None, columns: str | None, scale: str | None, search_metric: str | None, workspace: Workspace
) -> "tuple[PairSplits | RetrievalSet | None, DataSource | None]":
    """Return what chooses and is reported, and, for pairs, what the workspace remembers of it."""
    from truncate_kit.data.retrieval import is_retrieval_folder, read_retrieval

    if data is None:
        return None, None
    if is_retrieval_folder(data):
        refuse("graded pairs", columns=columns, scale=scale)
        searched = read_retrieval(data, chooses=True, **given(metric=search_metric))
        workspace.note(searched.note)
        return searched, None
    refuse("a retrieval folder", search_metric=search_metric)
    pairs, found = workspace.data(data, columns, scale)
    return pairs if pairs.dev is not None else workspace.divided(pairs), found  # no train pairs are needed


def _learned_from(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the texts of files and the documents of retrieval folders; documents may be empty."""
    from truncate_kit.data.retrieval import is_retrieval_folder, read_retrieval
    from truncate_kit.data.tables import iter_texts

    for path in paths:
        if is_retrieval_folder(path):
            yield from filter(None, read_retrieval(path, chooses=True).documents)
        else:
            yield from iter_texts(path)


def _texts_in(path: Path) -> list[str]:
    """Return all texts of a file, of the files of a folder, or of a retrieval folder."""
    from truncate_kit.data.retrieval import is_retrieval_folder, read_retrieval
    from truncate_kit.data.tables import read_texts

    if is_retrieval_folder(path):
        return sorted(read_retrieval(path, chooses=True).held_out - {""})
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [text for file in files for text in read_texts(file)]


@command(
    "truncate-kit contrast MODEL --triplets nli.csv",
    "truncate-kit contrast MODEL --objective dropout --texts raw.txt",
)
def contrast(
    model: options.Model = None,
    triplets: str | None = data_option(
        None, "What is learned: a file, folder or hub name with anchor, positive[, negative], or an NLI set."
    ),
    triplet_columns: str | None = data_option(
        None,
        "Columns of --triplets, if their names do not say it; for an NLI set PREMISE,HYPOTHESIS,LABEL.",
        metavar="ANCHOR,POSITIVE[,NEGATIVE]",
    ),
    texts: Path | None = data_option(
        None, "Raw text for the objectives dropout and diffcse; by default that of the train pairs."
    ),
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    pooling: str = layers_option(
        "layer-attention",
        "cls, mean, first-last, mean-first-last, concat, cls-attention, mean-attention, attention, layer-attention: "
        "the rows of the paper's Table 2, with attention as the authors' code has it, not equations 1 to 3; see "
        "--literal.",
    ),
    *,
    values: "Annotated[dict[str, Any], ContrastiveSettings]",
    generator: str | None = training_option(
        None,
        "Of diffcse: the masked language model that fills in words; by default MODEL as it came, where DiffCSE has "
        "DistilBERT.",
    ),
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    sentences: Path | None = results_option(
        None, "Texts whose layer attention is drawn; by default some of test, or of dev without it."
    ),
    push: Push,
    as_json: options.Json = False,
) -> None:
    """Train one layer by contrast, from pairs that mean the same or from raw text; --data is what it is measured on."""
    from truncate_kit.methods.contrast.settings import TABLE_2, ContrastiveSettings
    from truncate_kit.training.settings import OBJECTIVES

    if triplets is None:
        refuse("--triplets", triplet_columns=triplet_columns)
    named = TABLE_2[known_name("pooling", pooling, TABLE_2)]
    if pooling != "layer-attention" and ("over" in values or "last_cls" in values):
        raise UsageError(f"The pooling {pooling} leaves nothing to set up.", hint="Use `pooling=layer-attention`.")
    row = {"pooling": named.pooling, "over": named.over, "last_cls": named.last_cls}
    settings, max_length = ContrastiveSettings(**row | values), values.get("max_tokens")
    attends = settings.pooling == "layer-attention" and settings.keep_pooler
    if sentences is not None and not attends:
        raise UsageError("`sentences` shows layer attention, which this model does not keep.", hint="Leave it out.")
    filling = [one.name for one in OBJECTIVES.values() if one.fills_words]
    if settings.objective not in filling:
        refuse(f"--objective {' or '.join(filling)}", generator=generator)
    from truncate_kit.data.tables import read_texts
    from truncate_kit.methods.contrast.model import layer_weights
    from truncate_kit.methods.contrast.running import finetune_contrastive
    from truncate_kit.models.loading import load_encoder
    from truncate_kit.training.distributed import joined

    use_threads(threads)
    with joined(device) as (group, here):
        workspace = Workspace(folder, quiet=as_json or not group.leads)
        source = replace(workspace.starting_model(model, None, max_length), pooling=None)
        encoder = workspace.load(source, device=here, precision=settings.precision)
        pairs, found = workspace.data(data, columns, scale)
        pairs = pairs if pairs.dev is not None else workspace.divided(pairs)
        rows = _rows(settings.objective, triplets, names_in(triplet_columns), texts, pairs)
        workspace.note(rows.note)
        # Read before training, so that a wrong file costs nothing.
        shown = read_texts(sentences) if sentences is not None else pairs.evaluation.texts()[:SHOWN_SENTENCES]
        fills = None if generator is None else load_encoder(generator, device=encoder.device.type)
        workspace.note_replaced(source)
        with progress_bar(quiet=workspace.quiet) as progress:
            result = finetune_contrastive(
                encoder, rows, pairs, out=folder, settings=settings, generator=fills, group=group, progress=progress
            )
        if not group.leads:
            return
    workspace.forget_lean()
    workspace.remember(source, found)
    show(result, as_json=as_json)
    drawn: list[Path] = []
    if attends:
        weights = layer_weights(load_encoder(workspace.lean), shown)
        weights.write(workspace.attention)
        drawn = show(weights, as_json=None, figures=workspace.folder)
    workspace.say(f"Saved: {workspace.lean} (seed {result.chosen_seed})" + "".join(f", {figure}" for figure in drawn))
    if settings.keep_pooler and settings.pooling in ("layer-attention", "mean-first-last"):
        workspace.say("sentence-transformers loads it with trust_remote_code=True: it has no such pooling of its own.")
    workspace.note(push.upload(workspace.lean))


def _rows(
    objective: str, triplets: str | None, columns: Sequence[str] | None, texts: Path | None, pairs: "PairSplits"
) -> "TripletSet":
    """Read what the objective learns from. Raises `UsageError` if it was not given, `DataError`."""
    from truncate_kit.data.tables import read_texts
    from truncate_kit.data.triplets import load_triplets, raw_texts
    from truncate_kit.training.settings import OBJECTIVES

    data = OBJECTIVES[objective].data
    if data == "texts":
        refuse("objectives that learn from pairs", triplets=triplets)
        if texts is not None:
            return raw_texts(texts.name, read_texts(texts))
        if pairs.train is None:
            raise UsageError("There are no texts to learn from.", hint="Give --texts FILE.")
        return raw_texts(pairs.train.name, pairs.train.texts())
    refuse("objectives that learn from raw text", texts=texts)
    if triplets is None:
        raise UsageError(
            f"The objective {objective} has nothing to learn from.",
            hint="Give --triplets FILE with anchor, positive[, negative] or an NLI set; --data is for measuring.",
        )
    return load_triplets(triplets, columns=columns, negatives=data == "negatives")


@command("truncate-kit freeze MODEL --data pairs.csv")
def freeze(
    model: options.Model = None,
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    texts: Path | None = data_option(
        None, "Raw text for the autoencoders, in the FREEZE report GenericsKB; without it there are none."
    ),
    nli: str | None = data_option(
        None,
        "Pairs labelled entailment, neutral, contradiction to learn first, as scores 1, ½ and 0, which are not "
        "from the FREEZE report.",
    ),
    pooling: str | None = data_option(None, f"mean, cls, max or last; by default {FREEZE_POOLING}."),
    max_length: options.MaxLength = None,
    *,
    values: "Annotated[dict[str, Any], FrozenSettings]",
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    push: Push,
    as_json: options.Json = False,
) -> None:
    """Train heads over the states of all blocks, computed once, and no block itself."""
    from truncate_kit.data.tables import read_texts
    from truncate_kit.methods.frozen.run import finetune_frozen
    from truncate_kit.methods.frozen.settings import AUTOENCODER, COSINE, SIAMESE, STEPS, FrozenSettings

    workspace = Workspace(folder, quiet=as_json)
    if "steps" not in values and texts is None:
        values["steps"] = tuple(step for step in STEPS if step != AUTOENCODER)
        workspace.note("Without raw sentences there are no autoencoders: name a file with --texts.")
    settings = FrozenSettings(**values)
    if set(settings.steps) == {COSINE}:
        refuse(f"the steps {SIAMESE} and {AUTOENCODER}", codes=settings.codes, depth=settings.depth > 1)
    if texts is not None and AUTOENCODER not in settings.steps:
        raise UsageError("--texts is for the autoencoders.", hint=f"Leave it out, or add {AUTOENCODER} to --steps.")
    use_threads(threads)
    source = workspace.starting_model(model, pooling, max_length)
    read = replace(source, pooling=source.pooling or FREEZE_POOLING)
    encoder = workspace.load(read, device=device, precision=settings.precision)
    raw = read_texts(texts) if texts is not None else None
    first = _nli(nli) if nli is not None else None
    pairs, found = workspace.data(data, columns, scale)
    pairs = workspace.divided(pairs)
    with progress_bar(quiet=as_json) as progress:
        report = finetune_frozen(encoder, pairs, out=folder, settings=settings, raw=raw, nli=first, progress=progress)
    workspace.remember(source, found)
    for name in ("reconstruction", "reconstruction-own-units", "blocks"):  # of a report whose place this one takes
        (workspace.frozen_heads / f"{name}.png").unlink(missing_ok=True)
    figures = show(report, as_json=as_json, figures=workspace.frozen_heads)
    workspace.say(
        f"Saved: {workspace.frozen}. As a graph: truncate-kit export {workspace.frozen} --onnx "
        f"--workspace {workspace.folder}",
        f"Figures: {', '.join(map(str, figures))}",
    )
    workspace.note(push.upload(workspace.frozen))


def _nli(name: str) -> "PairSet":
    """Read the first split of a set with classes. Raises `DataError`."""
    from truncate_kit.data.pairs import load_pairs

    return load_pairs(name, classes=True, divide=False).items()[0][1]


@command("truncate-kit combine MODEL --data stsb")
def combine(
    model: str | None = argument(
        None, "MODEL", "Model folder, hub name or bundled miniature; by default WORKSPACE/lean, else as for finetune."
    ),
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    split: str | None = data_option(
        None, "Split that is divided: train, dev or test; by default as evaluate. BERT-LC joins all."
    ),
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    *,
    settings: "CombineSettings",
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    as_json: options.Json = False,
) -> None:
    """Find the layers whose mean or maximum makes the best sentence vectors (BERT-LC); save the model cut above."""
    from truncate_kit.core.hardware import usable_cores
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.methods.bert_lc.combine import combine as run
    from truncate_kit.methods.bert_lc.combine import combined_encoder
    from truncate_kit.methods.bert_lc.settings import CombineSettings
    from truncate_kit.models.loading import find_pooler_head
    from truncate_kit.models.pipeline import origin_of, save_encoder
    from truncate_kit.models.store import output_folder

    has_width = settings.width != CombineSettings().width
    if settings.search == "exact" or not settings.has_grams:
        refuse("a beam search", width=has_width)
    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    if model is None and workspace.lean.is_dir():
        source = workspace.finished_model(None, pooling, max_length)
    else:
        source = workspace.starting_model(model, pooling, max_length)
    encoder = workspace.load(source, device=device)
    trained = find_pooler_head(source.name, required=settings.head)  # without --head a baseline alone
    found, named = workspace.data(data, columns, scale)
    if split is not None:
        found = PairSplits(name=found.name, test=found.split(split), notes=found.notes)
    pairs = workspace.unseen(found, source.name).evaluation
    if len(pairs) // 2 < settings.dev_pairs:
        workspace.note(f"{pairs.name} holds {len(pairs):,} pairs: half of them are for choosing.")
    with output_folder(folder, encoder, workspace.combined.name):  # before a search whose model could not be saved
        with progress_bar(quiet=as_json) as progress:
            report = run(
                encoder, pairs, settings=settings, head=trained, threads=threads or usable_cores(), progress=progress
            )
        report.write(workspace.combination_file)
        try:
            head = trained if settings.head else None
            lean = combined_encoder(encoder, report.chosen, over=settings.over, head=head)  # type: ignore[arg-type]  # of the settings
            chosen = report.settings.to_dict() | {"layers": report.chosen}
            origin = origin_of("combine", encoder, lean, data=pairs, settings=chosen)
            card = report.card(lean, origin)
            save_encoder(lean, workspace.combined, model_card=card, origin=origin)
            pooled = lean.pooler is not None
            saved = (
                f"Saved: {workspace.combined} ({lean.depth} of {report.depth} layers, {lean.num_parameters:,} "
                f"parameters).{' sentence-transformers loads it with trust_remote_code=True.' if pooled else ''} As a "
                f"graph: truncate-kit export {workspace.combined} --onnx --workspace {workspace.folder}"
            )
        except ModelError as error:
            earlier = f" {workspace.combined} is that of an earlier search." if workspace.combined.is_dir() else ""
            saved = f"The model was not saved: {error} {error.hint}{earlier}"
        workspace.remember(None if workspace.holds(source.name) else source, named)
    if report.method == "exact" and has_width:
        workspace.note("The search was exact: --beam-width goes with a beam search only.")
    figures = show(report, as_json=as_json, figures=workspace.combination)
    workspace.say(saved, f"Figures: {', '.join(map(str, figures))}")
