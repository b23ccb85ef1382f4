"""Train before TMFT: masked language modelling on domain text (DAPT, Gururangan et al. 2020), or TMFT on word pairs."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutput

from truncate_kit.core.errors import DataError, ModelError, counted
from truncate_kit.core.progress import Progress, ProgressOption, reporter, silent
from truncate_kit.core.results import Result, listed_texts
from truncate_kit.data.pairs import PairSplits, splits_for
from truncate_kit.data.seen import Keys, keys_of
from truncate_kit.models.encoder import Batch, Encoder, evaluating, length_batches
from truncate_kit.models.loading import load_config, resolve
from truncate_kit.models.pipeline import quiet_transformers, transformer_of
from truncate_kit.models.store import RunStore, run_key, sha256_of, weight_parts
from truncate_kit.models.truncation import truncate
from truncate_kit.training.examples import LabelledTask
from truncate_kit.training.loop import ALONE, Evaluator, Examples, Group, Ids, TrainingRun, isolated
from truncate_kit.training.settings import AdaptationSettings, TrainingSettings, word_training


class _GivenStates(nn.Module):
    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class MaskedHead(nn.Module):
    """Masked-language-model head: hidden states (m, d) to logits (m, v); output weights are the word embeddings."""

    def __init__(self, model: nn.Module, pretrained: bool) -> None:
        super().__init__()
        self.model, self.pretrained = model, pretrained

    def forward(self, states: Tensor) -> Tensor:
        """Return logits (m, v) of states (m, d)."""
        logits: Tensor = self.model(inputs_embeds=states.unsqueeze(0)).logits[0]
        return logits


def load_masked_head(encoder: Encoder) -> MaskedHead:
    """Load the masked-language-model head of the checkpoint of `encoder`, truncated or not.

    If the checkpoint lacks a head (ELECTRA discriminators, sentence encoders) or has other word embeddings, a new head
    is initialised at random by torch's global generator. Raises `ModelError` for a family without such heads.
    """
    if type(encoder.backbone.config) not in AutoModelForMaskedLM._model_mapping:
        hint = "Use a BERT-, ELECTRA- or DeBERTa-like model, or skip masked language modelling."
        raise ModelError(f"A {encoder.family.name} model predicts the next token, not masked tokens.", hint=hint)
    model, pretrained = _masked_model(encoder)
    embeddings = encoder.backbone.get_input_embeddings()
    setattr(model, model.base_model_prefix, encoder.backbone)
    model.tie_weights()
    states = _GivenStates()
    if hasattr(model, "lm_predictions"):  # DeBERTa's head reads the word embeddings
        states.embeddings = nn.Module()
        states.embeddings.word_embeddings = embeddings
    setattr(model, model.base_model_prefix, states)
    return MaskedHead(model.to(encoder.device), pretrained)


def masked_head_digest(encoder: Encoder) -> str:
    """Hash the pretrained head's weights (SHA-256); a new head counts as empty."""
    with torch.random.fork_rng(devices=[]):
        head = load_masked_head(encoder)
    return sha256_of(weight_parts(head.model.state_dict() if head.pretrained else {}))


def _masked_model(encoder: Encoder) -> tuple[Any, bool]:
    config, ours = encoder.backbone.config, next(encoder.backbone.get_input_embeddings().parameters())
    # Some DeBERTa heads load only with legacy=False.
    variants = ({}, {"legacy": False}) if hasattr(config, "legacy") else ({},)
    for variant in variants:
        try:
            folder = transformer_of(resolve(encoder.name))
            with quiet_transformers():
                read = load_config(folder)  # not by transformers, which takes the file's way of attention
                read.update(variant)
                model, report = AutoModelForMaskedLM.from_pretrained(
                    folder, config=read, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
                )
        except (ModelError, OSError):
            break
        whole = all(key.startswith(f"{model.base_model_prefix}.") for key in report["missing_keys"])
        # The head fits only the word embeddings that it was trained with.
        if whole and torch.equal(model.get_input_embeddings().weight.cpu(), ours.cpu()):
            return model, True
    with quiet_transformers():
        return AutoModelForMaskedLM.from_config(config), False


