"""Frozen heads from end to end: states once, the paper's three steps in order, the best saved as a model."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import stats
from torch import Tensor, nn

from truncate_kit.data import PairSet, PairSplits
from truncate_kit.encoders import Encoder, LayerHeads, layers_held, save_encoder, truncate
from truncate_kit.errors import ModelError, UsageError
from truncate_kit.files import run_lock
from truncate_kit.frozen.autoencoders import BlockAutoencoders, pretrain
from truncate_kit.frozen.card import frozen_card
from truncate_kit.frozen.heads import (
    PairsJudge,
    StatePairs,
    new_heads,
    pair_distances,
    pair_scores,
    train_heads,
)
from truncate_kit.frozen.reading import Material, check_pairs, draw_sentences, nli_scores, read_material
from truncate_kit.frozen.results import FrozenReport, FrozenTrial, Reconstruction, WorstPair
from truncate_kit.frozen.settings import AUTOENCODER, COSINE, FrozenSettings
from truncate_kit.frozen.store import HeadStore, settings_key
from truncate_kit.progress import Progress, silent
from truncate_kit.serving.digests import count_texts, encoder_digest
from truncate_kit.sweep.trials import parse_layers
from truncate_kit.wording import counted

MODEL_FOLDER, WORK_FOLDER, REPORT_FILE = "frozen", "frozen-heads", "frozen.json"
NUM_WORST = 20


def finetune_frozen(
    encoder: Encoder,
    data: PairSplits,
    *,
    out: Path,
    settings: FrozenSettings | None = None,
    raw: Sequence[str] | None = None,
    nli: PairSet | None = None,
    progress: Progress = silent,
) -> FrozenReport:
    """Train heads over the states of the frozen blocks of `encoder` and save the best, with the blocks it needs.

    States are pooled as `encoder` pools; the paper takes the last token's. data: train, dev and test pairs with
    scores. raw: sentences for the step `autoencoder`; those of dev and test are left out. nli: pairs with the classes
    entailment, neutral and contradiction, on which heads are trained first. The step and number of blocks with the
    best mean dev Spearman are taken, fewer blocks on a tie, with the seed that is best on dev.
    out: gets `frozen/` (the model) and `frozen-heads/` (report, states, trials), from which the same call continues
    after a kill. Raises `ModelError` for a model without blocks, `UsageError`, `DataError`, `RunInUseError`,
    `CannotWriteError`, `TrainingDivergedError`.
    """
    settings, begin = settings or FrozenSettings(), time.perf_counter()
    layers = _layers(encoder, settings)
    splits = check_pairs(data, settings.seeds[0])
    sentences, left_out = _sentences(raw, splits, settings)
    if nli is not None:
        nli_scores(nli)  # before anything is computed
    base = _frozen_part(encoder, max(layers))
    work = Path(out) / WORK_FOLDER
    widths = settings.code_widths(encoder.depth, encoder.width)[: base.depth]
    key = settings_key(
        settings,
        encoder_digest(base),
        str(widths),
        *(pairs.fingerprint() for pairs in (*splits, *([nli] if nli is not None else []))),
        count_texts(sentences or ())[1],
    )
    store = HeadStore(work / "trials", key)
    with run_lock(store.folder):
        material = read_material(
            base, splits, work / "states", nli=nli, raw=sentences, left_out=left_out, progress=progress
        )
        run = _Run(base, material, settings, widths, store, progress)
        report = run.report(encoder, data, layers, nli, begin)
        chosen = store.heads(report.chosen, run.trainer(report.chosen))
        model = truncate(base, report.chosen_layer)
        model.heads = chosen.to(model.device)
        save_encoder(model, Path(out) / MODEL_FOLDER, model_card=frozen_card(report))
        report.write(work / REPORT_FILE)
        store.forget_heads(report.chosen)
    return report


def _layers(encoder: Encoder, settings: FrozenSettings) -> tuple[int, ...]:
    """Numbers of lowest blocks to try, rising. Raises `ModelError` for a model without blocks, `UsageError`."""
    if encoder.depth == 0:
        raise ModelError(
            f"{encoder.name} has no blocks: it is cut at its embeddings.", hint="Use a model with one layer or more."
        )
    held = [layer for layer in layers_held(encoder.backbone.config) if layer > 0]
    if settings.layers == "auto":
        return (encoder.depth,)
    layers = sorted(parse_layers(settings.layers, held, encoder.depth))
    if layers[0] < 1:
        raise UsageError("Heads need a block: layer 0 is the embeddings.", hint=f"Use --layer 1..{encoder.depth}.")
    return tuple(layers)


def _sentences(
    raw: Sequence[str] | None, splits: tuple[PairSet, PairSet, PairSet], settings: FrozenSettings
) -> tuple[list[str] | None, int]:
    if AUTOENCODER not in settings.steps:
        return None, 0
    if raw is None:
        raise UsageError(
            "The autoencoders have no raw sentences to learn from.",
            hint="Give --texts FILE, or leave that step out with --steps cosine,siamese.",
        )
    return draw_sentences(raw, splits[1:], settings.raw_sentences, settings.seeds[0])


def _frozen_part(encoder: Encoder, layer: int) -> Encoder:
    """The lowest blocks alone: nothing that follows pooling, no heads, no combination of layers."""
    base = truncate(encoder, layer, copy_weights=False).eval()
    base.combine_layers(None)
    base.tail, base.heads = nn.ModuleList(), None
    return base


class _Run:
    """All trials of one run. widths: of the codes of each block that is read."""

    def __init__(
        self,
        base: Encoder,
        material: Material,
        settings: FrozenSettings,
        widths: tuple[int, ...],
        store: HeadStore,
        progress: Progress,
    ) -> None:
        self.base, self.material, self.settings, self.widths = base, material, settings, widths
        self.store, self.progress = store, progress
        self.autoencoders: BlockAutoencoders | None = None

    def report(
        self, encoder: Encoder, data: PairSplits, layers: Sequence[int], nli: PairSet | None, begin: float
    ) -> FrozenReport:
        """Run what has not been run yet, choose, and tell."""
        settings, material = self.settings, self.material
        reconstruction, trials = None, []
        for step in settings.ordered_steps():
            if step == AUTOENCODER:
                reconstruction = self._autoencoders()
            for layer in layers:
                for seed in settings.seeds:
                    trials.append(self.store.trial(step, layer, seed, self._trainer(step, layer, seed)))
        chosen = choose(trials)
        heads = self.store.heads(chosen, self.trainer(chosen))
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
            trials=tuple(trials),
            chosen_step=chosen.step,
            chosen_layer=chosen.layer,
            chosen_seed=chosen.seed,
            reconstruction=reconstruction,
            nli=nli.name if nli is not None else None,
            worst=self._worst(heads, chosen.layer),
            overlap=data.overlap,
            seconds=time.perf_counter() - begin,
            notes=(*material.notes, *self.store.notes),
            test_sentences_in_nli=None if nli is None else len({*material.test_pairs.texts()} & {*nli.texts()}),
        )

    def _autoencoders(self) -> Reconstruction:
        raw = self.material.raw
        assert raw is not None  # checked before anything was computed

        def run(checkpoint: Path) -> tuple[BlockAutoencoders, Reconstruction]:
            begin = time.perf_counter()
            model, losses = pretrain(
                raw,
                self.widths,
                self.settings,
                seed=self.settings.seeds[0],
                device=self.base.device,
                checkpoint=checkpoint,
                progress=self.progress,
            )
            return model, Reconstruction(
                code_widths=self.widths,
                losses=losses,
                num_sentences=len(raw),
                left_out=self.material.left_out,
                seconds=time.perf_counter() - begin,
            )

        self.autoencoders, found = self.store.autoencoders(self.base.width, self.widths, run)
        return found

    def trainer(self, trial: FrozenTrial) -> Callable[[Path], tuple[FrozenTrial, LayerHeads]]:
        """What runs a trial again."""
        return self._trainer(trial.step, trial.layer, trial.seed)

    def _trainer(self, step: str, layer: int, seed: int) -> Callable[[Path], tuple[FrozenTrial, LayerHeads]]:
        material, settings = self.material, self.settings
        train, dev, test = (pairs.lowest(layer) for pairs in (material.train, material.dev, material.test))

        def run(checkpoint: Path) -> tuple[FrozenTrial, LayerHeads]:
            begin = time.perf_counter()
            heads = new_heads(step, train, self.widths[:layer], settings, seed=seed, autoencoders=self.autoencoders).to(
                self.base.device
            )
            done = train_heads(
                heads,
                train,
                dev,
                settings,
                seed=seed,
                nli=material.nli.lowest(layer) if material.nli is not None else None,
                checkpoint=checkpoint,
                progress=self.progress,
                task=f"{step}, {counted(layer, 'block')}, seed {seed}",
            )
            held, final = (PairsJudge(pairs, None).evaluation(heads) for pairs in (dev, test))
            return FrozenTrial(
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
            ), heads

        return run

    def _worst(self, heads: LayerHeads, layer: int) -> tuple[WorstPair, ...]:
        """The largest errors on test, the mean difference on dev taken off: the loss does not see it."""
        heads = heads.to(self.base.device)
        dev, test = self.material.dev.lowest(layer), self.material.test.lowest(layer)
        shift = float(np.mean(_differences(heads, dev)))
        predicted, errors = pair_scores(heads, test), _differences(heads, test) - shift
        order = np.argsort(-np.abs(errors), kind="stable")[:NUM_WORST]
        pairs = self.material.test_pairs.pairs
        return tuple(
            WorstPair(
                first=pairs[place].first,
                second=pairs[place].second,
                target=test.targets[place],
                predicted=predicted[place],
                error=float(errors[place]),
            )
            for place in order.tolist()
        )


def _differences(heads: LayerHeads, pairs: StatePairs) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.subtract(pair_scores(heads, pairs), pairs.targets)


def choose(trials: Sequence[FrozenTrial]) -> FrozenTrial:
    """Best mean dev Spearman over seeds by step and blocks, fewer blocks on a tie; there the seed best on dev."""
    groups: dict[tuple[str, int], list[FrozenTrial]] = {}
    for trial in trials:
        groups.setdefault((trial.step, trial.layer), []).append(trial)
    best = max(groups.values(), key=lambda group: (sum(one.dev for one in group) / len(group), -group[0].layer))
    return max(best, key=lambda trial: (trial.dev, -trial.seed))


def block_correlations(distances: Tensor, targets: Sequence[float]) -> tuple[float | None, ...]:
    """Spearman × 100 of 1 − distance and target at each block, from distances (n, L); None where it is not defined."""
    found: list[float | None] = []
    for column in distances.double().T:
        defined = len(set(column.tolist())) > 1 and len(set(targets)) > 1
        score = float(stats.spearmanr(-column.numpy(), targets).statistic) if defined else None
        found.append(None if score is None else 100 * score)
    return tuple(found)
