"""What a model has before queries and before documents, as sentence-transformers puts it there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor

from truncate_kit.encoding import encode_distinct
from truncate_kit.evaluation.graded import TextEncoder
from truncate_kit.models import Encoder
from truncate_kit.progress import Progress
from truncate_kit.vectors import Rows

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of a model's prompts for each side, as in sentence-transformers.

That takes the first one that is there, also where it is empty, and writes an empty "document" into every folder that it
saves; here empty ones are passed over, so that a model with a prompt for passages gets it.
"""


def prompted_ids(encoder: Encoder, texts: Sequence[str], prompt: str | None) -> list[list[int]]:
    """Token ids of the texts after this prompt, None for the model's default one."""
    if prompt is None:
        return encoder.token_ids(texts)
    return encoder.token_ids([prompt + text for text in texts], prompt=False)


class _TakesPrompts(Protocol):
    def encode(self, texts: Sequence[str], *, prompt: bool) -> Rows: ...


@dataclass(frozen=True, slots=True)
class _Prompted:
    """An encoder with this prompt before each text, instead of its default one."""

    encoder: _TakesPrompts
    prompt: str

    def encode(self, texts: Sequence[str]) -> Rows:
        return self.encoder.encode([self.prompt + text for text in texts], prompt=False)


def encode_prompted(encoder: TextEncoder, prompt: str | None, texts: Sequence[str], progress: Progress) -> Tensor:
    """Vectors of the texts after this prompt, None for the model's default one; each distinct text is encoded once."""
    used = encoder if prompt is None else _Prompted(cast(_TakesPrompts, encoder), prompt)
    distinct = list(dict.fromkeys(texts))
    place = {text: index for index, text in enumerate(distinct)}
    return encode_distinct(used, distinct, progress)[[place[text] for text in texts]]


def encode_sides(
    encoder: TextEncoder, queries: Sequence[str], documents: Sequence[str], progress: Progress
) -> tuple[Tensor, Tensor]:
    """Vectors of queries and of documents, each after the model's prompt for its side; each text is encoded once."""
    asked, searched = (side_prompt(encoder, names) for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS))
    if asked == searched:
        both = encode_prompted(encoder, asked, (*queries, *documents), progress)
        return both[: len(queries)], both[len(queries) :]
    return encode_prompted(encoder, asked, queries, progress), encode_prompted(encoder, searched, documents, progress)


def side_prompt(encoder: TextEncoder, names: Sequence[str]) -> str | None:
    """The prompt with the first of these names that is not empty, else ""; None for a model without any prompts."""
    prompts = settings_of(encoder).get("prompts") or {}
    return next((prompts[name] for name in names if prompts.get(name)), "") if prompts else None


def settings_of(encoder: TextEncoder) -> Mapping[str, Any]:
    """The sentence-transformers settings of an encoder, in torch or as a graph; none of anything else."""
    settings: Mapping[str, Any] = getattr(getattr(encoder, "reader", None), "settings", {})
    return settings
