"""Train one model at one layer contrastively; one trial per seed is stored."""

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.files import local_path
from truncate_kit.core.progress import ProgressOption, reporter
from truncate_kit.core.vectors import mean_and_std
from truncate_kit.core.workspace import RESULT_FILES
from truncate_kit.data.pairs import PairSet, PairSplits
from truncate_kit.data.seen import keys_of, merged, seen_before
from truncate_kit.data.triplets import TripletSet
from truncate_kit.methods.contrast.settings import (
    FEWEST_ROWS,
    MEANS,
    ContrastiveResult,
    ContrastiveSettings,
    LayerWeights,
)
from truncate_kit.methods.priors import Hidden, hidden_states_at, load_masked_head, masked_batch, masked_head_digest
from truncate_kit.models.encoder import Batch, Encoder, evaluating
from truncate_kit.models.layer_pooling import LayerAttentionPooling, LayerPooling
from truncate_kit.models.pipeline import Dense, Normalize, save_encoder
from truncate_kit.models.store import RunStore, encoder_digest, origin_of, output_folder, run_key
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import ContrastiveTexts, PairEvaluator, announce_training, builder, encoded
from truncate_kit.training.loop import ALONE, Group, Ids, Scores, TrainingRun, isolated
from truncate_kit.training.settings import OBJECTIVES, Trial, run_trials, trial_name, trial_scores


def poolable_encoder(encoder: Encoder, settings: ContrastiveSettings, *, seed: int) -> Encoder:
    """Return the encoder cut at `settings.layer`, with a new pooler. Raises `UsageError`."""
    cut = truncate(encoder, encoder.depth if settings.layer is None else settings.layer)
    _check_suits(cut, settings)
    tail = _normalize(encoder)
    cut.heads, cut.tail = None, nn.Sequential()  # heads would replace the pooler
    cut.pool_with(None)
    token: Literal["cls", "last"] = "last" if cut.family.decoder else "cls"  # the last token attends to the whole text
    cut.pooling = "mean" if settings.pooling in MEANS else token
    torch.manual_seed(seed)
    width = cut.width
    if settings.pooling == "layer-attention":
        over, last_cls, literal, mlp = settings.over, settings.last_cls, settings.literal, settings.mlp
        cut.pool_with(LayerAttentionPooling(width, over=over, last_cls=last_cls, literal=literal, token=token, mlp=mlp))
    elif settings.pooling == "first-last":
        cut.combine_layers((0, cut.depth))
    elif settings.pooling == "concat":
        cut.pooling = "concat"
    elif settings.pooling == "mean-first-last":
        cut.pool_with(LayerPooling(width, layers=(0, cut.depth), over="mean", last=True))
    if settings.mlp and settings.pooling != "layer-attention":  # layer attention has its own MLP
        dense = Dense(cut.vector_width, width, bias=True, activation="Tanh")
        nn.init.normal_(dense.linear.weight, std=0.02)  # as in the transformer's layers
        nn.init.zeros_(dense.linear.bias)
        tail.insert(0, dense)
    cut.tail = nn.Sequential(*tail)
    _set_dropout(cut, settings)
    return cut.to(encoder.device)


def _check_suits(encoder: Encoder, settings: ContrastiveSettings) -> None:
    family, problem = encoder.family, ""
    if encoder.depth == 0 and settings.pooling != "mean":
        problem = "At layer 0 every text has the same CLS state: only mean pooling can be trained."
    elif settings.pooling in ("first-last", "mean-first-last") and family.final_norm is not None:
        problem = f"A {family.name} model normalises its last layer but not its embeddings: the two cannot be combined."
    elif settings.pooling == "concat" and family.decoder:
        problem = f"The first token of a {family.name} model attends only to itself and cannot serve as CLS."
    if problem:
        raise UsageError(problem, hint="Use mean or layer-attention as `pooling`, and a `layer` from 1 on.")


def _set_dropout(encoder: Encoder, settings: ContrastiveSettings) -> None:
    """Set all dropout probabilities to `settings.dropout`; raise `UsageError` if dropout is needed but all are 0."""
    modules: list[Any] = list(encoder.backbone.modules())
    name = "attention_dropout"
    places = [(module, "p") for module in modules if isinstance(module, nn.Dropout)]
    places += [(module, name) for module in modules if isinstance(getattr(module, name, None), float)]
    for module, field in places if settings.dropout is not None else ():
        setattr(module, field, settings.dropout)
    if OBJECTIVES[settings.objective].data == "texts" and not any(getattr(*place) for place in places):
        raise UsageError(
            f"{encoder.name} trains without dropout, so both copies of a text are identical.",
            hint="Use `dropout=0.1` with a `layer` from 1 on, or another `objective`.",
        )


