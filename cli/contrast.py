"""`truncate-kit contrast`: contrastive training at one layer, with attention over all layers below it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from truncate_kit.bounds import first_seeds
from truncate_kit.errors import UsageError, known_name
from truncate_kit.methods.contrast.poolings import TABLE_2
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.training.objectives import OBJECTIVES, described, objective_names
from truncate_kit.wording import counted

from . import options
from .options import data_option, layers_option, names_in, refuse, results_option, training_option, use_threads
from .output import print_json, progress_bar, say, table
from .pushing import check_push, push
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits, TripletSet
    from truncate_kit.methods.contrast.contrastive_result import ContrastiveResult
    from truncate_kit.models import Encoder

SETTINGS = ContrastiveSettings()
SEEDS = len(SETTINGS.seeds)
EPOCHS = ", ".join(f"{OBJECTIVES[name].epochs} for {name}" for name in objective_names("contrast"))
ROWS = ", ".join(f"{OBJECTIVES[name].batch_size} for {name}" for name in objective_names("contrast"))
RATE = (
    "Peak learning rate; by default that of the paper's Table 4 from width 768 on; of narrower models 2e-5 times 768 "
    "by the width, at most 1e-4. docs/papers/layer-attention.md has the table."
)
NLI = "Of an NLI set the k-th entailment of a premise goes with its k-th contradiction."
SHOWN_SENTENCES = 8


def contrast(
    model: options.Model = None,
    triplets: Annotated[
        str | None,
        data_option("What is learned: a file, folder or hub name with anchor, positive[, negative], or an NLI set."),
    ] = None,
    triplet_columns: Annotated[
        str | None,
        data_option(
            "Columns of --triplets, if their names do not say it; for an NLI set PREMISE,HYPOTHESIS,LABEL.",
            metavar="ANCHOR,POSITIVE[,NEGATIVE]",
        ),
    ] = None,
    texts: Annotated[
        Path | None, data_option("Raw text for the objectives dropout and diffcse; by default that of the train pairs.")
    ] = None,
    data: options.Data = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    max_length: Annotated[
        int | None,
        data_option(
            f"Tokens per text; by default {SETTINGS.max_tokens} of what is learned from, the model's limit elsewhere."
        ),
    ] = None,
    layer: Annotated[
        int | None, layers_option("Where the model is cut; by default at the last layer.")
    ] = SETTINGS.layer,
    pooling: Annotated[
        str,
        layers_option(
            f"{', '.join(TABLE_2)}: the rows of the paper's Table 2, with attention as the authors' code has it, not "
            "equations 1 to 3; see --literal."
        ),
    ] = SETTINGS.pooling,
    attend: Annotated[
        str | None,
        layers_option(
            "Of layer-attention: both (CLS asks, means answer; the default), cls or mean.", show_default=False
        ),
    ] = None,
    last_cls: Annotated[
        bool | None,
        layers_option("Of layer-attention: put the last CLS before what it gives (the default).", show_default=False),
    ] = None,
    literal: Annotated[
        bool,
        layers_option("Attention by the printed equations: one weight for each layer, no softmax.", "--literal"),
    ] = SETTINGS.literal,
    mlp: Annotated[bool, layers_option("A fresh linear layer and tanh after the pooling.")] = SETTINGS.mlp,
    remove_pooler: Annotated[
        bool, layers_option("Use pooler and MLP in training only, then the top CLS (or mean) state.", "--remove-pooler")
    ] = not SETTINGS.keep_pooler,
    objective: Annotated[str, training_option(f"{described('contrast')}. {NLI}")] = SETTINGS.objective,
    seeds: options.Seeds = SEEDS,
    epochs: Annotated[
        int | None, training_option(f"By default {EPOCHS}; from the authors' code, SimCSE and DiffCSE, not the paper.")
    ] = SETTINGS.epochs,
    batch_size: Annotated[
        int | None, training_option(f"Rows per step; by default {ROWS}; see --learning-rate.")
    ] = SETTINGS.batch_size,
    chunk_size: Annotated[
        int | None, training_option("Texts encoded at a time; any batch in little memory.")
    ] = SETTINGS.chunk,
    learning_rate: Annotated[float | None, training_option(RATE)] = SETTINGS.learning_rate,
    generator: Annotated[
        str | None,
        training_option(
            "Of diffcse: the masked language model that fills in words; by default MODEL as it came, where DiffCSE has "
            "DistilBERT."
        ),
    ] = None,
    masked_share: Annotated[
        float,
        training_option(
            "Of diffcse: share of the tokens that are hidden, at least one of each text, and replaced by the likeliest "
            "word, these alone; the default is DiffCSE's, the layer attention paper gives none."
        ),
    ] = SETTINGS.masked_share,
    replaced_weight: Annotated[
        float,
        training_option("Of diffcse: weight of the loss over replaced words, a mean over real tokens; DiffCSE's, too."),
    ] = SETTINGS.replaced_weight,
    temperature: Annotated[float, training_option("Of the softmax.")] = SETTINGS.temperature,
    hard_negative_weight: Annotated[
        float,
        training_option("Of hard-negatives: added to the logit of an anchor's own negative; the authors' code has 1."),
    ] = SETTINGS.hard_negative_weight,
    dropout: Annotated[
        float | None,
        training_option("Share of the units dropped in training, such as 0.1; by default the model's own."),
    ] = SETTINGS.dropout,
    evaluate_every: Annotated[
        int | None, training_option("Steps between two evaluations on dev.")
    ] = SETTINGS.evaluate_every,
    precision: options.Precision = SETTINGS.precision,
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    sentences: Annotated[
        Path | None,
        results_option("Texts whose layer attention is drawn; by default some of test, or of dev without it."),
    ] = None,
    push_to: options.Push = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Train one layer by contrast, from pairs that mean the same or from raw text; --data is what it is measured on."""
    from truncate_kit.methods.contrast.running import finetune_contrastive
    from truncate_kit.training.distributed import joined

    check_push(push_to, public)
    if triplets is None:
        refuse("--triplets", triplet_columns=triplet_columns)
    settings = ContrastiveSettings(
        objective=objective,
        **_pooling(pooling, attend, last_cls),
        literal=literal,
        mlp=mlp,
        keep_pooler=not remove_pooler,
        layer=layer,
        temperature=temperature,
        hard_negative_weight=hard_negative_weight,
        masked_share=masked_share,
        replaced_weight=replaced_weight,
        dropout=dropout,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_tokens=SETTINGS.max_tokens if max_length is None else max_length,
        evaluate_every=evaluate_every,
        chunk=chunk_size,
        precision=precision,  # type: ignore[arg-type]  # likewise
        seeds=first_seeds(seeds),
    )
    if sentences is not None and not _attends(settings):
        raise UsageError("--sentences shows layer attention, which this model does not keep.", hint="Leave it out.")
    use_threads(threads)
    with joined(device) as (group, here):
        workspace = Workspace(folder, quiet=as_json or not group.leads)
        source = replace(workspace.starting_model(model, None, max_length), pooling=None)
        encoder = workspace.load(source, device=here, precision=precision)
        pairs, found = workspace.data(data, columns, scale)
        pairs = pairs if pairs.dev is not None else workspace.divided(pairs)
        rows = _rows(settings.objective, triplets, names_in(triplet_columns), texts, pairs)
        workspace.note(rows.note)
        shown = _shown(sentences, pairs)
        filling = _generator(generator, settings, encoder)
        workspace.note_replaced(source)
        with progress_bar(quiet=workspace.quiet) as progress:
            result = finetune_contrastive(
                encoder, rows, pairs, out=folder, settings=settings, generator=filling, group=group, progress=progress
            )
        if group.leads:
            workspace.forget_lean()
            workspace.remember(source, found)
            show(result, workspace, _draw(workspace, settings, shown))
            push(workspace.lean, push_to, public, quiet=as_json)


