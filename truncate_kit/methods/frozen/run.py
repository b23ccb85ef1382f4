"""Frozen heads from end to end: states once, the paper's three steps in order, the best saved as a model."""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from truncate_kit.core.errors import DivergedError, ModelError, UsageError
from truncate_kit.core.files import local_path
from truncate_kit.core.origin import RESULT_FILES
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.seen import keys_of, merged
from truncate_kit.core.wording import counted
from truncate_kit.data.pairs import splits_for
from truncate_kit.data.types import PairSet, PairSplits
from truncate_kit.evaluation.graded import spearman
from truncate_kit.methods.frozen.heads import (
    BlockAutoencoders,
    PairsEvaluator,
    new_heads,
    pair_distances,
    pretrain,
    save_heads,
    train_heads,
)
from truncate_kit.methods.frozen.settings import (
    AUTOENCODER,
    COSINE,
    STEPS,
    FrozenReport,
    FrozenSettings,
    FrozenTrial,
    Reconstruction,
    WorstPair,
    choose,
    frozen_name,
)
from truncate_kit.methods.frozen.states import (
    Material,
    check_pairs,
    draw_sentences,
    nli_scores,
    read_material,
)
from truncate_kit.methods.tmft.trials import parse_layers
from truncate_kit.models.encoder import Encoder
from truncate_kit.models.layer_heads import LayerHeads, read_layer_heads
from truncate_kit.models.pipeline import origin_of, save_encoder
from truncate_kit.models.store import RunStore, output_folder, run_key
from truncate_kit.models.truncation import layers_held, truncate
from truncate_kit.training.distributed import isolated
from truncate_kit.training.settings import check_diverged

MODEL_FOLDER = "frozen"
_AUTOENCODERS = "autoencoders"  # their record in the store


@isolated()
def finetune_frozen(
    encoder: Encoder,
    data: PairSplits,
    *,
    out: Path,
    settings: FrozenSettings | None = None,
    raw: Sequence[str] | None = None,
    nli: PairSet | None = None,
    progress: ProgressOption = False,
) -> FrozenReport:
    """Train heads over the states of the frozen blocks of `encoder` and save the best, with the blocks it needs.

    States are pooled as `encoder` pools; the paper takes the last token's. They are those of the blocks, see
    `FrozenSettings.final_norm`. data: train, dev and test pairs with scores. raw: sentences for the step `autoencoder`;
    those of dev and test are left out. nli: pairs with the classes entailment, neutral and contradiction, on which
    heads are trained first. The step and number of blocks with the best mean dev Spearman are taken, fewer blocks on a
    tie, with the seed that is best on dev. out: gets `frozen/` (the model) and `frozen-heads/` (report, states,
    trials), from which the same call continues after a kill.
    Raises `ModelError` for a model without blocks, `UsageError`, also for settings that say nothing to this model,
    `DataError`, `FileProblemError`; `DivergedError` of one trial, after all others were run and kept.
    """
    progress = reporter(progress)
    settings, begin = settings or FrozenSettings(), time.perf_counter()
    layers = _layers(encoder, settings)
    settings.check_model(encoder)
    splits = check_pairs(data, settings.seeds[0])
    sentences, left_out = None, 0
    if AUTOENCODER in settings.steps:
        if raw is None:
            hint = 'Give texts as `raw`, or leave that step out: `steps=("cosine", "siamese")`.'
            raise UsageError("The autoencoders have no raw sentences to learn from.", hint=hint)
        sentences, left_out = draw_sentences(raw, splits[1:], settings.raw_sentences, settings.seeds[0])
    if nli is not None:
        nli_scores(nli)  # before anything is computed
    file = local_path(out) / RESULT_FILES["freeze"]
    out, work = local_path(out), file.parent
    store = _store(encoder, layers, settings, (*splits, *([nli] if nli is not None else [])), sentences, work)
    with output_folder(out, encoder, MODEL_FOLDER), store.open():
        known = (trial.layer for trial in store.all(FrozenTrial).values())  # a shorter run keeps a longer one's rows
        base = _frozen_part(encoder, max((*layers, *known)))
        widths = settings.code_widths(encoder.depth, encoder.width)[: base.depth]
        material = read_material(
            base, splits, work / "states", settings, nli=nli, raw=sentences, left_out=left_out, progress=progress
        )
        run = _Run(base, material, settings, widths, store, progress)
        report = run.report(encoder, data, layers, nli, begin)
        model = truncate(base, report.chosen_layer)
        model.heads = run.heads(report.chosen).to(model.device)
        if model.family.final_norm is not None and not settings.final_norm:
            model.heads.raw = True
        learned = (*splits[:2], *([nli] if nli is not None else []))
        model.seen = merged(encoder.seen, keys_of(*learned))
        origin = origin_of("freeze", encoder, model, data=data, seed=settings.seeds[0], settings=settings.to_dict())
        save_encoder(model, out / MODEL_FOLDER, model_card=report.card(model, origin), origin=origin)
        for folder in (store.folder, work):  # what other settings left in theirs stays
            report.write(folder / file.name)
        store.forget_weights({report.chosen.name, _AUTOENCODERS})
    return report


