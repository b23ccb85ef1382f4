"""Where trials are kept, so that a sweep that is killed continues and ends with the same result."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from truncate_kit.encoders import Encoder, load_encoder, save_encoder
from truncate_kit.errors import FileProblemError
from truncate_kit.files import remove_leftovers, replacing, run_lock, write_json
from truncate_kit.sweep.ranking import RankingOrder, Scores
from truncate_kit.sweep.results import Trial


def fingerprint(encoder: Encoder, *parts: str) -> str:
    """SHA-256 over weights, pooling, length and `parts`: equal exactly when the same trials would come out."""
    pooling = (encoder.pooling_name, *encoder.pooling_details[1:])
    digest = hashlib.sha256("\n".join((*pooling, str(encoder.max_length), *parts)).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _json(stopped_after: int | None) -> str:
    return ".json" if stopped_after is None else f"-first{stopped_after}.json"


class TrialStore:
    """One folder per combination of model, data and training settings; one JSON file per finished trial.

    Weights are kept only of trials that ask for it. Each file is written under a temporary name and renamed.
    """

    def __init__(self, folder: Path, key: str, description: dict[str, Any]) -> None:
        self.folder = Path(folder).absolute() / key[:16]  # workers may stand elsewhere
        self._description = description

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the folder, and tidy up what a killed process left there.

        Raises `RunInUseError` when another process holds it, `CannotWriteError`.
        """
        with run_lock(self.folder):
            remove_leftovers(self.folder)
            for checkpoint in self.folder.glob("*.checkpoint"):  # killed between the end of a trial and its removal
                if checkpoint.with_suffix(".json").exists():
                    prior = checkpoint.with_name(f"{checkpoint.stem.rpartition('-epochs')[0]}-epochs0.checkpoint")
                    prior.unlink(missing_ok=True)
                    checkpoint.unlink()
            if not (self.folder / "settings.json").exists():
                write_json(self.folder / "settings.json", self._description)
            yield

    def _path(self, layer: int, seed: int, epochs: int, suffix: str) -> Path:
        return self.folder / f"layer{layer:02d}-seed{seed}-epochs{epochs}{suffix}"

    def checkpoint(self, layer: int, seed: int, epochs: int) -> Path:
        """File for a running trial's state between epochs."""
        return self._path(layer, seed, epochs, ".checkpoint")

    def read(self, layer: int, seed: int, epochs: int, stop_after: int | None = None) -> Trial | None:
        """The finished trial, None where there is none. Raises `FileProblemError` when its file is damaged.

        stop_after: what its first epochs gave, also where it was stopped there.
        """
        if stop_after is not None:
            whole = self.read(layer, seed, epochs)
            if whole is not None:
                return whole.first(stop_after)
        path = self._path(layer, seed, epochs, _json(stop_after))
        if not path.exists():
            return None
        try:
            return Trial.read(path)
        except (OSError, KeyError, json.JSONDecodeError) as error:
            raise FileProblemError(
                f"{path} cannot be read: {error}.", hint="Delete it to run this trial again."
            ) from error

    def ranking(self, order: RankingOrder) -> Scores | None:
        """The score of each layer, None where the ranking is not there or has other layers."""
        try:
            scores = json.loads(self._ranking(order).read_text(encoding="utf-8"))["scores"]
            stored = {int(layer): float(score) for layer, score in scores.items()}
        except (OSError, ValueError, KeyError):
            return None
        return stored if set(stored) == set(order.layers) else None

    def write_ranking(self, order: RankingOrder, scores: Scores) -> None:
        """Keep a ranking."""
        write_json(self._ranking(order), {"scores": scores})

    def _ranking(self, order: RankingOrder) -> Path:
        return self.folder / f"{order.name}-seed{order.seed}.json"

    def has_trials(self, name: str, layers: Sequence[int]) -> bool:
        """Whether the file of that name holds one trial for each of `layers`."""
        return [trial.layer for trial in self._read_trials(name)] == list(layers)

    def trials(self, name: str, layers: Sequence[int], compute: Callable[[], tuple[Trial, ...]]) -> tuple[Trial, ...]:
        """One trial for each of `layers`, from the file of that name where it holds them all, else computed."""
        if self.has_trials(name, layers):
            return self._read_trials(name)
        computed = compute()
        write_json(self.folder / f"{name}.json", {"trials": [trial.to_dict() for trial in computed]})
        return computed

    def _read_trials(self, name: str) -> tuple[Trial, ...]:
        try:
            values = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            return tuple(Trial.from_dict(trial) for trial in values["trials"])
        except (OSError, ValueError, KeyError):
            return ()

    def read_tensor(self, name: str) -> Tensor | None:
        """The tensor of that name, None where there is none. Raises `FileProblemError` when its file is damaged."""
        path = self._tensor_path(name)
        if not path.exists():
            return None
        try:
            return load_file(path)[name]
        except (OSError, KeyError, SafetensorError) as error:
            raise FileProblemError(f"{path} cannot be read: {error}.", hint="Delete it to compute it again.") from error

    def tensor(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """The tensor of that name, from its file where there is one, else computed and kept; raises likewise."""
        found = self.read_tensor(name)
        if found is None:
            found = compute()
            with replacing(self._tensor_path(name)) as target:
                save_file({name: found.contiguous()}, target)
        return found

    def _tensor_path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def write(self, trial: Trial, encoder: Encoder | None) -> None:
        """Keep a finished trial, its weights first, and remove its checkpoints; those of a stopped one wait.

        A trial that was run again for its weights keeps its first record.
        """
        if encoder is not None:
            save_encoder(encoder, self._path(trial.layer, trial.seed, trial.epochs, ""))
        record = self._path(trial.layer, trial.seed, trial.epochs, _json(trial.stopped_after))
        if not record.exists():
            trial.write(record)
        if trial.stopped_after is None:
            self.remove_checkpoints(trial.layer, trial.seed, trial.epochs)

    def remove_checkpoints(self, layer: int, seed: int, epochs: int) -> None:
        """Of a trial that is finished or given up, and of its prior."""
        for of in (0, epochs):  # a kill in between leaves the one that `open` looks for
            checkpoint = self.checkpoint(layer, seed, of)
            checkpoint.unlink(missing_ok=True)
            remove_leftovers(self.folder, checkpoint.name)  # of a worker that was lost while it wrote

    def has_weights(self, layer: int, seed: int, epochs: int) -> bool:
        """Whether the weights of a finished trial are kept."""
        return self._path(layer, seed, epochs, "").is_dir()

    def encoder(self, trial: Trial, device: torch.device) -> Encoder:
        """The trained encoder of a trial whose weights are kept."""
        return load_encoder(self._path(trial.layer, trial.seed, trial.epochs, ""), device=str(device))

    def forget_weights(self, keep: set[tuple[int, int]]) -> None:
        """Remove the weights of all trials but those of the given (layer, seed)."""
        for folder in self.folder.glob("layer*-epochs*"):
            if folder.is_dir():
                layer, seed = (
                    int(part[5:] if part.startswith("layer") else part[4:]) for part in folder.name.split("-")[:2]
                )
                if (layer, seed) not in keep:
                    shutil.rmtree(folder)
