"""Frozen heads: cache states, run the paper's three steps, and save the best model."""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from truncate_kit.core.errors import DataError, ModelError, UsageError, counted
from truncate_kit.core.files import local_path
from truncate_kit.core.progress import Progress, ProgressOption, reporter
from truncate_kit.core.workspace import RESULT_FILES
from truncate_kit.data.pairs import PairSet, PairSplits, distinct_texts, index_texts, splits_for
from truncate_kit.data.seen import keys_of, merged, seen_before
from truncate_kit.evaluation.graded import spearman
from truncate_kit.methods.frozen.heads import (
    BlockAutoencoders,
    Rows,
    StatePairs,
    cached_states,
    load_autoencoders,
    new_heads,
    pretrain,
    save,
)
from truncate_kit.methods.frozen.settings import (
    AUTOENCODER,
    COSINE,
    STEPS,
    FrozenReport,
    FrozenSettings,
    FrozenTrial,
    Reconstruction,
    choose,
)
from truncate_kit.methods.tmft.settings import parse_layers
from truncate_kit.models.encoder import Encoder, LayerHeads
from truncate_kit.models.pipeline import read_layer_heads, save_encoder
from truncate_kit.models.store import RunStore, origin_of, output_folder, run_key
from truncate_kit.models.truncation import layers_held, truncate
from truncate_kit.training.loop import TrainingRun, isolated
from truncate_kit.training.settings import run_trials, trial_scores

MODEL_FOLDER = "frozen"
NLI_SCORES = {"contradiction": 0.0, "neutral": 0.5, "entailment": 1.0}
FEWEST_SENTENCES = 20
NUM_WORST = 20
_AUTOENCODERS = "autoencoders"


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
    """Train heads over the states of frozen blocks of `encoder`; save the best with the blocks it needs.

    Args:
        encoder: The model; the paper uses last-token pooling.
        data: Train, dev and test pairs with scores.
        out: Folder for `frozen/` (the model) and `frozen-heads/`; the same call resumes a killed run.
        settings: Steps, blocks and training.
        raw: Sentences for `autoencoder`; dev and test sentences are left out.
        nli: NLI pairs to train on first.
        progress: True draws bars; a callable receives steps.

    Raises:
        ModelError: The model has no blocks.
        UsageError: Settings do not suit the model.
        DataError: Pairs or sentences are missing or too few.
        FileProblemError: `out` cannot be written.
        DivergedError: A trial diverged; the others are kept.
    """
    begin, progress, settings = time.perf_counter(), reporter(progress), settings or FrozenSettings()
    layers, splits = _layers(encoder, settings), _splits(data, settings.seeds[0])
    learns_raw = AUTOENCODER in settings.steps
    sentences, left_out = _draw_sentences(raw, splits, settings) if learns_raw else (None, 0)
    inferred = {} if nli is None else {"nli": nli}
    for pairs in inferred.values():
        nli_scores(pairs)  # checked before anything is computed
    out = local_path(out)
    file = out / RESULT_FILES["freeze"]
    learned = [*(pairs.fingerprint() for pairs in (splits | inferred).values()), *(sentences or ())]
    store = _store(encoder, layers, settings, learned, file.parent)
    with output_folder(out, encoder, MODEL_FOLDER), store.open():
        run = _Run(encoder, settings, layers, store, progress)
        run.read_states(file.parent / "states", (splits, inferred), sentences)
        chosen, trials = run.trials(left_out)
        model = truncate(run.base, chosen.layer)
        model.heads = run.heads(chosen).to(model.device)
        plain = new_heads(COSINE, run.pairs["train"], run.widths, settings, seed=settings.seeds[0])
        shared = None if nli is None else len({*splits["test"].texts()} & {*nli.texts()})
        seen = seen_before(splits["test"], {encoder.name: encoder.seen})
        report = FrozenReport(
            model=encoder.name,
            data=data.name,
            data_fingerprint=data.fingerprint(),
            settings=settings,
            pooling=run.base.state_pooling,
            depth=encoder.depth,
            width=encoder.width,
            states=_block_correlations(plain, run.pairs["test"]),
            train_states=_block_correlations(plain, run.pairs["train"]),
            trials=trials,
            chosen_step=chosen.step,
            chosen_layer=chosen.layer,
            chosen_seed=chosen.seed,
            reconstruction=store.read(_AUTOENCODERS, Reconstruction),
            test_sentences_in_nli=shared,
            worst=_worst(model.heads, run.pairs["dev"], run.pairs["test"], splits["test"]),
            overlap=splits_for(data, settings.seeds[0]).overlap,
            seconds=time.perf_counter() - begin,
            notes=(seen,) if seen else (),
        )
        if model.family.final_norm is not None and not settings.final_norm:
            model.heads.raw = model.heads.settings["raw"] = True
        model.seen = merged(encoder.seen, keys_of(splits["train"], splits["dev"], *inferred.values()))
        origin = origin_of("freeze", encoder, model, data=data, seed=settings.seeds[0], settings=settings.to_dict())
        save_encoder(model, out / MODEL_FOLDER, model_card=report.card(model, origin), origin=origin)
        for folder in (store.folder, file.parent):  # results of other settings stay in their store
            report.write(folder / file.name)
        store.forget_weights({_name(chosen.step, chosen.layer, chosen.seed), _AUTOENCODERS})
    return report


