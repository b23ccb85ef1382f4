"""Contrastive training of one model at one layer: every seed is a trial that is kept, and continues where it was."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from truncate_kit.core.errors import DataError, DivergedError
from truncate_kit.core.files import local_path
from truncate_kit.core.origin import RESULT_FILES
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.statistics import standard_deviation
from truncate_kit.data.pairs import PairSet, PairSplits
from truncate_kit.data.seen import keys_of, merged, seen_before
from truncate_kit.data.triplets import TripletSet
from truncate_kit.methods.contrast.diffcse import DifferenceTexts, Generator
from truncate_kit.methods.contrast.model import BareEvaluator, poolable_encoder, remove_pooler
from truncate_kit.methods.contrast.settings import FEWEST_ROWS, ContrastiveResult, ContrastiveSettings
from truncate_kit.methods.priors import masked_head_digest
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import encoder_digest, origin_of, save_encoder
from truncate_kit.models.store import RunStore, output_folder, run_key
from truncate_kit.training.distributed import ALONE, Group, isolated
from truncate_kit.training.examples import Examples, Ids, PairEvaluator, builder
from truncate_kit.training.loop import TrainingRun
from truncate_kit.training.settings import OBJECTIVES, TrainingSettings, Trial, check_diverged, trial_name

StageDone = Callable[[int, float, float], None]


@isolated()
def finetune_contrastive(
    encoder: Encoder,
    rows: TripletSet,
    data: PairSplits,
    *,
    out: Path,
    settings: ContrastiveSettings | None = None,
    generator: Encoder | None = None,
    group: Group = ALONE,
    progress: ProgressOption = False,
    stage_done: StageDone | None = None,
) -> ContrastiveResult:
    """Train `encoder`, cut at a layer, with a pooling and a contrastive objective; the best weights on dev are kept.

    Args:
        encoder: Whole; it is not changed.
        rows: Anchors with positives and, for `hard-negatives`, negatives; `raw_texts` makes them for `dropout`.
        data: Graded pairs; dev is scored in training, test once per seed.
        out: Gets `lean/` (a sentence-transformers folder), `contrastive.json` and `trials/`, from which the same call
            continues after a kill.
        settings: None is the defaults.
        generator: Fills in the hidden words of `diffcse`, frozen; None takes `encoder` as it came.
        group: Processes that train together; only the leading one writes.
        progress: True draws bars and logs; else what is called after each step.
        stage_done: Is called after each look at dev, see `TrainingRun.train`.

    Returns:
        Scores of every seed trained so in `out`, by this call or before it, and which of them was saved.

    Raises:
        UsageError: Model and settings do not suit each other.
        DataError: Rows or pairs are missing.
        LayerOutOfRangeError: The model has no such layer.
        LayerNotHeldError: No class can hold it cut there.
        FileProblemError: `out` cannot be written, or another process writes there.
        DivergedError: Of one seed, after all others were run and kept.
    """
    start, progress, dev = time.perf_counter(), reporter(progress), _dev(data)
    settings = settings or ContrastiveSettings()
    columns, fills, out = _columns(rows, settings), generator or encoder, local_path(out)
    training = settings.training(encoder.family.recipe, encoder.width)
    depth = poolable_encoder(encoder, settings, seed=0).depth
    plain = settings.to_dict() | {"seeds": (), "layer": depth}
    parts = [repr(plain), training.to_json(), rows.fingerprint(), data.fingerprint(), str(group.size)]
    if OBJECTIVES[settings.objective].fills_words:
        parts += [encoder_digest(fills), masked_head_digest(fills)]
    store = RunStore(out / "trials", run_key(encoder, *parts), {"model": encoder.name, "contrastive": plain})
    run = _Run(encoder, fills, columns, dev, data.test, settings, training, store, group, progress, stage_done)
    with contextlib.ExitStack() as held:
        if group.leads:
            held.enter_context(output_folder(out, encoder, "lean"))
            held.enter_context(store.open())
        diverged = list[tuple[str, DivergedError]]()
        for seed in settings.seeds:
            try:
                run.trial(seed)
            except DivergedError as error:
                diverged.append((f"Seed {seed}", error))
        check_diverged(diverged)
        # All that are finished: a shorter run takes no seed away.
        finished = store.all(Trial).values() if group.leads else ()
        trials = group.agree(sorted(finished, key=lambda trial: trial.seed))
        best = max(trials, key=lambda trial: (trial.dev, -trial.seed))
        if not group.agree(store.has_weights(best.name)):  # because another seed's were kept before
            run.trial(best.seed, again=True)
        result = _result(run, rows, data, trials, best, time.perf_counter() - start)
        if group.leads:
            lean = store.encoder(best.name, encoder.device)
            lean.name, lean.seen = encoder.name, merged(encoder.seen, keys_of(dev, rows.pairs()))
            origin = origin_of("contrast", encoder, lean, data=data, settings=settings.to_dict())
            save_encoder(lean, out / "lean", model_card=result.card(lean, origin), origin=origin)
            for place in (store.folder, out):  # what other data or settings gave stays in their own store
                result.write(place / RESULT_FILES["contrast"])
            store.forget_weights({best.name})
    return result


def _dev(data: PairSplits) -> PairSet:
    """What chooses. Raises `DataError` where it is missing, or dev or test hold classes."""
    if data.dev is None:
        raise DataError(f"{data.name} has no dev split to choose by.", hint="Give a folder with dev and test files.")
    for pairs in (data.dev, data.test):
        if pairs is not None:
            pairs.check_graded()
            pairs.check_ranked()
    return data.dev


def _columns(rows: TripletSet, settings: ContrastiveSettings) -> list[list[str]]:
    """Anchors, positives and, where the objective has them, negatives. Raises `DataError`."""
    if len(rows) < FEWEST_ROWS:
        problem = f"{rows.name} gives {len(rows)} row: nothing to contrast it with. {rows.note}".rstrip()
        raise DataError(problem, hint='Give some thousand rows; `objective="in-batch"` makes the most of NLI pairs.')
    columns = [[row.anchor for row in rows.rows], [row.positive for row in rows.rows]]
    if OBJECTIVES[settings.objective].data == "negatives":
        without = next((place for place, row in enumerate(rows.rows, 1) if row.negative is None), None)
        if without is not None:
            problem = f"{rows.name}: row {without} has no negative."
            raise DataError(problem, hint='Give negatives, or use `objective="in-batch"`.')
        columns.append([row.negative or "" for row in rows.rows])
    return columns


@dataclass(slots=True)
class _Run:
    """All that the trials of a run share."""

    full: Encoder
    generator: Encoder
    columns: Sequence[Sequence[str]]
    dev: PairSet
    test: PairSet | None
    settings: ContrastiveSettings
    training: TrainingSettings
    store: RunStore
    group: Group
    progress: Progress
    stage_done: StageDone | None

    def _examples(self, encoder: Encoder, columns: list[list[Ids]]) -> Examples:
        settings, row = self.settings, OBJECTIVES[self.settings.objective]
        common: dict[str, Any] = {"temperature": settings.temperature, "group": self.group}
        if row.fills_words:
            fills, weight = Generator(self.generator, encoder), settings.replaced_weight
            return DifferenceTexts(encoder, columns[0], fills, weight=weight, share=settings.masked_share, **common)
        own_weight = settings.hard_negative_weight
        examples: Examples = builder(row.examples)(columns, own_weight=own_weight, chunk=settings.chunk, **common)
        return examples

    def trial(self, seed: int, *, again: bool = False) -> Trial:
        """Return the trial of this seed, from the store where it is finished, unless it is to be run again."""
        settings, training, group = self.settings, self.training, self.group
        encoder = poolable_encoder(self.full, settings, seed=seed)
        layer, name = encoder.depth, trial_name(encoder.depth, seed, training.epochs)
        done = group.agree(self.store.read(name, Trial) if group.leads and not again else None)
        if done is not None:
            return done
        reader = replace(encoder.reader, max_length=min(encoder.max_length, settings.max_tokens))
        examples = self._examples(encoder, [reader.token_ids(column) for column in self.columns])
        on_dev = PairEvaluator(encoder, self.dev)
        in_training = on_dev if settings.keep_pooler else BareEvaluator(on_dev)
        every = settings.evaluate_every
        state = TrainingRun(
            encoder, examples, in_training, training, seed=seed, evaluate_every=every, group=group
        ).train(
            checkpoint=self.store.checkpoints.of(name),
            progress=self.progress,
            stage_done=self.stage_done,
            task=f"{settings.objective}, {settings.pooling}, layer {layer}, seed {seed}",
        )
        if not settings.keep_pooler:
            remove_pooler(encoder)
        dev, dev_pearson = group.agree(on_dev.score(encoder))
        test, test_pearson = None, None
        if self.test is not None:
            test, test_pearson = group.agree(PairEvaluator(encoder, self.test).score(encoder))
        trial = Trial(
            layer=layer,
            seed=seed,
            epochs=training.epochs,
            steps=training.epochs * -(-len(examples) // training.batch_size),
            dev_scores=tuple(state.scores),
            best_epoch=state.best_stage + 1,
            dev=dev,
            dev_pearson=dev_pearson,
            test=test,
            test_pearson=test_pearson,
            seconds=state.seconds,
        )
        if group.leads:
            self.store.write_encoder(trial.name, trial, encoder)
        return trial


def _result(
    run: _Run, rows: TripletSet, data: PairSplits, trials: Sequence[Trial], best: Trial, seconds: float
) -> ContrastiveResult:
    encoder, settings, training = run.full, run.settings, run.training
    saved = poolable_encoder(encoder, settings, seed=0)
    if not settings.keep_pooler:
        remove_pooler(saved)
    assert training.learning_rate is not None  # `ContrastiveSettings.training` has filled it in
    tests = [trial.test for trial in trials if trial.test is not None]
    devs = [trial.dev for trial in trials]
    test_texts = set(data.test.texts()) if data.test is not None else set()
    return ContrastiveResult(
        model=encoder.name,
        rows=rows.note,
        num_rows=len(rows),
        rows_fingerprint=rows.fingerprint(),
        data=data.name,
        data_fingerprint=data.fingerprint(),
        settings=settings,
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        layer=best.layer,
        depth=encoder.depth,
        parameters=saved.num_parameters,
        trials=tuple(trials),
        chosen_seed=best.seed,
        dev=fmean(devs),
        dev_std=standard_deviation(devs),
        test=fmean(tests) if tests else None,
        test_std=standard_deviation(tests),
        test_texts=len(test_texts),
        seen_before=seen_before(data.evaluation, {encoder.name: encoder.seen}),
        seen=len(test_texts.intersection(text for column in run.columns for text in column)),
        processes=run.group.size,
        seconds=seconds,
    )
