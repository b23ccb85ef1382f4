"""The head that predicts masked words: the checkpoint's own where it has one, else a new one."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutput

from truncate_kit.errors import ModelError
from truncate_kit.models import Encoder
from truncate_kit.models.digest import Digest
from truncate_kit.models.model_folder import quiet_transformers, resolve
from truncate_kit.models.pipeline import read_pipeline


class _GivenStates(nn.Module):
    """Stands where the backbone was and gives the states that it is handed."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutput:
        """inputs_embeds: the states, (1, m, d)."""
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class MaskedHead(nn.Module):
    """States (m, d) to logits over the vocabulary (m, v); the projection is tied to the encoder's word embeddings."""

    def __init__(self, model: nn.Module, pretrained: bool) -> None:
        super().__init__()
        self._model, self.pretrained = model, pretrained  # whether the weights come from the checkpoint

    def forward(self, states: Tensor) -> Tensor:
        """Logits of states, (m, d) each."""
        logits: Tensor = self._model(inputs_embeds=states.unsqueeze(0)).logits[0]
        return logits

    def weights(self) -> dict[str, Tensor]:
        """Its weights under the names they have in the whole masked language model."""
        return dict(self._model.state_dict())


def load_masked_head(encoder: Encoder) -> MaskedHead:
    """The head over the states of `encoder`, which may be truncated; its weights from the folder or hub name.

    New, drawn by torch's global seed, where the checkpoint has none (an ELECTRA discriminator, a sentence encoder) or
    other word embeddings (weights drawn anew). Raises `ModelError` for a family without masked words.
    """
    if type(encoder.backbone.config) not in AutoModelForMaskedLM._model_mapping:
        hint = "Adapt a bert-, electra- or deberta-like model, or leave this prior out."
        raise ModelError(f"A {encoder.family.name} model predicts the next word, not masked ones.", hint=hint)
    model, pretrained = _masked_model(encoder)
    embeddings = encoder.backbone.get_input_embeddings()
    setattr(model, model.base_model_prefix, encoder.backbone)
    model.tie_weights()
    given = _GivenStates()
    if hasattr(model, "lm_predictions"):  # DeBERTa's own head asks the backbone for the words it is tied to
        given.embeddings = nn.Module()
        given.embeddings.word_embeddings = embeddings
    setattr(model, model.base_model_prefix, given)
    return MaskedHead(model.to(encoder.device), pretrained)


def masked_head_digest(encoder: Encoder) -> str:
    """SHA-256 of the head that comes with the checkpoint; a new one follows from the encoder and the seed."""
    with torch.random.fork_rng(devices=[]):
        head = load_masked_head(encoder)
    digest = Digest()
    digest.add_weights(head.weights() if head.pretrained else {})
    return digest.hexdigest()


def _masked_model(encoder: Encoder) -> tuple[Any, bool]:
    """The whole masked language model, and whether its head comes from the checkpoint."""
    config = encoder.backbone.config
    # DeBERTa's authors saved their head under names that transformers reads only when asked to.
    variants = ({}, {"legacy": False}) if hasattr(config, "legacy") else ({},)
    for variant in variants:
        try:
            folder = read_pipeline(resolve(encoder.name)).transformer
            with quiet_transformers():
                model, report = AutoModelForMaskedLM.from_pretrained(
                    folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=False, **variant
                )
        except (ModelError, OSError):
            break
        backbone = f"{model.base_model_prefix}."
        if _has_words_of(model, encoder) and all(key.startswith(backbone) for key in report["missing_keys"]):
            return model, True
    with quiet_transformers():
        return AutoModelForMaskedLM.from_config(config), False


def _has_words_of(model: Any, encoder: Encoder) -> bool:
    """Whether both have the same word embeddings: a head fits no others, such as those of weights drawn anew."""
    theirs: Tensor = model.get_input_embeddings().weight
    ours: Any = encoder.backbone.get_input_embeddings().weight
    return torch.equal(theirs.cpu(), ours.cpu())