def _layers(encoder: Encoder, settings: FrozenSettings) -> tuple[int, ...]:
    """Return the numbers of lowest blocks to try, rising. Raises `ModelError` or `UsageError`."""
    if encoder.depth == 0:
        raise ModelError(
            f"{encoder.name} has no blocks: it is cut at its embeddings.", hint="Use a model with one layer or more."
        )
    if settings.final_norm and encoder.family.final_norm is None:
        raise UsageError(f"{encoder.name} has no final norm.", hint="Leave out `final_norm`.")
    if (widest := max(settings.codes or (0,))) >= encoder.width:
        states = f"the states of {encoder.name}, which have {encoder.width}"
        raise UsageError(f"Codes of {widest} numbers are no shorter than {states}.", hint="Give narrower `codes`.")
    if settings.layers == "auto":
        return (encoder.depth,)
    held = [layer for layer in layers_held(encoder.backbone.config) if layer > 0]
    layers = sorted(parse_layers(settings.layers, held, encoder.depth))
    if layers[0] < 1:
        raise UsageError("Heads need a block: layer 0 is the embeddings.", hint=f"Use `layers` 1 to {encoder.depth}.")
    return tuple(layers)


def _splits(data: PairSplits, seed: int) -> dict[str, PairSet]:
    """Return train, dev and test. Raises `DataError` if one is missing, has classes, or is too small."""
    splits = dict(splits_for(data, seed).items())
    if len(splits) < 3:
        hint = "Give a folder with train, dev and test files, or one file to split."
        raise DataError(f"{data.name} has no train, dev and test set, only {', '.join(splits)}.", hint=hint)
    for pairs in splits.values():
        if pairs.classes:
            raise DataError(f"{pairs.name} holds classes, not scores.", hint="Give pairs with classes as `nli`.")
        pairs.check_ranked()
    return splits


def nli_scores(pairs: PairSet) -> list[float]:
    """Score entailment as 1, neutral as ½, contradiction as 0. Raises `DataError` for other classes."""
    if not pairs.classes or not {name.lower() for name in pairs.classes} <= NLI_SCORES.keys():
        labels = f"the classes {', '.join(pairs.classes)}" if pairs.classes else "scores, not classes"
        hint = f"NLI pairs are labelled {', '.join(NLI_SCORES)}."
        raise DataError(f"{pairs.name} holds {labels}.", hint=hint)
    return [NLI_SCORES[pairs.classes[int(pair.target)].lower()] for pair in pairs]


