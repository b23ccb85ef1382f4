"""A training run on pairs whose loss is a mean over examples, before its first step."""

from pathlib import Path
from typing import Any

from truncate_kit.models.encoder import Encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.training.examples import Pairs, cosine_mse
from truncate_kit.training.loop import Evaluator, TrainingRun
from truncate_kit.training.settings import TrainingSettings

TEXTS = [f"the {'cat ' * (n % 7)}sat {'on ' * (n % 3)}mat" for n in range(40)]


def pair_run(folder: Path | str, **settings: Any) -> TrainingRun:
    """One epoch on 32 pairs of `TEXTS`."""
    encoder = load_encoder(str(folder))
    ids = encoder.token_ids(TEXTS)
    examples = Pairs(ids[:32], ids[8:40], [n % 5 / 4 for n in range(32)], cosine_mse)
    return TrainingRun(encoder, examples, _Scores(), TrainingSettings(epochs=1, **settings), seed=0)


class _Scores(Evaluator):
    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        return 1.0, None
