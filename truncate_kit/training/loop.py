"""Train with AdamW, keep the weights best on dev, resume after an interruption; run faster on CPUs.

Several processes can train one model: each encodes its share of a batch, and every process gets all vectors.
"""

import contextlib
import hashlib
import math
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from truncate_kit.core.errors import DivergedError, FileProblemError, TruncateKitError
from truncate_kit.core.files import replacing
from truncate_kit.core.hardware import (
    give_back,
    has_avx512,
    is_out_of_memory,
    processor_maker,
    say_halved,
    select_device,
    without_autocast,
)
from truncate_kit.core.progress import Progress, silent
from truncate_kit.core.results import FORMAT
from truncate_kit.models.encoder import Encoder
from truncate_kit.training.settings import TrainingSettings, rate_at

Item = TypeVar("Item")
Ids = list[int]
Scores = tuple[float, float | None]  # main score and Pearson, × 100

BUCKET_BATCHES = 24  # batches sorted by length together: little padding, still random
CHECK_EVERY = 32  # steps between checks for finite gradients; each check waits for the GPU
CHECKPOINT_SECONDS = 30.0  # between checkpoints within an epoch

SEED_STRIDE = 1_000_003  # offset between processes, so that dropout differs


class Group:
    """Processes that train together; this one is number `rank` of `size`. One process does not communicate."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def leads(self) -> bool:
        """Return whether this process writes files and reports."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """Return this process's items: every `size`-th."""
        return list(items[self.rank :: self.size])

    def gather(self, own: Tensor, total: int) -> Tensor:
        """Join the shares of all processes: (c, share, d) to (c, total, d)."""
        if self.size == 1:
            return own
        sizes = [len(range(rank, total, self.size)) for rank in range(self.size)]
        padded = nn.functional.pad(own.detach(), (0, 0, 0, max(sizes) - own.shape[1])).contiguous()
        shares = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(shares, padded)
        cut: list[Tensor] = [share[:, :size] for share, size in zip(shares, sizes, strict=True)]
        # Each process gets gradients for its share of the whole loss; `sum_gradients` adds them up.
        cut[self.rank] = own
        return torch.cat(cut, dim=1)

    def sum_gradients(self, module: nn.Module) -> None:
        """Sum gradients over the processes; missing gradients count as 0."""
        if self.size == 1:
            return
        for parameter in module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                distributed.all_reduce(parameter.grad)

    def agree(self, value: Item) -> Item:
        """Return the leader's value on all processes."""
        return self.collect(value)[0]

    def collect(self, value: Item) -> list[Item]:
        """Return all processes' values, by rank."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        distributed.all_gather_object(box, value)
        return box


ALONE = Group()

PATIENCE = timedelta(days=7)
"""Timeout for other processes: the leader may compute alone for hours."""


class Examples:
    """Training examples: columns of texts as token ids."""

    head: nn.Module | None = None  # trained with the encoder
    separable = False  # True if the loss is a mean over examples
    _columns: tuple[list[Ids], ...] = ()

    def __init__(self, *columns: list[Ids]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def lengths(self) -> list[int]:
        """Count the tokens of each example's longest text."""
        return [max(map(len, row)) for row in zip(*self._columns, strict=True)]

    def texts(self) -> Sequence[Ids]:
        """Return the token ids of all texts, by column; if empty, the vocabulary is not compacted."""
        return [ids for column in self._columns for ids in column]

    def ids(self, batch: Sequence[int]) -> list[Ids]:
        """Return these rows' token ids, by column."""
        return [column[place] for column in self._columns for place in batch]

    def loss(self, encoder: Encoder, batch: Sequence[int]) -> Tensor:
        """Return the loss of a batch, 0-d."""
        raise NotImplementedError