def _pooling(name: str, attend: str | None, last_cls: bool | None) -> dict[str, Any]:
    """The settings of a row of `TABLE_2`, with what the options change in them. Raises `UsageError`."""
    row = TABLE_2[known_name("pooling", name, TABLE_2)]
    changes = {"over": attend, "last_cls": last_cls}
    asked = {option: value for option, value in changes.items() if value is not None}
    if asked and name != "layer-attention":
        raise UsageError(f"The pooling {name} leaves nothing to set up.", hint="Use --pooling layer-attention.")
    return {"pooling": row.pooling, "over": row.over, "last_cls": row.last_cls} | asked


def _generator(name: str | None, settings: ContrastiveSettings, encoder: "Encoder") -> "Encoder | None":
    """The model of `--generator`. Raises `UsageError` where the objective has none."""
    from truncate_kit.models import load_encoder

    filling = [row.name for row in OBJECTIVES.values() if row.fills_words]
    if settings.objective not in filling:
        refuse(f"--objective {' or '.join(filling)}", generator=name)
    return None if name is None else load_encoder(name, device=encoder.device.type)


def _attends(settings: ContrastiveSettings) -> bool:
    """Whether the saved model has attention over its layers."""
    return settings.pooling == "layer-attention" and settings.keep_pooler


