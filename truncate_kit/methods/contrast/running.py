"""Contrastive training of one model at one layer: each seed is a stored trial."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from truncate_kit.core.errors import DataError, DivergedError
from truncate_kit.core.files import local_path
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.vectors import Span
from truncate_kit.core.workspace import RESULT_FILES
from truncate_kit.data.pairs import PairSet, PairSplits
from truncate_kit.data.seen import keys_of, merged, seen_before
from truncate_kit.data.triplets import TripletSet
from truncate_kit.methods.contrast.model import (
    BareEvaluator,
    DifferenceTexts,
    poolable_encoder,
    remove_pooler,
)
from truncate_kit.methods.contrast.settings import FEWEST_ROWS, ContrastiveResult, ContrastiveSettings
from truncate_kit.methods.priors import masked_head_digest
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import RunStore, encoder_digest, origin_of, output_folder, run_key
from truncate_kit.training.examples import Examples, Ids, PairEvaluator, builder
from truncate_kit.training.loop import ALONE, Group, TrainingRun, isolated
from truncate_kit.training.settings import OBJECTIVES, TrainingSettings, Trial, check_diverged, trial_name, trial_scores

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
    """Train `encoder`, cut at a layer, with a pooling and a contrastive objective; save the best weights on dev.

    Args:
        encoder: Unchanged.
        rows: Anchors, positives and, for `hard-negatives`, negatives; `raw_texts` makes them for `dropout`.
        data: Graded pairs: dev for training, test once per seed.
        out: Gets `lean/`, `contrastive.json` and `trials/`; the same call continues there after a kill.
        settings: Settings of the run.
        generator: Fills in words for `diffcse`, frozen; by default a copy of `encoder`.
        group: Processes that train together.
        progress: True draws bars and logs; a callable hears of every step.
        stage_done: See `TrainingRun.train`.

    Raises:
        UsageError: Model and settings do not fit.
        DataError: Rows or pairs are missing.
        LayerOutOfRangeError: The layer does not exist.
        LayerNotHeldError: A model cut there cannot be saved exactly.
        FileProblemError: `out` is not writable or in use.
        DivergedError: A seed diverged; the others are kept.
    """
    start, progress, settings = time.perf_counter(), reporter(progress), settings or ContrastiveSettings()
    if data.dev is None:
        raise DataError(f"{data.name} has no dev split to choose by.", hint="Give a folder with dev and test files.")
    for pairs in filter(None, (data.dev, data.test)):
        pairs.check_graded()
        pairs.check_ranked()
    columns, fills, out = _columns(rows, settings), generator or encoder, local_path(out)
    training = settings.training(encoder.family.recipe, encoder.width)
    depth = poolable_encoder(encoder, settings, seed=0).depth  # refuses what does not suit
    plain = settings.to_dict() | {"seeds": (), "layer": depth}
    parts = [repr(plain), training.to_json(), rows.fingerprint(), data.fingerprint(), str(group.size)]
    if OBJECTIVES[settings.objective].fills_words:
        parts += [encoder_digest(fills), masked_head_digest(fills)]
    store = RunStore(out / "trials", run_key(encoder, *parts), {"model": encoder.name, "contrastive": plain})
    run = _Run(encoder, fills, rows, columns, data, data.dev, settings, training, store, group, progress, stage_done)
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
        # A shorter run drops no seed.
        finished = store.all(Trial).values() if group.leads else ()
        trials = group.agree(sorted(finished, key=lambda trial: trial.seed))
        best = max(trials, key=lambda trial: (trial.dev, -trial.seed))
        if not group.agree(store.has_weights(best.name)):  # weights of another seed were kept
            run.trial(best.seed, again=True)
        result = None
        if group.leads:
            lean = store.encoder(best.name, encoder.device)
            result = run.result(trials, best, lean.num_parameters, time.perf_counter() - start)
            lean.name, lean.seen = encoder.name, merged(encoder.seen, keys_of(data.dev, rows.pairs()))
            origin = origin_of("contrast", encoder, lean, data=data, settings=settings.to_dict())
            save_encoder(lean, out / "lean", model_card=result.card(lean, origin), origin=origin)
            for place in (store.folder, out):  # results of other data or settings stay in their store
                result.write(place / RESULT_FILES["contrast"])
            store.forget_weights({best.name})
    return cast(ContrastiveResult, group.agree(result))


def _columns(rows: TripletSet, settings: ContrastiveSettings) -> list[list[str]]:
    """Return anchors, positives and, if needed, negatives. Raises `DataError`."""
    if len(rows) < FEWEST_ROWS:
        problem = f"{rows.name} gives {len(rows)} row: nothing to contrast it with. {rows.note}".rstrip()
        raise DataError(problem, hint='Give some thousand rows; `objective="in-batch"` makes the most of NLI pairs.')
    columns = [[row[0] for row in rows.rows], [row[1] for row in rows.rows]]
    if OBJECTIVES[settings.objective].data == "negatives":
        negatives = [row[2] for row in rows.rows if len(row) == 3]
        if len(negatives) < len(rows):
            problem = f"{rows.name}: {len(rows) - len(negatives):,} of {len(rows):,} rows have no negative."
            raise DataError(problem, hint='Give negatives, or use `objective="in-batch"`.')
        columns.append(negatives)
    return columns


@dataclass(slots=True)
class _Run:
    full: Encoder
    generator: Encoder
    rows: TripletSet
    columns: Sequence[Sequence[str]]
    data: PairSplits
    dev: PairSet
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
            common |= {"weight": settings.replaced_weight, "share": settings.masked_share}
            return DifferenceTexts(encoder, columns[0], self.generator, **common)
        own_weight = settings.hard_negative_weight
        examples: Examples = builder(row.examples)(columns, own_weight=own_weight, chunk=settings.chunk, **common)
        return examples

    def trial(self, seed: int, *, again: bool = False) -> Trial:
        """Return the trial of this seed; run it if it is missing, or `again`."""
        settings, training, group = self.settings, self.training, self.group
        encoder = poolable_encoder(self.full, settings, seed=seed)
        name = trial_name(encoder.depth, seed, training.epochs)
        known = group.agree(self.store.read(name, Trial) if group.leads and not again else None)
        if known is not None:
            return known
        reader = replace(encoder.reader, max_length=min(encoder.max_length, settings.max_tokens))
        examples = self._examples(encoder, [reader.token_ids(column) for column in self.columns])
        on_dev = (PairEvaluator if settings.keep_pooler else BareEvaluator)(encoder, self.dev)
        every = settings.evaluate_every
        run = TrainingRun(encoder, examples, on_dev, training, seed=seed, evaluate_every=every, group=group)
        run.train(
            checkpoint=self.store.checkpoint(name),
            progress=self.progress,
            stage_done=self.stage_done,
            task=f"{settings.objective}, {settings.pooling}, layer {encoder.depth}, seed {seed}",
        )
        if not settings.keep_pooler:
            remove_pooler(encoder)
        dev, test = group.agree(on_dev.score(encoder)), None
        if self.data.test is not None:
            test = group.agree(PairEvaluator(encoder, self.data.test).score(encoder))
        trial = Trial(
            layer=encoder.depth,
            seed=seed,
            epochs=training.epochs,
            steps=training.epochs * -(-len(examples) // training.batch_size),
            **trial_scores(run.scores, dev, test, run.seconds),
        )
        if group.leads:
            self.store.write_encoder(name, trial, encoder)
        return trial

    def result(self, trials: Sequence[Trial], best: Trial, parameters: int, seconds: float) -> ContrastiveResult:
        encoder, training, rows, data = self.full, self.training, self.rows, self.data
        tests = [trial.test for trial in trials if trial.test is not None]
        dev, test = Span.of([trial.dev for trial in trials]), Span.of(tests) if tests else None
        test_texts = set(data.test.texts()) if data.test is not None else set[str]()
        return ContrastiveResult(
            model=encoder.name,
            rows=rows.note,
            num_rows=len(rows),
            rows_fingerprint=rows.fingerprint(),
            data=data.name,
            data_fingerprint=data.fingerprint(),
            settings=self.settings,
            epochs=training.epochs,
            batch_size=training.batch_size,
            learning_rate=training.rate(encoder.width),
            layer=best.layer,
            depth=encoder.depth,
            parameters=parameters,
            trials=tuple(trials),
            chosen_seed=best.seed,
            dev=dev.mean,
            dev_std=dev.std,
            test=None if test is None else test.mean,
            test_std=None if test is None else test.std,
            test_texts=len(test_texts),
            seen=len(test_texts.intersection(text for column in self.columns for text in column)),
            seen_before=seen_before(data.evaluation, {encoder.name: encoder.seen}),
            processes=self.group.size,
            seconds=seconds,
        )
