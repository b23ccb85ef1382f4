"""Which layers can be in int8: as many as the score allows, tried on pairs that are not the ones reported on."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from truncate_kit.data import PairSet
from truncate_kit.errors import DataError, failed_check
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.export.calibrating import calibrate
from truncate_kit.export.export_report import FloatLayer, Quantization
from truncate_kit.export.graph_files import save_graph
from truncate_kit.export.quantizing import Quantizable, quantizable, quantize
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.hardware import int8_instructions, multiplies_narrow
from truncate_kit.models import LayerHeads
from truncate_kit.models.tokenizer import TextReader, padded
from truncate_kit.progress import Progress, silent
from truncate_kit.wording import in_points

_HARM_TEXTS = 128


class Trials:
    """Scores of one float graph with some of its layers in int8. heads: what scores its vectors, None for cosines."""

    def __init__(
        self,
        model: Any,
        reader: TextReader,
        pairs: PairSet,
        scratch: Path,
        *,
        narrow: bool,
        heads: LayerHeads | None = None,
    ) -> None:
        self.model, self.reader, self.pairs, self.scratch, self.narrow = model, reader, pairs, scratch, narrow
        self.heads = heads
        self.layers = quantizable(model)
        self.base = evaluate(self._open(model), pairs.pairs).spearman
        texts = pairs.texts()
        self._texts = texts[:: max(1, len(texts) // _HARM_TEXTS)][:_HARM_TEXTS]
        self._expected = self._vectors(model)
        ids = reader.token_ids(self._texts)
        self._roundings = calibrate(model, [padded([row], reader.padding_id) for row in ids])

    def quantized(self, keep: Sequence[Quantizable]) -> Any:
        """The graph with all layers in int8 but those in `keep`."""
        kept = {layer.node for layer in keep}
        return quantize(self.model, keep=kept, reduce_range=self.narrow, roundings=self._roundings)

    def drop(self, keep: Sequence[Quantizable]) -> float:
        """Spearman points lost against the float graph; infinite where the score is not defined any more."""
        try:
            return self.base - evaluate(self._open(self.quantized(keep)), self.pairs.pairs).spearman
        except DataError:
            return math.inf

    def harm(self, layer: Quantizable) -> float:
        """Mean squared distance between unit vectors when only `layer` is in int8."""
        found = self._vectors(self.quantized([other for other in self.layers if other != layer]))
        harm = float((found - self._expected).square().sum(dim=1).mean())
        return harm if math.isfinite(harm) else math.inf

    def _open(self, model: Any) -> OnnxEncoder:
        folder = self.scratch / "trial"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        save_graph(model, folder / "model.onnx")
        return OnnxEncoder(folder / "model.onnx", self.reader, heads=self.heads)

    def _vectors(self, model: Any) -> Tensor:
        return torch.nn.functional.normalize(self._open(model).vectors(self._texts), dim=1)


def search_layers(
    model: Any,
    reader: TextReader,
    pairs: PairSet,
    scratch: Path,
    *,
    budget: float,
    heads: LayerHeads | None = None,
    progress: Progress = silent,
) -> tuple[Any, Quantization]:
    """Put as much of a float graph into int8 as costs at most `budget` Spearman points on `pairs`.

    Args:
        model: The float graph.
        reader: Its tokenizer.
        pairs: On which it is scored.
        scratch: Folder for graphs that are tried.
        budget: In points (× 100).
        heads: What scores the graph's vectors, None for their cosines.
        progress: Called as the work goes on.

    Returns:
        The graph and how it was found.

    Raises:
        ModelError: No layer can be in int8.
    """
    narrow = multiplies_narrow()
    trials = Trials(model, reader, pairs, scratch, narrow=narrow, heads=heads)
    everything = trials.drop(())
    kept, drop = list[tuple[Quantizable, float]](), everything
    if everything > budget:  # layers go back to float, the most harmful per weight first, as few as suffice
        ranked = _ranked(trials, progress)
        count, drop = _fewest(lambda number: trials.drop([layer for layer, _ in ranked[:number]]), len(ranked), budget)
        kept = ranked[:count]
    if len(kept) == len(trials.layers):
        raise failed_check(f"no layer can be in int8 within {in_points(budget)} on {pairs.name}")
    shown = "an undefined score" if math.isinf(everything) else f"{everything:.2f} points"
    return trials.quantized([layer for layer, _ in kept]), Quantization(
        layers=len(trials.layers),
        in_float=tuple(FloatLayer(layer=row.layer, harm=harm if math.isfinite(harm) else None) for row, harm in kept),
        weight_bits=7 if narrow else 8,
        instructions=int8_instructions(),
        budget=budget,
        searched_on=pairs.name,
        num_pairs=len(pairs),
        drop_all_int8=None if math.isinf(everything) else everything,
        drop=drop,
        why=f"All layers in int8 cost {shown} on {pairs.name}, where {budget:g} are allowed"
        + (f"; with {len(kept)} in float {drop:.2f}." if kept else "; none had to stay in float."),
    )


def _ranked(trials: Trials, progress: Progress) -> list[tuple[Quantizable, float]]:
    """Layers with their harm, that with the most harm per weight first: it gives most back for what it costs."""
    found = []
    for done, layer in enumerate(trials.layers, start=1):
        found.append((layer, trials.harm(layer)))
        progress("Trying each layer in int8", done, len(trials.layers))
    return sorted(found, key=lambda item: -item[1] / item[0].size)


def _fewest(drop_with: Callable[[int], float], most: int, budget: float) -> tuple[int, float]:
    """The smallest number of layers in float found by bisection to keep the budget, and what is lost with it."""
    low, high, best = 0, most, 0.0  # with none it is too much, with all of them nothing is lost
    while high - low > 1:
        middle = (low + high) // 2
        drop = drop_with(middle)
        if drop <= budget:
            high, best = middle, drop
        else:
            low = middle
    return high, best
