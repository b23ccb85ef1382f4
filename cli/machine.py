"""Where work runs: the options of the commands that share it out, and the engine that they ask for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.errors import UsageError, known_name

from .live_progress import watching
from .options import refuse

if TYPE_CHECKING:
    from truncate_kit.parallel import Engine
    from truncate_kit.progress import TrialWatcher

ENGINES = ("local", "ray")


@dataclass(frozen=True, slots=True)
class Machine:
    """The options that say where work runs. Raises `UsageError` for some that do not go together.

    threads: CPU threads of each worker on a cluster, of all together on this machine.
    """

    engine: str
    workers: int | None
    ray_address: str | None
    gpus_per_worker: float | None
    device: str | None
    threads: int | None

    def __post_init__(self) -> None:
        """Refuse what would be ignored."""
        known_name("engine", self.engine, ENGINES)
        if self.engine == "local":
            refuse("--engine ray", ray_address=self.ray_address, gpus_per_worker=self.gpus_per_worker)
        elif self.workers is not None:
            raise UsageError(
                "--workers counts processes of this machine; a cluster itself decides how many run at once.",
                hint="Leave out --workers, or say what each of them needs: --threads, --gpus-per-worker.",
            )
        if self._on_cuda and self.gpus_per_worker == 0:
            raise UsageError(
                f"--gpus-per-worker 0 leaves nothing of --device {self.device}.", hint="Leave out one of them."
            )

    @property
    def _on_cuda(self) -> bool:
        return self.device is not None and self.device.startswith("cuda")

    def open(self) -> "Engine":
        """The engine, to be used in a `with` block; what is not there is said on entering it."""
        from truncate_kit.parallel import Processes, RayCluster, Sequential

        if self.engine == "ray":
            gpus = float(self._on_cuda) if self.gpus_per_worker is None else self.gpus_per_worker
            return RayCluster(self.ray_address or "auto", gpus=gpus, cpus=self.threads or 1)
        return Sequential() if self.workers is None else Processes(self.workers, device=self.device)

    @contextmanager
    def at_work(self, folder: Path, *, tensorboard: bool, quiet: bool) -> "Iterator[tuple[Engine, TrialWatcher]]":
        """The engine while trials run, and what shows them; logs for TensorBoard go to `folder`."""
        with self.open() as engine, watching(folder, tensorboard=tensorboard, quiet=quiet) as watcher:
            yield engine, watcher