def _draw_sentences(
    raw: Sequence[str] | None, splits: dict[str, PairSet], settings: FrozenSettings
) -> tuple[list[str], int]:
    """Draw distinct raw sentences not in dev or test, and count those left out. Raises `UsageError` or `DataError`."""
    if raw is None:
        hint = 'Give texts as `raw`, or leave out the step: `steps=("cosine", "siamese")`.'
        raise UsageError("No raw sentences are given to train the autoencoders.", hint=hint)
    distinct, held_out = list(dict.fromkeys(raw)), {*splits["dev"].texts(), *splits["test"].texts()}
    usable = [text for text in distinct if text not in held_out]
    if len(usable) < FEWEST_SENTENCES:
        hint = f"Give at least {FEWEST_SENTENCES} as `raw`; the paper uses 20,000."
        raise DataError(f"{len(usable)} raw sentences are too few to train autoencoders.", hint=hint)
    generator = torch.Generator().manual_seed(settings.seeds[0])
    order = torch.randperm(len(usable), generator=generator)[: settings.raw_sentences]
    return [usable[place] for place in sorted(order.tolist())], len(distinct) - len(usable)


def _store(
    encoder: Encoder, layers: Sequence[int], settings: FrozenSettings, texts: Sequence[str], work: Path
) -> RunStore:
    """Make the store of trials of one model, data and settings.

    Autoencoders train together, so their weights depend on the layers.
    """
    read = max(layers) if AUTOENCODER in settings.steps else encoder.depth
    fixed = {name: value for name, value in settings.to_dict().items() if name not in ("layers", "steps", "seeds")}
    key = run_key(
        _frozen_part(encoder, read),
        json.dumps(fixed, sort_keys=True),
        # The first seed draws sentences and trains the autoencoders.
        str((settings.code_widths(encoder.depth, encoder.width)[:read], settings.seeds[0])),
        *texts,
    )
    return RunStore(work / "trials", key, {"model": encoder.name, "frozen": fixed})


def _frozen_part(encoder: Encoder, layer: int) -> Encoder:
    """Return the lowest blocks, without heads and later modules."""
    base = truncate(encoder, layer, copy_weights=False).eval()
    base.pool_with(None)
    base.tail, base.heads = nn.Sequential(), None
    return base


def _name(step: str, layer: int, seed: int) -> str:
    return f"{step}-blocks{layer:02d}-seed{seed}"


