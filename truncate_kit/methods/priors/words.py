"""Word similarity first: each trial's encoder learns from word pairs at its own layer, then from sentences."""

from pathlib import Path

from truncate_kit.data import PairSplits, splits_for
from truncate_kit.models import Encoder
from truncate_kit.progress import Progress, silent
from truncate_kit.seen import Keys, keys_of
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings, word_training
from truncate_kit.training.tasks import LabelledTask
from truncate_kit.wording import counted


class WordPrior:
    """TMFT on word pairs before TMFT on sentences: batch 128, 50 epochs, the best on dev kept, as the paper does.

    Args:
        full: The encoder before truncation, for its tokenizer.

    Raises:
        DataError: The word pairs are unusable.
    """

    def __init__(self, full: Encoder, words: PairSplits, settings: TrainingSettings | None = None) -> None:
        self.settings = (settings or word_training()).settled(full.width)
        self._task, self._words = LabelledTask(full, words), words

    def fingerprint(self) -> str:
        """Equal exactly when the same prior training would come out."""
        return f"words {self._words.fingerprint()} {self.settings.to_json()}"

    def learned(self, seed: int) -> Keys:
        """Of the word pairs that the seed draws to learn from and to choose the epoch by."""
        return keys_of(*(pairs for name, pairs in splits_for(self._words, seed).items() if name != "test"))

    def train(
        self, encoder: Encoder, seed: int, *, checkpoint: Path | None = None, progress: Progress = silent
    ) -> float:
        """Train `encoder` in place on the words that the seed draws; returns its dev score in points."""
        examples, dev, _ = self._task.trial(encoder, seed)
        state = TrainingRun(encoder, examples, dev, self.settings, seed=seed).train(
            checkpoint=checkpoint,
            progress=progress,
            task=f"words at layer {encoder.depth}, seed {seed}, {counted(self.settings.epochs, 'epoch')}",
        )
        return max(state.scores)