def _normalize(encoder: Encoder) -> list[nn.Module]:
    return [Normalize()] if len(encoder.tail) and isinstance(encoder.tail[-1], Normalize) else []


def remove_pooler(encoder: Encoder) -> Encoder:
    """Remove the pooler and the tail (except a final Normalize), in place.

    Instead of layer attention or a concatenation, vectors are then the last layer's CLS state (decoders: last token) or
    mean state.
    """
    if encoder.pooler is not None or encoder.pooling == "concat":
        encoder.pool_with(None)  # `pooling` then applies to the last layer
    encoder.tail = nn.Sequential(*_normalize(encoder))
    return encoder


class BareEvaluator(PairEvaluator):
    """Evaluator that removes the encoder's pooler, computes the scores, and restores the pooler."""

    def score(self, encoder: Encoder) -> Scores:
        """Score the encoder without its pooler."""
        pooler, pooling, tail = encoder.pooler, encoder.pooling, encoder.tail
        try:
            return super().score(remove_pooler(encoder))
        finally:
            encoder.tail = tail
            if pooler is not None:
                encoder.pool_with(pooler)
            encoder.pooling = pooling


_BATCH = 32


@torch.inference_mode()
def layer_weights(encoder: Encoder, texts: Sequence[str]) -> LayerWeights:
    """Return each text's attention weights over the layers, averaged over attention queries.

    Raises `UsageError` if the encoder does not use layer attention.
    """
    if not isinstance(encoder.pooler, LayerAttentionPooling):
        raise UsageError(
            f"{encoder.name} uses {encoder.pooling_name} pooling, not layer attention.",
            hint='Train it with `finetune_contrastive()` and `pooling="layer-attention"`.',
        )
    rows: list[tuple[float, ...]] = []
    with evaluating(encoder):
        for start in range(0, len(texts), _BATCH):
            batch = encoder.tokenize(texts[start : start + _BATCH])
            states = encoder.hidden_states(batch, raw=True)
            parts = encoder.pooler.summaries_and_means(states, batch["attention_mask"])
            rows += map(tuple, encoder.pooler.layer_weights(*parts).float().cpu().tolist())
    return LayerWeights(model=encoder.name, texts=tuple(texts), weights=tuple(rows))


