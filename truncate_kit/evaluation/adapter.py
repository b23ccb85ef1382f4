"""What the `mteb` package asks of a model, answered by an encoder in torch or by its graph."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from truncate_kit.evaluation.graded import TextEncoder
from truncate_kit.evaluation.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, encode_prompted, settings_of, side_prompt
from truncate_kit.evaluation.searching import MEASURES, measure_of
from truncate_kit.extras import require
from truncate_kit.progress import Progress, silent

_SIDES = {"query": QUERY_PROMPTS, "document": DOCUMENT_PROMPTS}
_BLOCK = 256  # pairs compared at a time, all with all


class MtebEncoder:
    """An encoder under mteb's `EncoderProtocol`: with its own prompts and its own measure.

    Args:
        encoder: Whatever has `.encode(texts)`.
        name: As mteb calls it.
        progress: Called after each part of the texts.

    Raises:
        ModelError: The model's measure is not known.
        MissingExtraError: mteb is not installed.
    """

    def __init__(self, encoder: TextEncoder, name: str, *, progress: Progress = silent) -> None:
        self.encoder = encoder
        self.progress = progress
        self.mteb_model_meta = require("mteb.models", extra="mteb").ModelMeta.create_empty({"name": name})
        self._measure = MEASURES[measure_of(encoder)]

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        prompt_type: Any = None,
        **_: Any,
    ) -> NDArray[Any]:
        """Vectors (n, out) in float32 of the texts of all batches, after the prompt that fits the task."""
        texts = [text for batch in inputs for text in batch["text"]]
        prompt = self.prompt(task_metadata.name, task_metadata.type, prompt_type and prompt_type.value)
        vectors: NDArray[Any] = encode_prompted(self.encoder, prompt, texts, self.progress).numpy()
        return vectors

    def prompt(self, task: str, kind: str, side: str | None) -> str | None:
        """The model's prompt for a task, else for its kind, else for the side; None is the model's default one.

        mteb's order of names, then the names of sentence-transformers.

        Args:
            task: Whose prompt comes first.
            kind: Of the task, whose prompt comes next.
            side: `query`, `document`, or None for texts that are neither.
        """
        prompts = settings_of(self.encoder).get("prompts") or {}
        for name in (f"{task}-{side}", task, f"{kind}-{side}", kind):
            if name in prompts:
                return prompts[name] or ""  # null is none, as everywhere
        return None if side is None else side_prompt(self.encoder, _SIDES[side])

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """How alike each vector of the one side is to each of the other, (n, m)."""
        return self._measure(torch.as_tensor(embeddings1), torch.as_tensor(embeddings2))

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """How alike the vectors of each row are, (n,)."""
        first, second = torch.as_tensor(embeddings1), torch.as_tensor(embeddings2)
        blocks = (slice(start, start + _BLOCK) for start in range(0, len(first), _BLOCK))
        return torch.cat([self._measure(first[block], second[block]).diagonal() for block in blocks])
