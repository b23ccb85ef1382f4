"""Where everything stands in a workspace, and what is written there."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from truncate_kit.files import is_there, local_path, model_folder_above
from truncate_kit.miniatures import miniature_path
from truncate_kit.results import Result, read_or_pass_over
from truncate_kit.training.model_origins import COMBINED, CONTRAST, CUT, DISTILLED, HEADS, METHODS, SWEEP, Method
from truncate_kit.workspace.sources import CopiedSource, DataSource, LearnedSource, ModelSource, Sources

if TYPE_CHECKING:
    from truncate_kit.methods.bert_lc.result import CombinationReport
    from truncate_kit.methods.contrast.contrastive_result import ContrastiveResult
    from truncate_kit.methods.distill.result import DistillResult
    from truncate_kit.methods.frozen.frozen_report import FrozenReport
    from truncate_kit.methods.tmft.sweep_result import SweepResult
    from truncate_kit.training.cutting import CutResult

Kind = TypeVar("Kind", bound=Result)


class Workspace:
    """A workspace, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = local_path(folder)
        self.lean, self.full = folder / "lean", folder / "full"  # the truncated model, and the full one tuned likewise
        self.combined = folder / "combined"  # the model whose vectors are made of a combination of layers
        self.frozen = folder / "frozen"  # the frozen model with heads
        self.profile = folder / "analysis/profile.json"
        self.sweep_file = folder / SWEEP.file
        self.curve = folder / "curve.png"  # scores of the sweep by layer
        self.attention = folder / "attention.json"  # how much each layer counts in the vectors of some sentences
        self.attention_figure = self.attention.with_suffix(".png")
        self.combination = folder / "combination"  # what the search of combinations found, and its figures
        self.combination_file = folder / COMBINED.file
        self.frozen_heads = folder / "frozen-heads"  # what training heads found: figures, trials, cached states
        self.study = folder / "study"  # tables, figures and trials
        self.bench = folder / "bench.json"  # shorter measurements stand beside it
        self.distillation = folder / "distillation"  # texts and vectors that `distill` learns from
        self.graphs = folder / "graphs"  # that `bench` made, each under the digest of its model
        self._sources = folder / "workspace.json"
        # Results, each read when it is called for, and None where there is none or it is damaged.
        self.cut: Callable[[], CutResult | None] = partial(CUT.read, folder)
        self.distilled: Callable[[], DistillResult | None] = partial(DISTILLED.read, folder)
        self.sweep: Callable[[], SweepResult | None] = partial(SWEEP.read, folder)
        self.contrast: Callable[[], ContrastiveResult | None] = partial(CONTRAST.read, folder)
        self.heads: Callable[[], FrozenReport | None] = partial(HEADS.read, folder)
        self.combinations: Callable[[], CombinationReport | None] = partial(COMBINED.read, folder)

    def located(self, name: str) -> str:
        """The name of a model as a result here has it, from wherever it is asked for.

        Results name models as they were typed, mostly in one of the folders above this workspace: there they are looked
        for first, whatever has that name where the command is typed now.
        """
        if local_path(name).is_absolute() or miniature_path(name) is not None:
            return name
        found = model_folder_above(name, self.folder)
        return name if found is None else str(found)

    def holds(self, model: str | Path) -> bool:
        """Whether a model of this name lies in the workspace."""
        return Path(model).resolve().is_relative_to(self.folder.resolve())

    def forget_lean(self) -> None:
        """Remove what describes a lean model whose place another one takes."""
        for file in (self.sweep_file, self.curve, self.attention, self.attention_figure):
            file.unlink(missing_ok=True)

    def suite(self, name: str) -> Path:
        """The scores of one suite."""
        return self.folder / f"suite-{name}.json"

    def made(self, folder: Path) -> Iterator[tuple[Method, Any]]:
        """What made the model in a folder here: methods with their results, the last step first.

        Each one is read when it is asked for; raises `FileProblemError` for a result of a later format.
        """
        for method in METHODS:
            if folder.name in method.models and (result := method.read(self.folder)) is not None:
                yield method, result
                if method.ends:
                    return

    def remembered(self) -> Sources:
        """What the last commands worked on."""
        return Sources.read(self._sources)

    def remember(
        self,
        model: ModelSource | None,
        data: DataSource | None,
        queries: str | None = None,
        learned: LearnedSource | None = None,
    ) -> None:
        """Note for the next command what this one worked on; None leaves what was noted before.

        Args:
            model: What this command worked on.
            data: Pairs; the bundled ones, which nobody named, leave what was noted before.
            queries: A folder of them; pairs that are noted later take its place.
            learned: What a sweep took.
        """
        last = self.remembered()
        data = None if data == DataSource() else data
        found = replace(
            last,
            model=model or last.model,
            data=data or last.data,
            queries=queries or (last.queries if data is None else None),
            learned=learned or last.learned,
        )
        found.write(self._sources)

    def remember_copied(self, name: str) -> None:
        """Note for the next export that `lean` is a copy of this model."""
        from truncate_kit.model_digests import model_digest

        replace(self.remembered(), copied=CopiedSource(name, model_digest(self.lean))).write(self._sources)

    def is_copy_of(self, name: str) -> bool:
        """Whether `lean` is as an export copied it from the model of this name."""
        from truncate_kit.model_digests import model_digest

        copied, path = self.remembered().copied, local_path(name)
        if copied is None or copied.digest != model_digest(self.lean):
            return False
        return copied.name == (str(path.resolve()) if is_there(path) else name)

    def remember_benched(self, data: DataSource | None) -> None:
        """Note for the page what a bench was given; other commands take what they took before."""
        replace(self.remembered(), benched=data).write(self._sources)


def read_result(kind: type[Kind], path: Path) -> Kind | None:
    """The result in a file, None where there is none or it is damaged; raises `FileProblemError` for a later format."""
    return read_or_pass_over(kind.read, path)