class Evaluator:
    """Scorer on held-out data, × 100; higher is better. Most subclasses need only vectors."""

    _ids: Sequence[Ids] = ()

    def texts(self) -> Sequence[Ids]:
        """Return all token ids."""
        return self._ids

    def score(self, encoder: Encoder) -> Scores:
        """Return the main score, and Pearson if defined."""
        return self.score_of(encoder.encode_ids(self._ids))

    def score_of(self, vectors: Tensor) -> Scores:
        """Score vectors (n, d) of `texts()`."""
        raise NotImplementedError

    def resampled(self, vectors: Tensor) -> tuple[float, ...]:
        """Score `DRAWS` bootstrap resamples, the same for every encoder, if there are labels."""
        return ()

    def interval_of(self, vectors: Tensor) -> tuple[float, float] | None:
        """Return the bootstrap 95 % interval, if any."""
        return None

    def fewer(self, encoder: Encoder, number: int, tokens: int) -> Self:
        """Return an evaluator on a fixed random sample.

        Args:
            encoder: The full model, the reference without labels.
            number: Approximate number of texts.
            tokens: Maximum per text.
        """
        raise NotImplementedError


class TrainingRun:
    """One training run in stages (epochs, or `evaluate_every` steps); keeps the best weights on dev.

    Attributes:
        scores: Dev scores by stage.
        best_stage: Index of the best stage; -1 before the first.
        decay: Product of weight decay factors, for unused embeddings.
        best_decay: `decay` at the end of the best stage.
        seconds: Time of training and evaluation.
    """

    dropout = True
    bucket_batches = BUCKET_BATCHES
    kept = ("scores", "best_stage", "decay", "best_decay", "seconds")  # stored in checkpoints

    def __init__(
        self,
        encoder: Encoder,
        examples: Examples,
        evaluator: Evaluator,
        settings: TrainingSettings,
        *,
        seed: int,
        evaluate_every: int | None = None,
        micro_batch: int | None = None,
        group: Group = ALONE,
    ) -> None:
        """Prepare the encoder and seed all randomness.

        Args:
            encoder: Trained in place, with any head.
            examples: Training examples.
            evaluator: Scores each stage on dev.
            settings: Training settings.
            seed: For order and dropout.
            evaluate_every: Steps per stage, by default an epoch.
            micro_batch: Examples per forward pass, by default all.
            group: Processes that share every batch.
        """
        torch.manual_seed(seed + SEED_STRIDE * group.rank)
        texts, self._expand = examples.texts(), None
        if settings.compact_vocabulary and texts:
            self._expand = compact_vocabulary(encoder, [*texts, *evaluator.texts()])
        self.encoder, self.examples, self.evaluator = encoder, examples, evaluator
        self.settings, self.seed, self.group = settings, seed, group
        self.micro_batch = micro_batch or settings.batch_size
        self.rate = settings.rate(encoder.width)
        self.steps = -(-len(examples) // settings.batch_size)
        self.total = settings.epochs * self.steps
        self.interval = evaluate_every or self.steps
        self.stages = -(-self.total // self.interval)
        self.lengths = examples.lengths() if settings.buckets else ()
        # Parameter names are the same with and without a head.
        self.trained = nn.ModuleDict({"encoder": encoder} | ({"head": examples.head} if examples.head else {}))
        self.optimiser = adamw(self.trained, rate=self.rate, weight_decay=settings.weight_decay)
        self.scores: list[float] = []
        self.best: dict[str, Tensor] = {}
        self.best_stage, self.decay, self.best_decay, self.seconds = -1, 1.0, 1.0, 0.0
        self._cut: tuple[int, list[list[int]]] = (-1, [])  # last epoch and its batches

    @property
    def stage(self) -> int:
        """Count the finished stages."""
        return len(self.scores)

    def train(
        self,
        *,
        checkpoint: Path | None = None,
        stop_after: int | None = None,
        progress: Progress = silent,
        task: str = "training",
        stage_done: Callable[[int, float, float], None] | None = None,
    ) -> Self:
        """Train to the end, load the best weights, and return the run.

        Args:
            checkpoint: File to save to and resume from, reaching the same weights; the caller removes the file.
            stop_after: Stop after this many stages, on the learning rate schedule of the whole run.
            progress: Called after each step.
            task: First argument of `progress`.
            stage_done: Called with finished stages, mean loss and dev score.

        Raises:
            DivergedError: A gradient is not finite.
            FileProblemError: The checkpoint cannot be written or resumed.
        """
        if checkpoint is not None and self.group.agree(checkpoint.exists()):
            self.restore(checkpoint)
            self.group.agree(None)  # before this, none removes it
        stored, last = time.monotonic(), min(self.stages, stop_after or self.stages)
        while self.stage < last and not self.is_settled():
            loss = self.train_stage(progress, task, min(last * self.interval, self.total))
            if stage_done is not None:
                stage_done(self.stage, loss, self.scores[-1])
            done = min(self.stage * self.interval, self.total)  # steps
            ends_epoch = done // self.steps > (self.stage - 1) * self.interval // self.steps
            waited = self.stage == stop_after or time.monotonic() - stored >= CHECKPOINT_SECONDS
            if checkpoint is not None and (ends_epoch or self.group.agree(waited)):
                self.store(checkpoint)
                stored = time.monotonic()
        self.trained.load_state_dict(self.best)
        if self._expand is not None:
            self._expand(self.best_decay)
        self.trained.eval()
        return self

    def is_settled(self) -> bool:
        """Return whether to stop early."""
        return False

    def train_stage(self, progress: Progress = silent, task: str = "training", total: int | None = None) -> float:
        """Train for one stage, score on dev, and keep the weights if best; return the mean loss.

        total: Steps that `progress` counts to, by default of the whole run.
        """
        start = time.perf_counter()
        settings = self.settings
        losses = torch.zeros((), device=self.encoder.device)  # read once per stage, to avoid GPU synchronisation
        norms: list[Tensor] = []
        self.trained.train(self.dropout)
        first = self.stage * self.interval
        steps = range(first, min(first + self.interval, self.total))
        for step in steps:
            epoch, place = divmod(step, self.steps)
            rate = self.rate * rate_at(step, self.total, settings.warmup)
            for parameters in self.optimiser.param_groups:
                parameters["lr"] = rate
            losses += self.backward(self.batches(epoch)[place])
            self.group.sum_gradients(self.trained)
            norms.append(nn.utils.clip_grad_norm_(self.trained.parameters(), settings.max_gradient_norm))
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
            self.decay *= 1 - rate * settings.weight_decay
            progress(task, step + 1, total or self.total)
            if len(norms) == CHECK_EVERY or step == steps[-1]:
                finite = torch.isfinite(torch.stack(norms))
                if not finite.all():
                    epoch, place = divmod(step + 1 - len(norms) + int(finite.int().argmin()), self.steps)
                    raise DivergedError(
                        f"Training diverged in epoch {epoch + 1}, step {place + 1}, at learning rate {self.rate:g}.",
                        hint='Use a smaller `learning_rate`, or `precision="fp32"`.',
                    )
                norms.clear()
        with precision(self.encoder.device, settings.precision):
            score = self.group.agree(self.evaluator.score(self.encoder)[0])
        self.scores.append(score)
        if self.best_stage < 0 or score > self.scores[self.best_stage]:
            self.best_stage, self.best_decay = self.stage - 1, self.decay
            self.best = self._copied()
        self.seconds += time.perf_counter() - start
        return float(losses) / len(steps)

    def _copied(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.trained.state_dict().items()}

    def backward(self, batch: Sequence[int]) -> Tensor:
        """Compute a batch's gradients, in smaller parts if memory runs out; return the batch's loss (0-d)."""
        while True:
            try:
                return self._add_parts(batch)
            except Exception as error:
                size = min(self.micro_batch, len(batch))
                if size < 2 or not (self.examples.separable and self.group.size == 1 and is_out_of_memory(error)):
                    raise
            self.optimiser.zero_grad(set_to_none=True)
            self.micro_batch = (size + 1) // 2
            give_back()
            say_halved(size, self.micro_batch)

    def _add_parts(self, batch: Sequence[int]) -> Tensor:
        whole = torch.zeros((), device=self.encoder.device)
        for start in range(0, len(batch), self.micro_batch):
            part = batch[start : start + self.micro_batch]
            with precision(self.encoder.device, self.settings.precision):
                loss = self.examples.loss(self.encoder, part)
            if len(part) < len(batch):
                loss = loss * (len(part) / len(batch))
            whole += loss.detach()
            loss.backward()
        return whole

    def batches(self, epoch: int) -> list[list[int]]:
        """Draw an epoch's batches from seed and epoch alone, so that resumed runs agree."""
        if self._cut[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed * 1009 + epoch)
            order = torch.randperm(len(self.examples), generator=generator).tolist()
            stretch = self.bucket_batches if self.settings.buckets else None
            self._cut = epoch, bucketed(order, self.lengths, self.settings.batch_size, stretch)
        return self._cut[1]

    def store(self, path: Path) -> None:
        """Write the run's state and all processes' random states."""
        on_cuda = self.encoder.device.type == "cuda"
        random = self.group.collect(torch.get_rng_state())
        cuda_random = self.group.collect(torch.cuda.get_rng_state(self.encoder.device)) if on_cuda else []
        if not self.group.leads:
            return
        best = None if self.best_stage == self.stage - 1 else self.best
        values: dict[str, Any] = {"best": best, "random": random, "cuda_random": cuda_random}
        values["state"] = {name: getattr(self, name) for name in self.kept}
        values |= {"weights": self.trained.state_dict(), "optimiser": self.optimiser.state_dict()}
        write_checkpoint(path, values)

    def restore(self, path: Path) -> None:
        """Load a checkpoint. Raises `FileProblemError`."""
        values = read_checkpoint(path, self.encoder.device)
        try:
            for name in self.kept:
                setattr(self, name, values["state"][name])
            self.trained.load_state_dict(values["weights"])
            self.best = self._copied() if values["best"] is None else values["best"]
            self.optimiser.load_state_dict(values["optimiser"])
            torch.set_rng_state(values["random"][self.group.rank].cpu())
            if values["cuda_random"]:
                torch.cuda.set_rng_state(values["cuda_random"][self.group.rank].cpu(), self.encoder.device)
        except (RuntimeError, KeyError, IndexError, TypeError, ValueError) as error:  # from another run
            raise unusable(path) from error


def adamw(trained: nn.Module, *, rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW without weight decay on biases and norms."""
    decayed = [parameter for parameter in trained.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in trained.parameters() if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, fused=True)


@contextlib.contextmanager
def precision(device: torch.device, name: str) -> Iterator[None]:
    """Autocast to bfloat16 for `bf16`, and use `FasterOnCPU` on the CPU."""
    with contextlib.ExitStack() as stack:
        if name == "bf16":
            # torch caches bfloat16 weights until the outermost block ends.
            stack.callback(torch.clear_autocast_cache)
            stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        if device.type == "cpu":
            stack.enter_context(FasterOnCPU())
        yield


def bucketed(
    order: Sequence[int], lengths: Sequence[int], batch_size: int, together: int | None = BUCKET_BATCHES
) -> list[list[int]]:
    """Batch texts of similar length: sort each `together` batches of a random order by length."""
    if together is None:
        return [list(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]
    batches = []
    stretch = batch_size * together
    for start in range(0, len(order), stretch):
        part = list(order[start : start + stretch])
        places = sorted(part, key=lambda place: lengths[place])
        cut = [places[begin : begin + batch_size] for begin in range(0, len(places), batch_size)]
        # Order the batches by their earliest example, which is random, too.
        first_seen = {place: seen for seen, place in enumerate(part)}
        batches += sorted(cut, key=lambda batch: first_seen[batch[0]])
    return batches


_DIGEST = hashlib.sha256().digest_size  # bytes at the end of a checkpoint


def write_checkpoint(path: Path, values: dict[str, Any]) -> None:
    """Write values, and append the file's SHA-256."""
    with replacing(path) as target:
        with target.open("wb") as handle:
            torch.save(values | {"format": FORMAT, "run": _run(path)}, handle)
        with target.open("r+b") as handle:
            handle.write(hashlib.file_digest(handle, "sha256").digest())


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint without unpickling code. Raises `FileProblemError`."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as whole, memoryview(whole) as content:
            if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
                raise unusable(path)
        values: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:  # an empty file cannot be mapped
        raise unusable(path) from error
    if values.get("format") != FORMAT or values.get("run") != _run(path):
        raise unusable(path)
    return values


def unusable(path: Path) -> FileProblemError:
    """Return the error for an unusable checkpoint."""
    return FileProblemError(
        f"{path} is damaged, or comes from another run or another version.", hint="Delete it to start this trial again."
    )


def _run(path: Path) -> str:
    return f"{path.absolute().parent.name}/{path.name}"


def compact_vocabulary(encoder: Encoder, texts: Iterable[Sequence[int]]) -> Callable[[float], None]:
    """Reduce an encoder's word embeddings to the ids in `texts`; other ids raise IndexError.

    Returns a function of `decay` that restores all rows, the untrained ones multiplied by `decay`.
    """
    table = encoder.backbone.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    full = table.weight.detach()
    # All rows up to `padding_idx` are kept, so that `padding_idx` stays valid.
    used = {*range((table.padding_idx or 0) + 1), getattr(encoder.tokenizer, "pad_token_id", None) or 0}
    kept = torch.tensor(sorted(used.union(*texts)), device=full.device)
    rows = torch.full((len(full),), -1, device=full.device)
    rows[kept] = torch.arange(len(kept), device=full.device)
    hook = table.register_forward_pre_hook(lambda _, inputs: (rows[inputs[0]],))

    def put(weight: Tensor) -> None:
        table.weight, table.num_embeddings = nn.Parameter(weight), weight.shape[0]

    def expand(decay: float) -> None:
        hook.remove()
        weight = full * decay
        weight[kept] = table.weight.detach()
        put(weight)

    put(full[kept])
    return expand


@contextlib.contextmanager
def joined(device: str | None = None) -> Iterator[tuple[Group, str | None]]:
    """Join the processes started by `torchrun`; yield the group and this process's device. Raises `DeviceError`."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ALONE, device
        return
    backend = "gloo"
    if select_device(device).type == "cuda":
        device, backend = f"cuda:{os.environ.get('LOCAL_RANK', '0')}", "nccl"
        torch.cuda.set_device(select_device(device))
    distributed.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Group(distributed.get_rank(), size), device
    except RuntimeError as error:
        # Gloo raises a plain RuntimeError, NCCL a DistError.
        if not isinstance(error, distributed.DistError) and "gloo/transport" not in str(error):
            raise
        hint = "Look for an error in the output of the other processes; a killed process leaves no message."
        raise TruncateKitError("Another process of this run has ended.", hint=hint) from error
    finally:
        distributed.destroy_process_group()


_TURN = threading.RLock()  # reentrant: a study trains a sweep
if hasattr(os, "register_at_fork"):  # in a child, no thread would release the lock
    os.register_at_fork(after_in_child=_TURN._at_fork_reinit)  # type: ignore[attr-defined]  # as in `logging`


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run one training at a time, as dropout uses the global random generator.

    Restores the generators afterwards; suspends the caller's `no_grad`, `inference_mode` and `autocast`.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _TURN, contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_autocast())
        yield


# Faster linear layers, dropout and attention on the CPU. On processors not made by Intel, torch's MKL uses only 256-bit
# instructions; oneDNN is twice as fast on an AMD EPYC. Sixteen random bits suffice for dropout. Fused attention runs in
# float32: its bfloat16 backward pass is slow (benchmarks/training).

LEAST_PRODUCTS = 2**20  # with fewer multiplications, oneDNN's overhead outweighs its gain


class FasterOnCPU(TorchFunctionMode):
    """Replace torch's linear layers, dropout and attention by faster versions on CPU tensors, gradients included."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.linear and not kwargs and onednn_pays() and _suits(*args):
            return linear(*args)
        if func is nn.functional.dropout and args[0].device.type == "cpu":
            return _dropout(*args, **kwargs)
        if func is nn.functional.scaled_dot_product_attention and args[0].device.type == "cpu":
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def faster_on_cpu() -> bool:
    """Return whether a `FasterOnCPU` is active; it draws other random numbers for dropout than torch."""
    modes: list[Any] = _get_current_function_mode_stack()
    return any(isinstance(mode, FasterOnCPU) for mode in modes)


def onednn_pays() -> bool:
    """Return whether oneDNN is faster; known from the processor, not timed, for reproducible runs."""
    return has_avx512() and _beats_mkl()


@cache
def _beats_mkl() -> bool:
    """Return whether MKL is limited to 256 bits here, and oneDNN works."""
    intel = processor_maker() in (None, "GenuineIntel")
    if intel or not torch.backends.mkl.is_available():
        return False
    try:  # the operator is not public
        rows, weight, bias = torch.ones(64, 48), torch.ones(32, 48), torch.ones(32)
        return torch.equal(_product(rows, weight, bias), torch.full((64, 32), 49.0))
    except (AttributeError, RuntimeError, TypeError):
        return False


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return states (…, in) · weightᵀ (out, in) + bias (out,) by oneDNN, in float32 on the CPU."""
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (states, weight, bias)):
        result: Tensor = _Linear.apply(states, weight, bias)  # type: ignore[no-untyped-call]  # of our class
        return result
    return _product(states, weight, bias)


def _suits(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    if states.ndim < 2 or weight.ndim != 2 or states.numel() * weight.shape[0] < LEAST_PRODUCTS:
        return False
    plain = all(
        part.dtype == torch.float32 and part.device.type == "cpu" and part.layout == torch.strided
        for part in (states, weight, bias)
        if part is not None
    )
    return plain and not torch.is_autocast_enabled("cpu")


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    """Linear layer by oneDNN; gradients from g: g · weight (states), gᵀ · states (weight), Σ g (bias)."""

    @staticmethod
    def forward(context: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        states, weight = context.saved_tensors
        wants_states, wants_weight, wants_bias = context.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            _product(gradient, weight.t(), None) if wants_states else None,
            _product(rows.t(), states.reshape(-1, states.shape[-1]).t(), None) if wants_weight else None,
            rows.sum(dim=0) if wants_bias else None,
        )


def dropout(states: Tensor, p: float) -> Tensor:
    """Set about a share `p` of the elements to 0 and divide the others by 1 − p."""
    # Keep an element if sixteen random bits are below 2¹⁶ · (1 − p), rounded.
    words = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: states.numel()].view(states.shape)
    kept = (bits < round((1 - p) * 2**16) - 2**15).to(states.dtype)
    return states * kept.mul_(1 / (1 - p))


def _dropout(states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or not 0 < p < 1 or inplace:
        return nn.functional.dropout(states, p, training, inplace)
    return dropout(states, p)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **others: Any,
) -> Tensor:
    """Compute attention: by torch's fused kernel (bfloat16 in float32), or step by step if there is dropout."""
    kind = query.dtype
    if dropout_p == 0 and kind == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):
            mask = attn_mask.float() if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
            wide = (query.float(), key.float(), value.float(), mask, 0.0, is_causal)
            return nn.functional.scaled_dot_product_attention(*wide, scale=scale, **others).to(kind)
    if dropout_p == 0 or is_causal or others:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **others
        )
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min) if hidden else scores + attn_mask
    return dropout(scores.softmax(dim=-1), dropout_p).to(kind) @ value
