"""Train heads on frozen blocks: cache hidden states, run the paper's three steps, and save the best model."""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

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
from truncate_kit.models.encoder import BlockNetworks, Encoder, LayerHeads
from truncate_kit.models.pipeline import read_layer_heads, read_weights, save_encoder
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
    """Train heads on states of frozen blocks; save the best heads with the blocks that they need.

    Args:
        encoder: Model; the paper uses last-token pooling.
        data: Train, dev and test pairs with scores.
        out: Folder for `frozen/` (the model) and `frozen-heads/`; the same call resumes a killed run.
        settings: Steps, blocks and training.
        raw: Sentences to train the autoencoders on; sentences of dev and test are excluded.
        nli: NLI pairs to train the heads on first.
        progress: A `ProgressOption`.

    Raises:
        ModelError: The model has no blocks.
        UsageError: Settings do not suit the model.
        DataError: Pairs or sentences are missing or too few.
        FileProblemError: `out` cannot be written.
        DivergedError: A trial diverged; the other trials are stored.
    """
    out = local_path(out)
    file, settings = out / RESULT_FILES["freeze"], settings or FrozenSettings()
    run = _Run(encoder, data, settings, raw, nli, file.parent, reporter(progress))
    with output_folder(out, encoder, MODEL_FOLDER), run.store.open():
        run.read_states()
        chosen, trials = run.trials()
        model = truncate(run.base, chosen.layer)
        model.heads = run.heads(chosen).to(model.device)
        report = run.report(chosen, trials, model.heads)
        if model.family.final_norm is not None and not settings.final_norm:
            model.heads.raw = model.heads.settings["raw"] = True
        learned = (pairs for name, pairs in run.sets.items() if name != "test")
        model.seen = merged(encoder.seen, keys_of(*learned))
        origin = origin_of("freeze", encoder, model, data=data, seed=settings.seeds[0], settings=settings.to_dict())
        save_encoder(model, out / MODEL_FOLDER, model_card=report.card(model, origin), origin=origin)
        for folder in (run.store.folder, file.parent):  # results of other settings stay in their store
            report.write(folder / file.name)
        run.store.forget_weights({_name(chosen.step, chosen.layer, chosen.seed), _AUTOENCODERS})
    return report


def _layers(encoder: Encoder, settings: FrozenSettings) -> tuple[int, ...]:
    if encoder.depth == 0:
        raise ModelError(
            f"{encoder.name} has no blocks: it is cut at its embeddings.", hint="Use a model with one block or more."
        )
    if settings.final_norm and encoder.family.final_norm is None:
        raise UsageError(f"{encoder.name} has no final norm.", hint="Leave out `final_norm`.")
    if (widest := max(settings.codes or (0,))) >= encoder.width:
        problem = f"Codes of width {widest} do not compress the states of {encoder.name}, of width {encoder.width}."
        raise UsageError(problem, hint="Give narrower `codes`.")
    if settings.layers == "auto":
        return (encoder.depth,)
    held = [layer for layer in layers_held(encoder.backbone.config) if layer > 0]
    layers = sorted(parse_layers(settings.layers, held, encoder.depth))
    if layers[0] < 1:
        raise UsageError("Heads need a block: layer 0 is the embeddings.", hint=f"Use `layers` 1 to {encoder.depth}.")
    return tuple(layers)


def _splits(data: PairSplits, seed: int) -> dict[str, PairSet]:
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


def _frozen_part(encoder: Encoder, layer: int) -> Encoder:
    base = truncate(encoder, layer, copy_weights=False).eval()
    base.pool_with(None)
    base.tail, base.heads = nn.Sequential(), None
    return base


def _name(step: str, layer: int, seed: int) -> str:
    return f"{step}-blocks{layer:02d}-seed{seed}"