class Discriminator(nn.Module):
    """Classifier of tokens as original or replaced, given the sentence vector as first embedding.

    Initialised from the encoder's blocks; not part of the saved model.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(encoder.backbone)
        self._first_block = f"{encoder.family.blocks}.0"
        self.replaced = nn.Linear(encoder.width, 2)
        nn.init.normal_(self.replaced.weight, std=0.02)
        nn.init.zeros_(self.replaced.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, vectors: Tensor) -> Tensor:
        """Return logits (b, t, 2) for ids and mask (b, t) and sentence vectors (b, d)."""

        def place(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            hook.remove()  # models with shared weights run this block again
            states: Tensor = inputs[0] if inputs else options.pop("hidden_states")
            states = torch.cat([vectors.to(states.dtype).unsqueeze(1), states[:, 1:]], dim=1)
            return (states, *inputs[1:]), options

        block = self.backbone.get_submodule(self._first_block)
        hook = block.register_forward_pre_hook(place, with_kwargs=True)
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits: Tensor = self.replaced(states)
        return logits


class DifferenceTexts(ContrastiveTexts):
    """Raw texts for DiffCSE; the loss is equation 7 plus `weight` × the replaced-token loss.

    The replaced-token loss is the discriminator's cross entropy (nats) on both copies of each text, averaged over the
    tokens of all processes. Unlike in Chuang et al. 2022, the frozen generator is by default the model itself instead
    of DistilBERT, and only masked tokens are replaced: at least one per text, each by the likeliest token.
    Raises `UsageError` if the generator lacks a pretrained masked-language head or uses another vocabulary.
    """

    def __init__(
        self,
        encoder: Encoder,
        ids: list[Ids],
        generator: Encoder,
        *,
        temperature: float,
        weight: float,
        share: float,  # of masked tokens
        group: Group = ALONE,
    ) -> None:
        super().__init__([ids, ids], temperature=temperature, group=group)
        self._generator, self._words = generator, load_masked_head(generator)
        same = generator.reader.tokenizer.get_vocab() == encoder.reader.tokenizer.get_vocab()
        if not same or not self._words.pretrained:
            problem = "has no pretrained head for masked tokens" if same else f"and {encoder.name} differ in vocabulary"
            hint = "As `generator`, give a masked language model with the same tokenizer."
            raise UsageError(f"{generator.name} {problem}.", hint=hint)
        self._weight, self._share = weight, share
        self.discriminator = Discriminator(encoder).to(encoder.device)
        self.head: nn.Module | None = self.discriminator

    def texts(self) -> Sequence[Ids]:
        """Return an empty sequence to keep the whole vocabulary: the generator can insert any token."""
        return ()

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the contrastive loss plus the weighted replaced-token loss."""
        own = self._group.share(batch)
        ids = self.ids(own)
        vectors = encoded(encoder, ids)
        loss = self._loss_of(vectors, len(batch))
        seed = int(torch.randint(2**62, ()))  # checkpoints store torch's generator
        if not own:
            return loss
        inputs, hidden = masked_batch(encoder, ids, torch.Generator().manual_seed(seed), self._share)
        filled, replaced = self._filled(inputs, hidden)
        logits = self.discriminator(filled, inputs["attention_mask"], vectors)
        terms = nn.functional.cross_entropy(logits.float().transpose(1, 2), replaced, reduction="none")
        tokens = sum(map(len, self.ids(batch)))
        return loss + self._weight * (terms * inputs["attention_mask"]).sum() / tokens

    @torch.no_grad()
    def _filled(self, batch: Batch, hidden: Hidden) -> tuple[Tensor, Tensor]:
        """Return ids with all masked tokens filled in, and labels: 1 if the token changed, else 0; (b, t) each."""
        places, words = hidden
        with evaluating(self._generator), evaluating(self._words):
            likeliest = self._words(hidden_states_at(self._generator, batch, places)).argmax(dim=-1)
        ids = batch["input_ids"]
        filled = ids.flatten().scatter(0, places, likeliest)
        replaced = torch.zeros_like(filled).scatter(0, places, (likeliest != words).to(filled.dtype))
        return filled.view_as(ids), replaced.view_as(ids)


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
    """Train a truncated copy of `encoder` contrastively; save the weights with the best dev score.

    Args:
        encoder: Model to truncate; stays unchanged.
        rows: Anchors, positives and, for `hard-negatives`, negatives. For raw text, `raw_texts` builds the rows.
        data: Graded pairs: dev to select checkpoint and seed, test to score each seed.
        out: Output folder for `lean/`, `contrastive.json` and `trials/`; repeat the call to resume.
        settings: Run settings.
        generator: Frozen generator for `diffcse`; by default `encoder`.
        group: Processes that train together.
        progress: A `ProgressOption`.
        stage_done: See `TrainingRun.train`.

    Raises:
        UsageError: The model does not support the settings.
        DataError: Rows or dev pairs are missing or unusable.
        LayerOutOfRangeError: The layer does not exist.
        LayerNotHeldError: A model cut at the layer cannot be saved exactly.
        FileProblemError: `out` is not writable or in use.
        DivergedError: A seed diverged; trials of the other seeds are stored.
    """
    start, run = time.perf_counter(), _Run(encoder, rows, data, settings or ContrastiveSettings(), generator, group)
    out = local_path(out)
    store = RunStore(out / "trials", run.key(), {"model": encoder.name, "contrastive": run.plain})

    def trial(seed: int, *, again: bool = False) -> Trial:
        name = trial_name(run.depth, seed, run.training.epochs)
        record = group.agree(store.read(name, Trial) if group.leads and not again else None)
        if record is None:
            running = {"checkpoint": store.checkpoint(name), "progress": reporter(progress), "stage_done": stage_done}
            model, record = run.train(seed, **running)
            if group.leads:
                store.write_encoder(name, record, model)
        return record

    with contextlib.ExitStack() as held:
        if group.leads:
            held.enter_context(output_folder(out, encoder, "lean"))
            held.enter_context(store.open())
        if group.leads:
            blocks = run.depth * run.training.epochs * len(run.settings.seeds) * sum(map(len, run.columns))
            announce_training(reporter(progress), encoder, run.columns[0], blocks)
        trials = run_trials((f"Seed {seed}", partial(trial, seed)) for seed in run.settings.seeds)
        best = max(trials, key=lambda one: (one.dev, -one.seed))
        if not group.agree(store.has_weights(best.name)):  # only another seed's weights are stored
            trial(best.seed, again=True)
        result = None
        if group.leads:
            lean = store.encoder(best.name, encoder.device)
            result = run.result(trials, best.seed, lean.num_parameters, time.perf_counter() - start)
            lean.name, lean.seen = encoder.name, merged(encoder.seen, keys_of(run.dev, rows.pairs()))
            origin = origin_of("contrast", encoder, lean, data=data, settings=run.settings.to_dict())
            save_encoder(lean, out / "lean", model_card=result.card(lean, origin), origin=origin)
            for place in (store.folder, out):  # the store keeps results that a later call replaces in `out`
                result.write(place / RESULT_FILES["contrast"])
            store.forget_weights({best.name})
    return cast(ContrastiveResult, group.agree(result))