MASKED_SHARE = 0.15
HIDDEN, REPLACED = 0.8, 0.1  # of the chosen tokens
IGNORED = -100
SCORED_BATCH = 64


def mask_tokens(
    input_ids: Tensor, maskable: Tensor, mask_id: int, vocabulary: int, generator: torch.Generator, share: float
) -> tuple[Tensor, Tensor]:
    """Mask tokens as in BERT (Devlin et al. 2019, section 3.1).

    Each maskable token (b, t) is chosen with probability `share`, at least one per row; 80 % of the chosen become
    `mask_id`, 10 % a random id below `vocabulary`, 10 % stay unchanged. Return new ids and labels, (b, t) each; labels
    hold the original ids of chosen tokens, else -100.
    """
    shape = input_ids.shape
    draw = torch.rand(shape, generator=generator).masked_fill(~maskable, 2.0)
    threshold = draw.min(dim=1, keepdim=True).values.clamp(min=share)
    chosen = maskable & ((draw < share) | (draw == threshold))
    labels = input_ids.masked_fill(~chosen, IGNORED)
    fate = torch.rand(shape, generator=generator)
    other = torch.randint(vocabulary, shape, generator=generator)
    hidden = chosen & (fate < HIDDEN)
    replaced = chosen & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED)
    return torch.where(replaced, other, input_ids.masked_fill(hidden, mask_id)), labels


Hidden = tuple[Tensor, Tensor]
"""Masked tokens of a batch: positions in the flattened batch (b, t) and original ids, (m,) each."""


def hidden_words(labels: Tensor) -> Hidden:
    """Return positions and original ids of the masked tokens, from labels of `mask_tokens`."""
    places = (labels.flatten() != IGNORED).nonzero().squeeze(1)
    return places, labels.flatten()[places]


def hidden_states_at(encoder: Encoder, batch: Batch, places: Tensor) -> Tensor:
    """Return the token states (m, d) at `places` in the flattened batch."""
    return encoder.token_states(**batch).flatten(0, 1).index_select(0, places)


def masked_batch(
    encoder: Encoder, ids: Sequence[Ids], generator: torch.Generator, share: float = MASKED_SHARE
) -> tuple[Batch, Hidden]:
    """Pad texts and mask a share of their tokens; return batch and masked tokens on the encoder's device.

    Raises `ModelError` if the tokenizer has no mask token.
    """
    tokenizer = encoder.reader.tokenizer
    if tokenizer.mask_token_id is None:
        hint = "Use a model with a mask token."
        raise ModelError(f"The tokenizer of {encoder.name} has no mask token.", hint=hint)
    batch, vocabulary = encoder.padded(ids), int(encoder.backbone.config.vocab_size)
    special = torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
    maskable = batch["attention_mask"].bool() & ~special
    shown, labels = mask_tokens(
        batch["input_ids"], maskable, int(tokenizer.mask_token_id), vocabulary, generator, share
    )
    places, words = hidden_words(labels)  # on the CPU, to avoid a GPU sync
    sent = encoder.moved(batch | {"input_ids": shown, "places": places, "words": words})
    return sent, (sent.pop("places"), sent.pop("words"))


Objective = Callable[[Encoder, Any, Batch, Hidden], Tensor]


def masked_loss(encoder: Encoder, head: MaskedHead, batch: Batch, hidden: Hidden, reduction: str = "mean") -> Tensor:
    """Return the cross entropy (nats) of the masked tokens; the head runs on no other tokens."""
    places, words = hidden
    states = hidden_states_at(encoder, batch, places)
    return nn.functional.cross_entropy(head(states).float(), words, reduction=reduction)


