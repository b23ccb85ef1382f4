"""What `finetune` trains on first: options and their effects."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from truncate_kit.errors import UsageError

from .output import note

if TYPE_CHECKING:
    from truncate_kit.encoders import Encoder
    from truncate_kit.priors import WordPrior
    from truncate_kit.progress import Progress
    from truncate_kit.training.distributed import Group

PriorWordsOpt = Annotated[
    Path | None,
    typer.Option("--prior-words", help="Learn word similarity first, at the same layer: a folder with rg65.csv, …"),
]
PriorTextsOpt = Annotated[
    Path | None, typer.Option("--prior-texts", help="Adapt to this raw text first, by filling in masked words.")
]
PriorLayerOpt = Annotated[
    int | None, typer.Option("--prior-layer", help="Cut there before adapting; by default the last layer.")
]
PriorEpochsOpt = Annotated[int | None, typer.Option("--prior-epochs", help="Epochs over --prior-texts; default 10.")]


def check_priors(texts: Path | None, layer: int | None, epochs: int | None) -> None:
    """Raise `UsageError` where an option of `--prior-texts` stands alone."""
    if texts is None and (layer is not None or epochs is not None):
        raise UsageError(
            "--prior-layer and --prior-epochs say how to adapt to raw text.", hint="Add --prior-texts FILE."
        )


def adapt_first(
    encoder: "Encoder",
    texts: Path | None,
    out: Path,
    layer: int | None,
    epochs: int | None,
    precision: str,
    *,
    group: "Group",
    progress: "Progress",
    quiet: bool,
) -> "Encoder":
    """The encoder adapted to the texts of a file, or as it is without one; what it cost is said.

    Raises `UsageError` for processes of `torchrun` that have no texts to share.
    """
    check_shared(group, texts is not None)
    if texts is None:
        return encoder
    from truncate_kit.data import read_texts
    from truncate_kit.priors import AdaptationSettings, adapted

    settings = AdaptationSettings(precision=precision, **({} if epochs is None else {"epochs": epochs}))
    raw = read_texts(texts)
    note(f"First the encoder is adapted to {len(raw):,} texts of {texts}.", quiet=quiet)
    model, result = adapted(encoder, raw, out / "adapted", settings, layer=layer, group=group, progress=progress)
    head = "the checkpoint's head" if result.head_pretrained else "a new head"
    note(
        f"Adapted at layer {result.layer} to {result.num_texts:,} texts with {head}: masked cross entropy "
        f"{result.losses[0]:.3f} before, {result.losses[result.best_epoch]:.3f} after epoch {result.best_epoch}, on "
        f"{result.num_held_out:,} texts held out.",
        quiet=quiet,
    )
    return model


def check_shared(group: "Group", has_texts: bool) -> None:
    """Raise `UsageError` where several processes were started and there is no adaptation for them to share."""
    if group.size > 1 and not has_texts:
        raise UsageError(
            f"There is nothing to adapt to that these {group.size} processes could share.",
            hint="Start the command without torchrun; --workers runs several trials at once.",
        )


def word_prior(encoder: "Encoder", folder: Path | None, precision: str, *, quiet: bool) -> "WordPrior | None":
    """Word similarity as the first training of every trial. Raises the errors of `load_words`."""
    if folder is None:
        return None
    from truncate_kit.data import load_words
    from truncate_kit.priors import WordPrior, word_training

    words = load_words(folder)
    for statement in words.notes:
        note(f"Before each trial: {statement}", quiet=quiet)
    return WordPrior(encoder, words, word_training(precision))
