"""Cutting without training: a saved folder with its card."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.results import Result

if TYPE_CHECKING:
    from truncate_kit.encoders import Encoder


CUT_FILE = "cut.json"
"""In the folder of a model that was cut and not trained: what it was cut from; it goes where its model goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResult(Result):
    """A cut."""

    model: str
    layer: int  # where; its last layer now
    depth: int  # number of the model's last layer
    parameters: int  # kept, pooler excluded
    full_parameters: int  # of the whole model, likewise

    @property
    def sentence(self) -> str:
        """What was kept."""
        return (
            f"Layer {self.layer} of {self.depth}, not trained: {self.parameters:,} of {self.full_parameters:,} "
            "parameters are kept."
        )


def cut(encoder: "Encoder", layer: int, *, out: Path) -> CutResult:
    """Save `encoder` truncated at `layer` as `out`/lean, with a card.

    Raises `LayerOutOfRangeError`, `LayerNotHeldError`, `FileProblemError`; `UsageError` where `encoder` comes from
    there.
    """
    from truncate_kit.encoders import save_encoder, truncate
    from truncate_kit.runs.card import ModelCard
    from truncate_kit.runs.output import output_folder

    out, lean = Path(out), truncate(encoder, layer)
    result = CutResult(
        model=encoder.name,
        layer=layer,
        depth=encoder.depth,
        parameters=lean.num_parameters,
        full_parameters=encoder.num_parameters,
    )
    card = ModelCard(
        base_model=result.model,
        title=f"{result.model}, truncated at layer {layer}",
        summary=f"A sentence encoder that keeps the first {layer} of {result.depth} layers, as they were trained.",
        facts=(("Layer", f"{layer} of {result.depth}"), ("Training", f"None. {result.sentence}")),
        tags=("truncated",),
    )
    with output_folder(out, encoder, "lean"):
        save_encoder(lean, out / "lean", model_card=card.text(lean))
        result.write(out / "lean" / CUT_FILE)
    return result