def _layers(encoder: Encoder, settings: FrozenSettings) -> tuple[int, ...]:
    """Return the numbers of lowest blocks to try, rising. Raises `ModelError` without blocks, `UsageError`."""
    if encoder.depth == 0:
        raise ModelError(
            f"{encoder.name} has no blocks: it is cut at its embeddings.", hint="Use a model with one layer or more."
        )
    held = [layer for layer in layers_held(encoder.backbone.config) if layer > 0]
    if settings.layers == "auto":
        return (encoder.depth,)
    layers = sorted(parse_layers(settings.layers, held, encoder.depth))
    if layers[0] < 1:
        raise UsageError("Heads need a block: layer 0 is the embeddings.", hint=f"Use `layers` 1 to {encoder.depth}.")
    return tuple(layers)


def _store(
    encoder: Encoder,
    layers: Sequence[int],
    settings: FrozenSettings,
    sets: Sequence[PairSet],
    sentences: Sequence[str] | None,
    work: Path,
) -> RunStore:
    """Make the store of the trials of one model, data and settings, whatever layers, steps and seeds were asked for.

    Autoencoders learn together, so those of fewer blocks are others, and so is what begins with them.
    """
    read = max(layers) if AUTOENCODER in settings.steps else encoder.depth
    fixed = {name: value for name, value in settings.to_dict().items() if name not in ("layers", "steps", "seeds")}
    key = run_key(
        _frozen_part(encoder, read),
        json.dumps(fixed, sort_keys=True),
        # The first seed draws sentences and trains the autoencoders.
        str((settings.code_widths(encoder.depth, encoder.width)[:read], settings.seeds[0])),
        *(pairs.fingerprint() for pairs in sets),
        *(sentences or ()),
    )
    return RunStore(work / "trials", key, {"model": encoder.name, "frozen": fixed})


def _frozen_part(encoder: Encoder, layer: int) -> Encoder:
    """Take the lowest blocks alone: nothing that follows pooling, no heads, no combination of layers."""
    base = truncate(encoder, layer, copy_weights=False).eval()
    base.combine_layers(None)
    base.tail, base.heads = nn.ModuleList(), None
    return base


