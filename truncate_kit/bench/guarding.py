"""A contestant that fails while it runs must not take the others' figures with it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from torch import Tensor

from truncate_kit.bench.backends import Backend
from truncate_kit.bench.bench_report import Key
from truncate_kit.bench.running import Ids, Runner
from truncate_kit.errors import TruncateKitError
from truncate_kit.memory import is_out_of_memory
from truncate_kit.wording import counted

Found = TypeVar("Found")


class ContestantError(Exception):
    """One contestant failed; `key`, its role and backend, says which, the message why."""

    def __init__(self, key: Key, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def failure_reason(backend: Backend, error: Exception) -> str:
    """Why a runtime failed, in one line. Runtimes and compilers raise classes of their own, many plain exceptions."""
    if is_out_of_memory(error):
        return "the GPU's memory does not hold it"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = lines[0].rstrip(".") if lines else type(error).__name__
    return f"{'torch.compile' if backend.compiled else backend.title} failed: {found}"


class Guarded:
    """A `Runner` whose failures are `ContestantError`, but for `TruncateKitError`, which the user can mend."""

    def __init__(self, key: Key, backend: Backend, runner: Runner) -> None:
        self.key = key
        self.backend = backend
        self.runner = runner
        self.detail = runner.detail

    def _guard(self, call: Callable[[], Found]) -> Found:
        try:
            return call()
        except TruncateKitError:
            raise
        except Exception as error:
            raise ContestantError(self.key, failure_reason(self.backend, error)) from error

    def prepare(self, ids: Ids) -> Callable[[], object]:
        """See `Runner`; the call is guarded as well."""
        return partial(self._guard, self._guard(lambda: self.runner.prepare(ids)))

    def encode_ids(self, ids: Ids) -> Tensor:
        """See `Runner`; vectors that are not numbers are a failure, which a search would not notice."""
        vectors = self._guard(lambda: self.runner.encode_ids(ids))
        if bad := int((~vectors.isfinite().all(dim=1)).sum()):
            of = f"{bad:,} of {counted(len(ids), 'text')}"
            raise ContestantError(self.key, f"{self.backend.title} gives vectors that are not numbers for {of}")
        return vectors

    def encode(self, texts: Sequence[str]) -> Tensor:
        """See `Runner`."""
        return self._guard(lambda: self.runner.encode(texts))

    def similarities(self, first: Tensor, second: Tensor) -> Tensor:
        """See `Runner`."""
        return self._guard(lambda: self.runner.similarities(first, second))
