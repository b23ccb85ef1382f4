"""What `finetune` trains on first: options and their effects."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from truncate_kit.errors import UsageError
from truncate_kit.files import unfinished
from truncate_kit.naming import place_in_words

from .options import given, training_option
from .workspace import Workspace

if TYPE_CHECKING:
    from truncate_kit.methods.priors.words import WordPrior
    from truncate_kit.models import Encoder
    from truncate_kit.progress import Progress
    from truncate_kit.training.distributed import Group

PriorWordsOpt = Annotated[
    Path | None,
    training_option(
        "Learn word similarity first, at the same layer: a folder with rg65.csv, …; of WordSim-353 the part "
        "wordsim353_sim.csv where it is there."
    ),
]
PriorTextsOpt = Annotated[
    Path | None,
    training_option(
        "Adapt to this raw text first, by filling in masked words, at least one of a text; 5 % are held out and the "
        "best epoch is kept, of which the TMFT paper says nothing."
    ),
]
PriorLayerOpt = Annotated[int | None, training_option("Cut there before adapting; by default the last layer.")]
PriorEpochsOpt = Annotated[int | None, training_option("Epochs over --prior-texts; by default 10.")]


@dataclass(frozen=True, slots=True)
class Priors:
    """What is learned before the task. Raises `UsageError` where an option of `--prior-texts` stands alone."""

    words: Path | None
    texts: Path | None
    layer: int | None
    epochs: int | None
    precision: str

    def __post_init__(self) -> None:
        """Refuse what would be ignored."""
        if self.texts is None and (self.layer is not None or self.epochs is not None):
            raise UsageError(
                "--prior-layer and --prior-epochs say how to adapt to raw text.", hint="Add --prior-texts FILE."
            )

    def adapt(self, encoder: "Encoder", workspace: Workspace, *, group: "Group", progress: "Progress") -> "Encoder":
        """The encoder adapted to the texts, noting the cost, or as it is without them; the error of `check_shared`."""
        check_shared(group, self.texts is not None)
        if self.texts is None:
            return encoder
        from truncate_kit.data import read_texts
        from truncate_kit.methods.priors.adapting import AdaptationSettings, adapted

        settings = AdaptationSettings(precision=self.precision, **given(epochs=self.epochs))
        raw, place = read_texts(self.texts), workspace.folder / "adapted"
        workspace.note(f"First the encoder is adapted to {len(raw):,} texts of {self.texts}.")
        model, result = adapted(encoder, raw, place, settings, layer=self.layer, group=group, progress=progress)
        head = "the checkpoint's head" if result.head_pretrained else "a new head"
        workspace.note(
            f"Adapted at layer {result.layer} to {result.num_texts:,} texts with {head}: masked cross entropy "
            f"{result.losses[0]:.3f} before, {result.losses[result.best_epoch]:.3f} after epoch {result.best_epoch}, "
            f"on {result.num_held_out:,} texts held out."
        )
        return model

    def kept(self, workspace: Workspace) -> AbstractContextManager[None]:
        """Where trials begin with the adapted encoder: it stays meanwhile, and for the next call where one diverges."""
        return nullcontext() if self.texts is None else unfinished(workspace.folder / "adapted", shared=True)

    def word_prior(self, encoder: "Encoder", workspace: Workspace | None = None) -> "WordPrior | None":
        """Word similarity as the first training of every trial, noted in the workspace; the errors of `load_words`."""
        if self.words is None:
            return None
        from truncate_kit.data import load_words
        from truncate_kit.methods.priors.words import WordPrior
        from truncate_kit.training.settings import word_training

        words = load_words(self.words)
        for statement in words.notes:
            if workspace is not None:
                workspace.note(f"Before each trial: {statement}")
        return WordPrior(encoder, words, word_training(self.precision))

    def for_card(self, layer: int, depth: int, blocks: tuple[int, ...] | None = None) -> str:
        """What was learned before the task, in the words of a model card."""
        parts = []
        if self.texts is not None:
            alone = "" if layer == depth else ", but for the full model"
            parts.append(f"masked words of {self.texts.name} at {place_in_words(layer, blocks)}{alone}")
        if self.words is not None:
            parts.append("word similarity, at the layer of each model")
        return "; ".join(parts)


def check_shared(group: "Group", has_texts: bool) -> None:
    """Raise `UsageError` where several processes were started and there is no adaptation for them to share."""
    if group.size > 1 and not has_texts:
        raise UsageError(
            f"There is nothing to adapt to that these {group.size} processes could share.",
            hint="Start the command without torchrun; --workers runs several trials at once.",
        )
