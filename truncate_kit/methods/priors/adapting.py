"""DAPT: go on pretraining on raw text of the domain, by masked words, before TMFT (Gururangan et al. 2020)."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from truncate_kit.errors import DataError
from truncate_kit.methods.priors.masked_head import load_masked_head, masked_head_digest
from truncate_kit.methods.priors.masking import MaskedEvaluator, MaskedTexts
from truncate_kit.models import Encoder, truncate
from truncate_kit.precisions import TRAINING_PRECISIONS
from truncate_kit.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.results import Result
from truncate_kit.settings import BATCH, EPOCHS, RATE, SEED, check_settings, listed_texts, setting
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import TrainingSettings, scaled_learning_rate
from truncate_kit.training.store import RunStore, run_key
from truncate_kit.wording import counted

HELD_OUT, MOST_HELD_OUT = 0.05, 2000
FEWEST_TEXTS = 20
_NAME = "adaptation"  # of the record in its store
MICRO_BATCH = 32  # with the batch of 256: eight forward passes for each step, as the TMFT paper does


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationSettings(Result):
    """One adaptation; epochs and batch are those of the TMFT paper (10; 32 × 8 accumulated).

    Ours: the rate of narrow models, a twentieth of the texts held out (`HELD_OUT`) and the best epoch on it kept.
    """

    epochs: int = setting(10, bounds=EPOCHS)
    batch_size: int = setting(256, bounds=BATCH)
    learning_rate: float | None = setting(None, bounds=RATE)  # peak, None is `scaled_learning_rate`
    precision: str = setting("fp32", choices=TRAINING_PRECISIONS)
    seed: int = setting(0, bounds=SEED)

    def __post_init__(self) -> None:
        check_settings(self)

    def training(self) -> TrainingSettings:
        """The same for the loop; for an impossible value the settings raise `UsageError`."""
        return TrainingSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            precision=self.precision,  # type: ignore[arg-type]  # checked by the settings themselves
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationResult(Result):
    """What an adaptation did."""

    model: str
    layer: int  # whose states were trained to predict words; what lay above is gone
    num_texts: int
    num_held_out: int
    settings: AdaptationSettings
    learning_rate: float
    head_pretrained: bool  # whether the head came with the checkpoint
    losses: tuple[float, ...]  # masked cross entropy (nats) on held-out texts, before and after each epoch
    best_epoch: int
    seconds: float
    processes: int = 1


@isolated()
def adapt(
    encoder: Encoder,
    texts: Sequence[str],
    settings: AdaptationSettings | None = None,
    *,
    layer: int | None = None,
    checkpoint: Path | None = None,
    group: Group = ALONE,
    progress: ProgressOption = False,
) -> tuple[Encoder, AdaptationResult]:
    """Train a copy of `encoder`, cut at `layer` (None: the last), and a head over it to fill in masked words.

    The epoch with the lowest loss on held-out texts (5 %, at most 2,000) is kept. checkpoint: continue from there after
    a kill. group: processes that train together, each on its share of every batch. Raises `DataError` for too few
    texts, `ModelError` for a model without mask token, the errors of `truncate` and `train`.
    """
    progress = reporter(progress)
    settings = settings or AdaptationSettings()
    training = _settled(settings, encoder).training()
    texts = list(dict.fromkeys(listed_texts(texts)))
    if len(texts) < FEWEST_TEXTS:
        raise DataError(f"Only {len(texts)} distinct texts to adapt to.", hint=f"Give at least {FEWEST_TEXTS}.")
    start = time.perf_counter()
    model = truncate(encoder, encoder.depth if layer is None else layer)
    torch.manual_seed(settings.seed)
    head = load_masked_head(model)
    ids = model.token_ids(texts, prompt=False)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(settings.seed)).tolist()
    held = max(2, min(MOST_HELD_OUT, round(HELD_OUT * len(ids))))
    evaluator = MaskedEvaluator(model, [ids[place] for place in order[:held]], head)
    before, _ = evaluator.score(model)
    state = TrainingRun(
        model,
        MaskedTexts(model, [ids[place] for place in order[held:]], head, part=MICRO_BATCH, group=group),
        evaluator,
        training,
        seed=settings.seed,
        micro_batch=MICRO_BATCH * group.size,
        group=group,
    ).train(
        checkpoint=checkpoint,
        progress=progress,
        task=f"masked words at layer {model.depth}, {counted(settings.epochs, 'epoch')}",
    )
    result = AdaptationResult(
        model=encoder.name,
        layer=model.depth,
        num_texts=len(ids) - held,
        num_held_out=held,
        settings=settings,
        learning_rate=training.rate(encoder.width),
        head_pretrained=head.pretrained,
        losses=(-before, *(-score for score in state.scores)),
        best_epoch=state.best_stage + 1,
        seconds=time.perf_counter() - start,
        processes=group.size,
    )
    return model, result


def _settled(settings: AdaptationSettings, encoder: Encoder) -> AdaptationSettings:
    """The same with the rate as a number."""
    return replace(settings, learning_rate=settings.learning_rate or scaled_learning_rate(encoder.width))


def adapted(
    encoder: Encoder,
    texts: Sequence[str],
    out: Path,
    settings: AdaptationSettings | None = None,
    *,
    layer: int | None = None,
    group: Group = ALONE,
    progress: Progress = silent,
) -> tuple[Encoder, AdaptationResult]:
    """`adapt`, once: a later call with the same model, texts and settings reads what the first one left in `out`.

    Args:
        encoder: As in `adapt`.
        texts: As in `adapt`.
        out: A store, which the leading process of `group` writes and all of them must see.
        settings: As in `adapt`.
        layer: As in `adapt`.
        group: As in `adapt`.
        progress: As in `adapt`.

    Raises:
        FileProblemError: `out` cannot be written, or another process works there.
        TruncateKitError: Whatever `adapt` raises.
    """
    settings = settings or AdaptationSettings()
    key = run_key(encoder, masked_head_digest(encoder), _settled(settings, encoder).to_json(), str(layer), *texts)
    store = RunStore(out, key, {"model": encoder.name, "adaptation": settings.to_dict()})
    with store.open() if group.leads else contextlib.nullcontext():
        known = group.leads and store.has_weights(_NAME)
        found = group.agree(store.read(_NAME, AdaptationResult) if known else None)
        if found is not None:
            model = store.encoder(_NAME, encoder.device)
            model.name, model.seen, model.trained = encoder.name, encoder.seen, encoder.trained
            return model, found
        checkpoint = store.checkpoints.of(_NAME, str(group.size))  # it holds random numbers of every process
        model, result = adapt(
            encoder, texts, settings, layer=layer, checkpoint=checkpoint, group=group, progress=progress
        )
        if group.leads:
            result = store.write_encoder(_NAME, result, model)
        return model, result