@dataclass(slots=True)
class _Run:
    """All trials of one run."""

    base: Encoder
    material: Material
    settings: FrozenSettings
    widths: tuple[int, ...]  # of the codes of each block that is read
    store: RunStore
    progress: Progress
    autoencoders: BlockAutoencoders | None = None

    def report(
        self, encoder: Encoder, data: PairSplits, layers: Sequence[int], nli: PairSet | None, begin: float
    ) -> FrozenReport:
        """Run what has not been run yet, and choose among what was asked for; the report has all that is finished."""
        settings, material = self.settings, self.material
        asked, diverged = list[FrozenTrial](), list[tuple[str, DivergedError]]()
        for step in settings.ordered_steps():
            if step == AUTOENCODER:
                self._pretrain()
            for layer, seed in itertools.product(layers, settings.seeds):
                try:
                    asked.append(self.trial(step, layer, seed))
                except DivergedError as error:
                    diverged.append((frozen_name(step, layer, seed), error))
        check_diverged(diverged)
        trials = sorted(
            self.store.all(FrozenTrial).values(), key=lambda one: (STEPS.index(one.step), one.layer, one.seed)
        )
        groups = {(trial.step, trial.layer) for trial in asked}
        chosen = choose([trial for trial in trials if (trial.step, trial.layer) in groups])
        plain = new_heads(COSINE, material.train, self.widths, settings, seed=settings.seeds[0])
        return FrozenReport(
            model=encoder.name,
            data=data.name,
            data_fingerprint=data.fingerprint(),
            settings=settings,
            pooling=self.base.pooling,
            depth=encoder.depth,
            width=encoder.width,
            parameters=truncate(self.base, chosen.layer, copy_weights=False).num_parameters,
            num_texts=material.num_texts,
            states=block_correlations(pair_distances(plain, material.test), material.test.targets),
            train_states=block_correlations(pair_distances(plain, material.train), material.train.targets),
            trials=tuple(trials),
            chosen_step=chosen.step,
            chosen_layer=chosen.layer,
            chosen_seed=chosen.seed,
            reconstruction=self.store.read(_AUTOENCODERS, Reconstruction),
            nli=nli.name if nli is not None else None,
            worst=worst_pairs(self.heads(chosen).to(self.base.device), material, chosen.layer),
            overlap=splits_for(data, settings.seeds[0]).overlap,
            seconds=time.perf_counter() - begin,
            notes=material.notes,
            test_sentences_in_nli=None if nli is None else len({*material.test_pairs.texts()} & {*nli.texts()}),
        )

    def _pretrain(self) -> None:
        """Have the autoencoders, trained where they are not there."""
        if self.store.read(_AUTOENCODERS, Reconstruction) is not None:
            read = partial(
                BlockAutoencoders.load, width=self.base.width, code_widths=self.widths, depth=self.settings.depth
            )
            self.autoencoders = self.store.load(_AUTOENCODERS, read)
        if self.autoencoders is not None:
            return
        raw, begin = self.material.raw, time.perf_counter()
        assert raw is not None  # checked before anything was computed
        self.autoencoders, losses, own_losses = pretrain(
            raw,
            self.widths,
            self.settings,
            seed=self.settings.seeds[0],
            device=self.base.device,
            checkpoint=self.store.checkpoints.of(_AUTOENCODERS),
            progress=self.progress,
        )
        found = Reconstruction(
            code_widths=self.widths,
            losses=losses,
            own_losses=own_losses,
            num_sentences=len(raw),
            left_out=self.material.left_out,
            seconds=time.perf_counter() - begin,
        )
        self.store.write(_AUTOENCODERS, found, self.autoencoders.save)

    def heads(self, trial: FrozenTrial) -> LayerHeads:
        """Return the heads of a finished trial; trained again where their weights are gone or damaged."""
        heads = self.store.load(trial.name, read_layer_heads)
        if heads is None:
            self.trial(trial.step, trial.layer, trial.seed, again=True)
            heads = read_layer_heads(self.store.weights(trial.name))
        return heads

    def trial(self, step: str, layer: int, seed: int, *, again: bool = False) -> FrozenTrial:
        """Return the finished trial; run where it is not there, or again for its weights."""
        name = frozen_name(step, layer, seed)
        known = None if again else self.store.read(name, FrozenTrial)
        if known is not None:
            return known
        begin, material, settings = time.perf_counter(), self.material, self.settings
        train, dev, test = (pairs.lowest(layer) for pairs in (material.train, material.dev, material.test))
        heads = new_heads(step, train, self.widths[:layer], settings, seed=seed, autoencoders=self.autoencoders)
        heads = heads.to(self.base.device)
        done = train_heads(
            heads,
            train,
            dev,
            settings,
            seed=seed,
            nli=material.nli.lowest(layer) if material.nli is not None else None,
            checkpoint=self.store.checkpoints.of(name),
            progress=self.progress,
            task=f"{step}, {counted(layer, 'block')}, seed {seed}",
        )
        held, final = (PairsEvaluator(pairs, None).evaluation(heads) for pairs in (dev, test))
        found = FrozenTrial(
            step=step,
            layer=layer,
            seed=seed,
            dev_scores=tuple(done.scores),
            best_epoch=done.best_stage + 1,
            dev=held.spearman,
            dev_pearson=held.pearson,
            test=final.spearman,
            test_pearson=final.pearson,
            blocks=block_correlations(pair_distances(heads, test), test.targets),
            parameters=sum(weight.numel() for weight in heads.parameters()),
            seconds=time.perf_counter() - begin,
        )
        return self.store.write(name, found, partial(save_heads, heads))


NUM_WORST = 20


def block_correlations(distances: Tensor, targets: Sequence[float]) -> tuple[float | None, ...]:
    """Return Spearman × 100 of 1 − distance and target at each block, from distances (n, L); None where undefined."""
    return tuple(spearman((-column).tolist(), targets) for column in distances.double().T)


def worst_pairs(heads: LayerHeads, material: Material, layer: int) -> tuple[WorstPair, ...]:
    """Return the largest errors on test, the mean difference on dev taken off: the loss does not see it."""
    dev, test = material.dev.lowest(layer), material.test.lowest(layer)
    held, predicted = (PairsEvaluator(pairs, None).evaluation(heads).cosines for pairs in (dev, test))
    errors = np.subtract(predicted, test.targets) - float(np.mean(np.subtract(held, dev.targets)))
    order = np.argsort(-np.abs(errors), kind="stable")[:NUM_WORST].tolist()
    texts = [(material.test_pairs.pairs[place].first, material.test_pairs.pairs[place].second) for place in order]
    return tuple(
        WorstPair(first=first, second=second, target=test.targets[at], predicted=predicted[at], error=float(errors[at]))
        for at, (first, second) in zip(order, texts, strict=True)
    )
