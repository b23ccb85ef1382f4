"""The folder in which one command finds what the one before it left."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.files import write_json

from .options import columns_of, scale_of
from .output import note

if TYPE_CHECKING:
    from truncate_kit.data import PairSplits


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the last command worked on."""

    model: str | None = None
    data: str | None = None
    columns: str | None = None
    scale: str | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths inside `out`, and what was worked on there."""

    out: Path

    @property
    def profile(self) -> Path:
        """The analysis."""
        return self.out / "analysis" / "profile.json"

    @property
    def analysis_curve(self) -> Path:
        """The figure of the analysis."""
        return self.out / "analysis" / "curve.png"

    @property
    def lean(self) -> Path:
        """The truncated, fine-tuned model."""
        return self.out / "lean"

    @property
    def full(self) -> Path:
        """The full model with the same fine-tuning."""
        return self.out / "full"

    @property
    def sweep_curve(self) -> Path:
        """The figure of the sweep."""
        return self.out / "curve.png"

    @property
    def bench_report(self) -> Path:
        """The measurements."""
        return self.out / "bench.json"

    @property
    def bench_figure(self) -> Path:
        """The figure of the measurements."""
        return self.out / "bench.png"

    def remembered(self) -> Remembered:
        """What the last command worked on; nothing where there was none or its note is damaged."""
        try:
            values = json.loads((self.out / "workspace.json").read_text(encoding="utf-8"))
            return Remembered(**values)
        except (OSError, ValueError, TypeError):
            return Remembered()

    def remember(self, model: str, data: str | None, columns: str | None, scale: str | None) -> None:
        """Note for the next command what this one worked on; paths are made absolute."""
        values = Remembered(_absolute(model), _absolute(data) if data else None, columns, scale)
        write_json(self.out / "workspace.json", asdict(values))

    def model(self, named: str | None, *, quiet: bool = False) -> str:
        """The model to start from: the one named, else the last one, else the bundled miniature; says which."""
        if named is not None:
            return named
        last = self.remembered().model
        if last is not None:
            note(f"Model: {last}, as in the last command (name another one to change it).", quiet=quiet)
            return last
        from truncate_kit.encoders.miniatures import DEFAULT_MINIATURE

        note(f"No model was named: this is the bundled miniature {DEFAULT_MINIATURE}.", quiet=quiet)
        return DEFAULT_MINIATURE

    def data(
        self, named: str | None, columns: str | None, scale: str | None, *, quiet: bool = False
    ) -> tuple["PairSplits", tuple[str | None, str | None, str | None]]:
        """The pairs named, else the last ones, else the bundled set, with the options that found them; says all."""
        from truncate_kit.data import BUNDLED, load_pairs

        if named is None:
            last = self.remembered()
            named, columns, scale = last.data, columns or last.columns, scale or last.scale
        splits = load_pairs(named or BUNDLED, columns=columns_of(columns), scale=scale_of(scale))
        for statement in splits.statements():
            note(statement, quiet=quiet)
        return splits, (named, columns, scale)


def _absolute(name: str) -> str:
    """A path that exists, made absolute; any other name as it is."""
    return str(Path(name).resolve()) if Path(name).exists() else name