class _Run:
    def __init__(
        self,
        encoder: Encoder,
        rows: TripletSet,
        data: PairSplits,
        settings: ContrastiveSettings,
        generator: Encoder | None,
        group: Group,
    ) -> None:
        self.encoder, self.rows, self.data, self.settings, self.group = encoder, rows, data, settings, group
        self.dev, self.columns, self.generator = _graded(data), _columns(rows, settings), generator or encoder
        self.training = settings.training(encoder.family.recipe, encoder.width)
        self.depth = poolable_encoder(encoder, settings, seed=0).depth  # raises if settings do not fit
        self.plain = settings.to_dict() | {"seeds": (), "layer": self.depth}

    def key(self) -> str:
        parts = [repr(self.plain), self.training.to_json(), self.rows.fingerprint(), self.data.fingerprint()]
        parts.append(str(self.group.size))
        if OBJECTIVES[self.settings.objective].fills_words:
            parts += [encoder_digest(self.generator), masked_head_digest(self.generator)]
        return run_key(self.encoder, *parts)

    def train(self, seed: int, **running: Any) -> tuple[Encoder, Trial]:
        """Train a new encoder; score it as it will be saved."""
        settings, training, agree = self.settings, self.training, self.group.agree
        model = poolable_encoder(self.encoder, settings, seed=seed)
        on_dev = (PairEvaluator if settings.keep_pooler else BareEvaluator)(model, self.dev)
        options: dict[str, Any] = {"seed": seed, "evaluate_every": settings.evaluate_every, "group": self.group}
        run = TrainingRun(model, self._examples(model), on_dev, training, **options)
        run.train(task=f"{settings.objective}, {settings.pooling}, layer {self.depth}, seed {seed}", **running)
        if not settings.keep_pooler:
            remove_pooler(model)
        dev, test = agree(on_dev.score(model)), self.data.test
        tested = None if test is None else agree(PairEvaluator(model, test).score(model))
        scores = trial_scores(run.scores, dev, tested, run.seconds)
        return model, Trial(layer=self.depth, seed=seed, epochs=training.epochs, steps=run.total, **scores)

    def _examples(self, encoder: Encoder) -> ContrastiveTexts:
        settings, row = self.settings, OBJECTIVES[self.settings.objective]
        reader = replace(encoder.reader, max_length=min(encoder.max_length, settings.max_tokens))
        ids = [reader.token_ids(column) for column in self.columns]
        common: dict[str, Any] = {"temperature": settings.temperature, "group": self.group}
        if row.fills_words:
            weight, share = settings.replaced_weight, settings.masked_share
            return DifferenceTexts(encoder, ids[0], self.generator, weight=weight, share=share, **common)
        made = builder(row.examples)(ids, own_weight=settings.hard_negative_weight, chunk=settings.chunk, **common)
        return cast(ContrastiveTexts, made)

    def result(self, trials: Sequence[Trial], chosen_seed: int, parameters: int, seconds: float) -> ContrastiveResult:
        encoder, rows, data, training = self.encoder, self.rows, self.data, self.training
        dev, dev_std = mean_and_std([one.dev for one in trials])
        tests = [one.test for one in trials if one.test is not None]
        test, test_std = mean_and_std(tests) if tests else (None, None)
        test_texts = set[str]() if data.test is None else {*data.test.texts()}
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
            layer=self.depth,
            depth=encoder.depth,
            parameters=parameters,
            trials=tuple(trials),
            chosen_seed=chosen_seed,
            dev=dev,
            dev_std=dev_std,
            test=test,
            test_std=test_std,
            test_texts=len(test_texts),
            seen=len(test_texts.intersection(chain(*self.columns))),
            seen_before=seen_before(data.evaluation, {encoder.name: encoder.seen}),
            processes=self.group.size,
            seconds=seconds,
        )


def _graded(data: PairSplits) -> PairSet:
    if data.dev is None:
        problem = f"{data.name} has no dev split to select checkpoints."
        raise DataError(problem, hint="Give a folder with dev and test files.")
    for pairs in filter(None, (data.dev, data.test)):
        pairs.check_graded()
        pairs.check_ranked()
    return data.dev


def _columns(rows: TripletSet, settings: ContrastiveSettings) -> list[list[str]]:
    if len(rows) < FEWEST_ROWS:
        problem = f"Rows in {rows.name}: {len(rows)}; at least {FEWEST_ROWS} are needed. {rows.note}".rstrip()
        hint = 'Give thousands of rows; `objective="in-batch"` builds the most rows from NLI pairs.'
        raise DataError(problem, hint=hint)
    number = 3 if OBJECTIVES[settings.objective].data == "negatives" else 2
    if short := sum(len(row) < number for row in rows.rows):
        problem = f"{rows.name}: {short:,} of {len(rows):,} rows have no negative."
        raise DataError(problem, hint='Give negatives, or use `objective="in-batch"`.')
    return [[row[place] for row in rows.rows] for place in range(number)]
