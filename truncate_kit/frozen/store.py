"""Where trials of frozen heads are kept, so that a run that is killed continues and ends with the same result."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from truncate_kit.encoders import LayerHeads
from truncate_kit.encoders.layer_heads import WEIGHTS_FILE, BlockNetworks, read_layer_heads, write_layer_heads
from truncate_kit.errors import ModelError
from truncate_kit.files import replacing
from truncate_kit.frozen.autoencoders import BlockAutoencoders
from truncate_kit.frozen.results import FrozenTrial, Reconstruction
from truncate_kit.frozen.settings import FrozenSettings

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, ModelError)


def settings_key(settings: FrozenSettings, *parts: str) -> str:
    """SHA-256 of all that one trial hangs on, beside its step, number of blocks and seed."""
    values = {k: v for k, v in settings.to_dict().items() if k not in ("layers", "steps", "seeds")}
    return hashlib.sha256("\n".join((json.dumps(values, sort_keys=True), *parts)).encode()).hexdigest()


class HeadStore:
    """One folder per model, data and settings; heads and scores of every finished trial, and the autoencoders.

    A file that cannot be read is made again; `notes` then say so.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder / key[:16]
        self.notes: list[str] = []

    def _path(self, step: str, layer: int, seed: int) -> Path:
        return self.folder / f"{step}-blocks{layer:02d}-seed{seed}"

    def trial(
        self, step: str, layer: int, seed: int, run: Callable[[Path], tuple[FrozenTrial, LayerHeads]]
    ) -> FrozenTrial:
        """The finished trial, else what `run` gives, kept with its heads. `run` gets a file for its checkpoints."""
        place = self._path(step, layer, seed)
        if place.is_dir():
            try:
                found = FrozenTrial.read(place / "trial.json")
                _forget_checkpoints(place)  # a kill after the trial was kept may have left them
                return found
            except _UNREADABLE:
                self.notes.append(f"{place} was damaged: that trial was run again.")
        found, heads = run(place.with_suffix(".checkpoint"))
        self._keep(place, found, heads)
        return found

    def heads(self, trial: FrozenTrial, run: Callable[[Path], tuple[FrozenTrial, LayerHeads]]) -> LayerHeads:
        """The heads of a finished trial; trained again where their weights are damaged or were forgotten."""
        place = self._path(trial.step, trial.layer, trial.seed)
        if (place / WEIGHTS_FILE).exists():
            try:
                return read_layer_heads(place)
            except ModelError:
                self.notes.append(f"{place} was damaged: its heads were trained again.")
        _, heads = run(place.with_suffix(".checkpoint"))
        self._keep(place, trial, heads)
        return heads

    def _keep(self, place: Path, trial: FrozenTrial, heads: LayerHeads) -> None:
        with replacing(place) as target:
            write_layer_heads(target, heads)
            trial.write(target / "trial.json")
        _forget_checkpoints(place)

    def forget_heads(self, keep: FrozenTrial) -> None:
        """Remove the weights of all trials but one; their scores stay."""
        kept = self._path(keep.step, keep.layer, keep.seed)
        for weights in self.folder.glob(f"*-blocks*-seed*/{WEIGHTS_FILE}"):
            if weights.parent != kept:
                weights.unlink(missing_ok=True)

    def autoencoders(
        self,
        width: int,
        code_widths: Sequence[int],
        run: Callable[[Path], tuple[BlockAutoencoders, Reconstruction]],
    ) -> tuple[BlockAutoencoders, Reconstruction]:
        """The finished autoencoders, else what `run` gives, kept. `run` gets a file for its checkpoints."""
        place = self.folder / "autoencoders"
        if place.is_dir():
            try:
                model = BlockAutoencoders(BlockNetworks(width, code_widths))
                model.load_state_dict(load_file(place / "model.safetensors"))
                reconstruction = Reconstruction.read(place / "reconstruction.json")
                _forget_checkpoints(place)
                return model, reconstruction
            except _UNREADABLE:
                self.notes.append(f"{place} was damaged: the autoencoders were trained again.")
        model, reconstruction = run(place.with_suffix(".checkpoint"))
        with replacing(place) as target:
            target.mkdir()
            weights = {name: value.detach().contiguous().cpu() for name, value in model.state_dict().items()}
            save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
            reconstruction.write(target / "reconstruction.json")
        _forget_checkpoints(place)
        return model, reconstruction


def _forget_checkpoints(place: Path) -> None:
    for suffix in (".checkpoint", ".nli"):
        place.with_suffix(suffix).unlink(missing_ok=True)