class MaskedTexts(Examples):
    """Raw texts for masked language modelling; each batch draws new masks."""

    def __init__(
        self,
        encoder: Encoder,
        ids: list[Ids],
        head: nn.Module,
        *,
        objective: Objective = masked_loss,
        part: int | None = None,  # texts per forward pass, by default all
        group: Group = ALONE,  # processes that share every batch
    ) -> None:
        super().__init__(ids)
        self._part, self._group = part or len(ids), group
        self.head = head
        self._objective = objective

    def texts(self) -> Sequence[Ids]:
        """Return an empty sequence to keep the whole vocabulary: any token may replace a masked one."""
        return ()

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return this process's share of the batch loss; 0 for a process without texts."""
        parts = [batch[start : start + self._part] for start in range(0, len(batch), self._part)]
        # All processes share the seeds, so masks do not depend on the number of processes.
        seeds = self._group.agree([int(torch.randint(2**62, ())) for _ in parts])
        own = self._group.share(list(zip(parts, seeds, strict=True)))
        losses = []
        for part, seed in own:
            generator = torch.Generator().manual_seed(seed)
            inputs, hidden = masked_batch(encoder, self.ids(part), generator)
            losses.append(self._objective(encoder, self.head, inputs, hidden) * (len(part) / len(batch)))
        return torch.stack(losses).sum() if losses else torch.zeros((), device=encoder.device, requires_grad=True)


class MaskedEvaluator(Evaluator):
    """Evaluator that returns the negative cross entropy (nats) of masked tokens; the masks are fixed.

    Raises `DataError` if no token can be masked.
    """

    def __init__(self, encoder: Encoder, ids: list[Ids], head: MaskedHead) -> None:
        generator, self._head = torch.Generator().manual_seed(0), head
        chunks = length_batches([len(row) for row in ids], SCORED_BATCH)
        self.batches = [masked_batch(encoder, [ids[place] for place in chunk], generator) for chunk in chunks]
        if not any(len(words) for _, (_, words) in self.batches):
            raise DataError(
                "No token of the held-out texts can be masked: all are special or unknown to the tokenizer.",
                hint="Give texts in a language and script that the model knows.",
            )

    @torch.inference_mode()
    def score(self, encoder: Encoder) -> tuple[float, float | None]:
        """Return the negative mean loss."""
        total, count = 0.0, 0
        with evaluating(encoder), evaluating(self._head):
            for batch, hidden in self.batches:
                total += float(masked_loss(encoder, self._head, batch, hidden, reduction="sum"))
                count += len(hidden[1])
        return -total / count, None


HELD_OUT, MOST_HELD_OUT = 0.05, 2000
FEWEST_TEXTS = 20
_NAME = "adaptation"
MICRO_BATCH = 32  # eight forward passes per batch of 256, as in the TMFT paper


