"""Where trials run and texts are encoded: options that several commands share."""

from typing import TYPE_CHECKING, Annotated

import typer

from truncate_kit.errors import UsageError

if TYPE_CHECKING:
    from truncate_kit.engines import Engine

ENGINES = ("local", "ray")
EngineOpt = Annotated[
    str, typer.Option("--engine", help="Where the work is done: local (this machine) or ray (a Ray cluster).")
]
WorkersOpt = Annotated[
    int | None,
    typer.Option("--workers", help="Processes on this machine that share the work; with --device cuda each has a GPU."),
]
RayAddressOpt = Annotated[
    str | None,
    typer.Option("--ray-address", help="HOST:PORT of the cluster's head; by default the cluster of this machine."),
]
GpusOpt = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", help="Ray: such as 1 or 0.5; by default 1 with --device cuda, else none."),
]


def shares_work(engine: str, workers: int | None, address: str | None, gpus: float | None) -> bool:
    """Whether work goes to other processes or machines. Raises `UsageError` for options that do not go together."""
    if engine not in ENGINES:
        raise UsageError(f"There is no engine {engine!r}.", hint=f"Use one of: {', '.join(ENGINES)}.")
    if engine == "ray" and workers is not None:
        raise UsageError(
            "--workers counts processes of this machine; how many a cluster runs at once is its own affair.",
            hint="Leave out --workers, or say what each of them needs: --threads, --gpus-per-worker.",
        )
    for option, value in (("--ray-address", address), ("--gpus-per-worker", gpus)):
        if engine != "ray" and value is not None:
            raise UsageError(f"{option} goes with --engine ray only.", hint=f"Add --engine ray, or leave out {option}.")
    return engine == "ray" or workers is not None


def check_alone(sharing: bool, why: str) -> None:
    """Raise `UsageError` where trials are to be shared out and there are none. why: what runs instead, in words."""
    if sharing:
        raise UsageError(
            f"--engine and --workers share out the trials of TMFT; {why}.", hint="Leave out --engine and --workers."
        )


def open_engine(
    engine: str,
    workers: int | None,
    address: str | None,
    gpus: float | None,
    *,
    device: str | None,
    threads: int | None,
) -> "Engine":
    """The engine that these options ask for, to be used in a `with` block; what is not there is said on entering it.

    threads: CPU threads of each worker on a cluster, of all together on this machine.
    """
    from truncate_kit.engines import Processes, RayCluster, Sequential

    shares_work(engine, workers, address, gpus)  # refuses what does not go together
    if engine == "ray":
        needed = float(device is not None and device.startswith("cuda")) if gpus is None else gpus
        return RayCluster(address or "auto", gpus=needed, cpus=threads or 1)
    return Sequential() if workers is None else Processes(workers, device=device)