class _Run:
    raw: Rows | None = None
    autoencoders: BlockAutoencoders | None = None

    def __init__(
        self, encoder: Encoder, settings: FrozenSettings, layers: Sequence[int], store: RunStore, progress: Progress
    ) -> None:
        self.settings, self.layers, self.store, self.progress = settings, layers, store, progress
        known = (trial.layer for trial in store.all(FrozenTrial).values())  # stored trials may need more blocks
        self.base = _frozen_part(encoder, max((*layers, *known)))
        self.widths = settings.code_widths(encoder.depth, encoder.width)[: self.base.depth]
        self.pairs = dict[str, StatePairs]()

    def read_states(self, cache: Path, sets: Sequence[dict[str, PairSet]], sentences: Sequence[str] | None) -> None:
        """Get the states of all distinct texts; sets of one dictionary share a cache entry."""
        norm, progress = self.settings.final_norm, self.progress
        states = partial(cached_states, self.base, folder=cache, final_norm=norm, progress=progress)
        for parts in filter(None, sets):
            texts = distinct_texts(pair for part in parts.values() for pair in part)
            values = states(texts)
            for name, part in parts.items():
                _, (first, second) = index_texts(part.pairs, texts)
                targets = nli_scores(part) if part.classes else part.scores01()
                self.pairs[name] = StatePairs(values, first, second, targets, self.settings.loss)
        if sentences is not None:
            self.raw = states(sentences)

    def trials(self, left_out: int) -> tuple[FrozenTrial, tuple[FrozenTrial, ...]]:
        """Run missing trials; return the best requested trial, and all finished trials."""

        def runs() -> Iterator[tuple[str, Callable[[], FrozenTrial]]]:
            for step in sorted(self.settings.steps, key=STEPS.index):
                if step == AUTOENCODER:
                    self.autoencoders = self._pretrained(left_out)
                for layer, seed in itertools.product(self.layers, self.settings.seeds):
                    yield _name(step, layer, seed), partial(self._trial, step, layer, seed)

        asked = run_trials(runs())
        finished = self.store.all(FrozenTrial).values()
        trials = sorted(finished, key=lambda one: (STEPS.index(one.step), one.layer, one.seed))
        groups = {(trial.step, trial.layer) for trial in asked}
        return choose([trial for trial in trials if (trial.step, trial.layer) in groups]), tuple(trials)

    def _pretrained(self, left_out: int) -> BlockAutoencoders:
        store, settings, raw = self.store, self.settings, self.raw
        read = partial(load_autoencoders, width=self.base.width, code_widths=self.widths, depth=settings.depth)
        kept = store.load(_AUTOENCODERS, read) if store.read(_AUTOENCODERS, Reconstruction) else None
        if kept is not None:
            return kept
        assert raw is not None  # checked before anything was computed
        model, losses, own_losses = pretrain(
            raw,
            self.widths,
            settings,
            seed=settings.seeds[0],
            device=self.base.device,
            checkpoint=store.checkpoint(_AUTOENCODERS),
            progress=self.progress,
        )
        record = Reconstruction(
            code_widths=self.widths, losses=losses, own_losses=own_losses, num_sentences=len(raw), left_out=left_out
        )
        store.write(_AUTOENCODERS, record, partial(save, model))
        return model

    def heads(self, trial: FrozenTrial) -> LayerHeads:
        """Return a trial's heads; train again if the weights are missing or damaged."""
        name = _name(trial.step, trial.layer, trial.seed)
        heads = self.store.load(name, read_layer_heads)
        if heads is None:
            self._trial(trial.step, trial.layer, trial.seed, again=True)
            heads = read_layer_heads(self.store.weights(name))
        return heads

    def _trial(self, step: str, layer: int, seed: int, *, again: bool = False) -> FrozenTrial:
        """Return the trial; run it if missing, or if `again`."""
        begin, name, settings = time.perf_counter(), _name(step, layer, seed), self.settings
        known = None if again else self.store.read(name, FrozenTrial)
        if known is not None:
            return known
        pairs = {part: whole.lowest(layer) for part, whole in self.pairs.items()}
        heads = new_heads(
            step, pairs["train"], self.widths[:layer], settings, seed=seed, autoencoders=self.autoencoders
        )
        heads = heads.to(self.base.device)
        for part, epochs in (("nli", settings.nli_epochs), ("train", settings.epochs)):
            if part in pairs:
                stage = "nli" if part == "nli" else ""
                training = settings.training(epochs)
                done = TrainingRun(cast(Encoder, heads), pairs[part], pairs["dev"], training, seed=seed).train(
                    checkpoint=self.store.checkpoint(name, stage),
                    progress=self.progress,
                    task=f"{step}, {counted(layer, 'block')}, seed {seed}{', NLI' if stage else ''}",
                )
        dev, test = pairs["dev"].score(heads), pairs["test"].score(heads)
        trial = FrozenTrial(
            step=step,
            layer=layer,
            seed=seed,
            blocks=_block_correlations(heads, pairs["test"]),
            parameters=sum(weight.numel() for weight in heads.parameters()),
            **trial_scores(done.scores, dev, test, time.perf_counter() - begin),
        )
        return self.store.write(name, trial, partial(save, heads))


def _block_correlations(heads: LayerHeads, pairs: StatePairs) -> tuple[float | None, ...]:
    """Return Spearman × 100 at each block; None if undefined."""
    return tuple(spearman((-column).tolist(), pairs.targets) for column in pairs.distances(heads).double().T)


def _worst(
    heads: LayerHeads, dev: StatePairs, test: StatePairs, pairs: PairSet
) -> tuple[tuple[str, str, float, float, float], ...]:
    """Return the largest test errors, less the mean error on dev, which the loss ignores."""
    held, predicted = (part.lowest(heads.blocks).evaluation(heads).cosines for part in (dev, test))
    errors = np.subtract(predicted, test.targets) - float(np.mean(np.subtract(held, dev.targets)))
    rows = zip(pairs, test.targets, predicted, errors.tolist(), strict=True)
    worst = sorted(rows, key=lambda row: -abs(row[3]))[:NUM_WORST]
    return tuple((pair.first, pair.second, *numbers) for pair, *numbers in worst)