class AdaptationResult(Result):
    """Result of `adapt`."""

    layer: int
    num_texts: int
    num_held_out: int
    head_pretrained: bool
    losses: tuple[float, ...]  # nats on held-out texts, before and after each epoch
    best_epoch: int
    processes: int


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
    """Train a copy of `encoder`, cut at `layer`, by masked language modelling.

    The weights of the epoch with the lowest loss on held-out texts (5 %, at most 2,000) are kept.

    Args:
        encoder: Model; stays unchanged.
        texts: Raw texts.
        settings: Training settings.
        layer: Layer to cut at; by default the last.
        checkpoint: File to save to and resume from.
        group: Processes that train together.
        progress: A `ProgressOption`.

    Raises:
        DataError: Too few texts, or no token can be masked.
        ModelError: The model has no mask token, or predicts the next token.
    """
    settings, texts = settings or AdaptationSettings(), list(dict.fromkeys(listed_texts(texts)))
    same = {name: getattr(settings, name) for name in ("epochs", "batch_size", "precision")}
    training = TrainingSettings(**same, learning_rate=settings.rate(encoder.width))
    if len(texts) < FEWEST_TEXTS:
        raise DataError(f"Only {len(texts)} distinct texts to adapt to.", hint=f"Give at least {FEWEST_TEXTS}.")
    model = truncate(encoder, encoder.depth if layer is None else layer)
    torch.manual_seed(settings.seed)
    head, ids = load_masked_head(model), model.token_ids(texts, prompt=False)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(settings.seed)).tolist()
    held = max(2, min(MOST_HELD_OUT, round(HELD_OUT * len(ids))))
    evaluator = MaskedEvaluator(model, [ids[place] for place in order[:held]], head)
    untrained, _ = evaluator.score(model)
    examples = MaskedTexts(model, [ids[place] for place in order[held:]], head, part=MICRO_BATCH, group=group)
    micro_batch = MICRO_BATCH * group.size
    task = f"masked words at layer {model.depth}, {counted(training.epochs, 'epoch')}"
    run = TrainingRun(model, examples, evaluator, training, seed=settings.seed, micro_batch=micro_batch, group=group)
    run.train(checkpoint=checkpoint, progress=reporter(progress), task=task)
    return model, AdaptationResult(
        layer=model.depth,
        num_texts=len(ids) - held,
        num_held_out=held,
        head_pretrained=head.pretrained,
        losses=(-untrained, *(-score for score in run.scores)),
        best_epoch=run.best_stage + 1,
        processes=group.size,
    )


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
    """Call `adapt`, or load the stored result of the same model, texts and settings from `out`.

    Only the leading process writes to `out`. Raises `FileProblemError` if `out` is not writable or in use.
    """
    settings = settings or AdaptationSettings()
    settled = replace(settings, learning_rate=settings.rate(encoder.width)).to_json()
    key = run_key(encoder, masked_head_digest(encoder), settled, str(layer), *texts)
    store = RunStore(out, key, {"model": encoder.name, "adaptation": settings.to_dict()})
    with store.open() if group.leads else contextlib.nullcontext():
        known = group.leads and store.has_weights(_NAME)
        result = group.agree(store.read(_NAME, AdaptationResult) if known else None)
        if result is not None:
            model = store.encoder(_NAME, encoder.device)
            model.name, model.seen, model.trained = encoder.name, encoder.seen, encoder.trained
            return model, result
        checkpoint = store.checkpoint(_NAME, str(group.size))  # holds every process's random state
        model, result = adapt(
            encoder, texts, settings, layer=layer, checkpoint=checkpoint, group=group, progress=progress
        )
        return model, store.write_encoder(_NAME, result, model) if group.leads else result


class WordPrior:
    """TMFT on word pairs before sentence pairs; by default as in the paper: batch size 128, best of 50 epochs on dev.

    `full` is the encoder before truncation, for its tokenizer. Raises `DataError` for unusable word pairs.
    """

    def __init__(self, full: Encoder, words: PairSplits, settings: TrainingSettings | None = None) -> None:
        self.settings = (settings or word_training()).settled(full.width)
        self._task, self._words = LabelledTask(full, words), words

    def fingerprint(self) -> str:
        """Return a string that identifies word pairs and settings."""
        return f"words {self._words.fingerprint()} {self.settings.to_json()}"

    def learned(self, seed: int) -> Keys:
        """Return the keys of train and dev word pairs."""
        return keys_of(*(pairs for name, pairs in splits_for(self._words, seed).items() if name != "test"))

    def train(
        self, encoder: Encoder, seed: int, *, checkpoint: Path | None = None, progress: Progress = silent
    ) -> float:
        """Train `encoder` in place; return the best dev score in points."""
        examples, dev, _ = self._task.trial(encoder, seed)
        run, task = TrainingRun(encoder, examples, dev, self.settings, seed=seed), f"words at layer {encoder.depth}"
        task += f", seed {seed}, {counted(self.settings.epochs, 'epoch')}"
        return max(run.train(checkpoint=checkpoint, progress=progress, task=task).scores)