def _rows(
    objective: str, triplets: str | None, columns: Sequence[str] | None, texts: Path | None, pairs: "PairSplits"
) -> "TripletSet":
    """What the objective learns from. Raises `UsageError` where it was not given, `DataError`."""
    from truncate_kit.data import load_triplets, raw_texts, read_texts

    data = OBJECTIVES[objective].data
    if data == "texts":
        if triplets is not None:
            raise UsageError(f"The objective {objective} learns from raw text.", hint="Use --texts, not --triplets.")
        if texts is not None:
            return raw_texts(texts.name, read_texts(texts))
        if pairs.train is None:
            raise UsageError("There are no texts to learn from.", hint="Give --texts FILE.")
        return raw_texts(pairs.train.name, pairs.train.texts())
    if texts is not None:
        raise UsageError(f"The objective {objective} learns from pairs.", hint="Use --triplets, not --texts.")
    if triplets is None:
        raise UsageError(
            f"The objective {objective} has nothing to learn from.",
            hint="Give --triplets FILE with anchor, positive[, negative] or an NLI set; --data is for measuring.",
        )
    return load_triplets(triplets, columns=columns, negatives=data == "negatives")


def _shown(sentences: Path | None, pairs: "PairSplits") -> Sequence[str]:
    """The texts whose attention is drawn; read before training, so that a wrong file costs nothing."""
    from truncate_kit.data import read_texts

    return read_texts(sentences) if sentences is not None else pairs.evaluation.texts()[:SHOWN_SENTENCES]


def _draw(workspace: Workspace, settings: ContrastiveSettings, texts: Sequence[str]) -> Path | None:
    """The figure of the attention over layers, where the saved model has one."""
    from truncate_kit.methods.contrast.weights import layer_weights
    from truncate_kit.models import load_encoder
    from truncate_kit.report.attention_figure import draw_attention

    if not _attends(settings):
        return None
    found = layer_weights(load_encoder(workspace.lean), texts)
    found.write(workspace.attention)
    return draw_attention(found, workspace.attention_figure)


def show(result: "ContrastiveResult", workspace: Workspace, drawn: Path | None) -> None:
    """The result as JSON, or as a table and sentences."""
    from truncate_kit.report.training import pooling_words
    from truncate_kit.wording import points

    if workspace.quiet:
        print_json(result)
        return
    table(
        f"{result.settings.objective}, Spearman × 100 on {result.data}; {counted(len(result.trials), 'seed')}, "
        f"{counted(result.epochs, 'epoch')}, batch {result.batch_size}, peak learning rate {result.learning_rate:g}",
        ("pooling", "layer", "parameters", "dev", "test", "kept look"),
        [
            (
                pooling_words(result.settings),
                f"{result.layer} of {result.depth}",
                f"{result.parameters:,}",
                points(result.dev, result.dev_std),
                points(result.test, result.test_std),
                f"{result.chosen.best_epoch} of {len(result.chosen.dev_scores)}",
            )
        ],
    )
    say(*result.seen_sentences)
    say(f"Saved: {workspace.lean} (seed {result.chosen_seed})" + (f", {drawn}" if drawn else ""))
    if result.settings.keep_pooler and result.settings.pooling in ("layer-attention", "mean-first-last"):
        say("sentence-transformers loads it with trust_remote_code=True: it has no such pooling of its own.")