class _Run:
    raw: Rows  # states of raw sentences, set if the autoencoders are trained
    autoencoders: BlockAutoencoders | None = None

    def __init__(
        self,
        encoder: Encoder,
        data: PairSplits,
        settings: FrozenSettings,
        raw: Sequence[str] | None,
        nli: PairSet | None,
        work: Path,
        progress: Progress,
    ) -> None:
        self.begin, seed, learns_raw = time.perf_counter(), settings.seeds[0], AUTOENCODER in settings.steps
        self.encoder, self.data, self.settings, self.progress = encoder, data, settings, progress
        self.layers, self.sets = _layers(encoder, settings), _splits(data, seed)
        self.sentences, self.left_out = _draw_sentences(raw, self.sets, settings) if learns_raw else ([], 0)
        if nli is not None:
            nli_scores(nli)  # checked before anything is computed
            self.sets["nli"] = nli
        self.widths, self.cache = settings.code_widths(encoder.depth, encoder.width), work / "states"
        # Autoencoders train together, so their weights depend on the number of blocks.
        read = max(self.layers) if learns_raw else encoder.depth
        fixed = {name: value for name, value in settings.to_dict().items() if name not in ("layers", "steps", "seeds")}
        # The first seed draws sentences and trains the autoencoders.
        parts = [json.dumps(fixed, sort_keys=True), str((self.widths[:read], seed))]
        parts += [*(pairs.fingerprint() for pairs in self.sets.values()), *self.sentences]
        key = run_key(_frozen_part(encoder, read), *parts)
        self.store = RunStore(work / "trials", key, {"model": encoder.name, "frozen": fixed})

    def read_states(self) -> None:
        known = (trial.layer for trial in self.store.all(FrozenTrial).values())  # stored trials may need more blocks
        self.base, self.pairs = _frozen_part(self.encoder, max((*self.layers, *known))), dict[str, StatePairs]()
        norm, progress = self.settings.final_norm, self.progress
        states = partial(cached_states, self.base, folder=self.cache, final_norm=norm, progress=progress)
        texts = distinct_texts(pair for pairs in self.sets.values() for pair in pairs)
        values = states(texts)
        for name, pairs in self.sets.items():
            _, (first, second) = index_texts(pairs.pairs, texts)
            targets = nli_scores(pairs) if pairs.classes else pairs.scores01()
            self.pairs[name] = StatePairs(values, first, second, targets, self.settings.loss)
        if self.sentences:
            self.raw = states(self.sentences)

    def trials(self) -> tuple[FrozenTrial, list[FrozenTrial]]:
        """Run missing trials; return the best requested trial, and all stored trials with these seeds."""

        def runs() -> Iterator[tuple[str, Callable[[], FrozenTrial]]]:
            for step in sorted(self.settings.steps, key=STEPS.index):
                if step == AUTOENCODER:
                    self.autoencoders = self._pretrained()
                for layer, seed in itertools.product(self.layers, self.settings.seeds):
                    yield _name(step, layer, seed), partial(self._trial, step, layer, seed)

        asked, seeds = run_trials(runs()), self.settings.seeds
        stored = (trial for trial in self.store.all(FrozenTrial).values() if trial.seed in seeds)
        return choose(asked), sorted(stored, key=lambda one: (STEPS.index(one.step), one.layer, one.seed))

    def report(self, chosen: FrozenTrial, trials: Sequence[FrozenTrial], heads: LayerHeads) -> FrozenReport:
        encoder, settings, test, nli = self.encoder, self.settings, self.sets["test"], self.sets.get("nli")
        plain = new_heads(self.pairs["train"], (), settings, seed=settings.seeds[0])
        seen = seen_before(test, {encoder.name: encoder.seen})
        return FrozenReport(
            model=encoder.name,
            data=self.data.name,
            data_fingerprint=self.data.fingerprint(),
            settings=settings,
            pooling=self.base.state_pooling,
            depth=encoder.depth,
            width=encoder.width,
            states=_block_correlations(plain, self.pairs["test"]),
            train_states=_block_correlations(plain, self.pairs["train"]),
            trials=tuple(trials),
            chosen_step=chosen.step,
            chosen_layer=chosen.layer,
            chosen_seed=chosen.seed,
            reconstruction=self.store.read(_AUTOENCODERS, Reconstruction),
            test_sentences_in_nli=None if nli is None else len({*test.texts()} & {*nli.texts()}),
            worst=_worst(heads, self.pairs["dev"], self.pairs["test"], test),
            overlap=splits_for(self.data, settings.seeds[0]).overlap,
            seconds=time.perf_counter() - self.begin,
            notes=(seen,) if seen else (),
        )

    def _pretrained(self) -> BlockAutoencoders:
        store, settings, widths = self.store, self.settings, self.widths[: self.base.depth]
        if store.read(_AUTOENCODERS, Reconstruction) and store.has_weights(_AUTOENCODERS):
            model = BlockAutoencoders(BlockNetworks(self.base.width, widths, depth=settings.depth))
            model.load_state_dict(read_weights(store.weights(_AUTOENCODERS)))
            return model
        options: dict[str, Any] = {"seed": settings.seeds[0], "device": self.base.device, "left_out": self.left_out}
        checkpoint, progress = store.checkpoint(_AUTOENCODERS), self.progress
        model, record = pretrain(self.raw, widths, settings, checkpoint=checkpoint, progress=progress, **options)
        store.write(_AUTOENCODERS, record, partial(save, model))
        return model

    def heads(self, trial: FrozenTrial) -> LayerHeads:
        name = _name(trial.step, trial.layer, trial.seed)
        if not self.store.has_weights(name):
            self._trial(trial.step, trial.layer, trial.seed, again=True)
        return read_layer_heads(self.store.weights(name))

    def _trial(self, step: str, layer: int, seed: int, *, again: bool = False) -> FrozenTrial:
        begin, name, settings = time.perf_counter(), _name(step, layer, seed), self.settings
        known = None if again else self.store.read(name, FrozenTrial)
        if known is not None:
            return known
        pairs = {part: whole.lowest(layer) for part, whole in self.pairs.items()}
        widths = () if step == COSINE else self.widths[:layer]
        learned = self.autoencoders if step == AUTOENCODER else None
        heads = new_heads(pairs["train"], widths, settings, seed=seed, autoencoders=learned).to(self.base.device)
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
    return tuple(spearman((-column).tolist(), pairs.targets) for column in pairs.distances(heads).double().T)


def _worst(
    heads: LayerHeads, dev: StatePairs, test: StatePairs, pairs: PairSet
) -> tuple[tuple[str, str, float, float, float], ...]:
    """Return test pairs with the largest errors, less the mean error on dev: the loss ignores a constant shift."""
    held, predicted = (part.lowest(heads.blocks).evaluation(heads).cosines for part in (dev, test))
    errors = np.subtract(predicted, test.targets) - float(np.mean(np.subtract(held, dev.targets)))
    rows = zip(pairs, test.targets, predicted, errors.tolist(), strict=True)
    worst = sorted(rows, key=lambda row: -abs(row[3]))[:NUM_WORST]
    return tuple((pair.first, pair.second, *numbers) for pair, *numbers in worst)
