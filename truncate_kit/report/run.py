"""All that a workspace holds, read at once, and what it lacks."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truncate_kit.analysis.layer_profile import LayerProfile
from truncate_kit.bench.bench_report import BenchReport
from truncate_kit.errors import UsageError
from truncate_kit.evaluation.mteb import MtebComparison, MtebReport
from truncate_kit.evaluation.registry import SUITES, MeasuredModel, SuiteReport
from truncate_kit.export.record import ExportReport, read_exports
from truncate_kit.files import digest_of, real_path
from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.methods.contrast.contrastive_result import ContrastiveResult
from truncate_kit.methods.distill.result import DistillResult
from truncate_kit.methods.frozen.frozen_report import FrozenReport
from truncate_kit.methods.tmft.sweep_result import SweepResult
from truncate_kit.origin import RESULT_FILES, Method, Origin, read_origin
from truncate_kit.results import Result, files_at
from truncate_kit.training.cutting import CutResult
from truncate_kit.workspace import DataSource, LearnedSource, Workspace, read_result


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of one workspace; None and empty where a command has not run there.

    Attributes:
        workspace: Where they are.
        model: Folder of the model that came out: the lean one, else the combined or the frozen one.
        made: How, as its folder says.
        profile: Of `analyze`.
        sweep: Of `finetune`, where the lean model is its.
        contrast: Of `contrast`, likewise.
        cut: Of `cut`, likewise.
        distilled: Of `distill`, likewise.
        heads: Of `freeze`.
        combined: Of `combine`.
        benches: Of `bench`, the first that of the lean model where there is one, and on pairs that are not bundled.
        graphs: Of `export`.
    """

    workspace: Workspace
    model: Path | None
    made: Origin | None = None
    profile: LayerProfile | None
    sweep: SweepResult | None = None
    contrast: ContrastiveResult | None = None
    cut: CutResult | None = None
    distilled: DistillResult | None = None
    heads: FrozenReport | None = None
    combined: CombinationReport | None = None
    benches: tuple[BenchReport, ...]
    graphs: tuple[ExportReport, ...]
    notes: tuple[str, ...] = ()  # what a reader has to know of the files themselves
    weights: str | None = None  # SHA-256 of those of `model`, None where there are none in one file

    @property
    def name(self) -> str:
        """What to call it: its model, as it was named, and the folder."""
        source = self.origin
        return f"{Path(source).name} in {self.workspace.folder}" if source else str(self.workspace.folder)

    @property
    def origin(self) -> str:
        """Name of the model that all began with; nothing where no result says it."""
        made = self.made or self.combined or self.heads or self.profile
        return "" if made is None else self.workspace.located(made.model)

    @property
    def bench(self) -> BenchReport | None:
        """The bench of the model that came out: of the very weights, where one is."""
        return next((report for report in self.benches if self._is_of_model(report)), None)

    def _is_of_model(self, report: BenchReport) -> bool:
        another = _is_of_another(self.workspace, self.model, report) or self.is_of_gone_weights(report)
        return not another and self.parameters in (None, report.lean.parameters)

    def is_of_gone_weights(self, report: BenchReport) -> bool:
        """Whether a bench measured a model that stood in the place of this one, with other weights."""
        measured = report.lean.weights_sha256
        other = None not in (measured, self.weights) and measured != self.weights
        return other and not _is_of_another(self.workspace, self.model, report)

    @property
    def current_benches(self) -> tuple[BenchReport, ...]:
        """Those whose models are still there, as far as the files say."""
        return tuple(report for report in self.benches if not self.is_of_gone_weights(report))

    @property
    def parameters(self) -> int | None:
        """Number of those of the lean model, None where no result says it."""
        return None if self.made is None or self.model != self.workspace.lean else self.made.parameters

    def command(self, *words: str) -> str:
        """A command on this workspace, as it is typed."""
        return shlex.join(["truncate-kit", *words, "--workspace", str(self.workspace.folder)])

    def command_on_model(self, *words: str) -> str:
        """A command on the model of this page, which is named where it is not the lean one."""
        named = () if self.model in (None, self.workspace.lean) else (str(self.model),)
        return self.command(words[0], *named, *words[1:])

    @property
    def learned(self) -> LearnedSource | None:
        """The model and the pairs of the sweep as its command named them; None where nobody noted them."""
        found = self.workspace.remembered().learned
        return found if found and self.sweep and found.fingerprint == self.sweep.data_fingerprint else None

    @property
    def bench_command(self) -> str:
        """The command that measures, on what the last bench was given."""
        return self.bench_with(*named(self.workspace.remembered().benched))

    def bench_with(self, *words: str) -> str:
        """The same with further words; where no full model lies beside the one of this page, it is named."""
        alone = self.contrast is not None or self.model in (self.workspace.combined, self.workspace.frozen)
        return self.command_on_model("bench", *(("--full", self.origin) if alone and self.origin else ()), *words)


def named(data: DataSource | None) -> list[str]:
    """The options that name these pairs, and say how they are read."""
    if data is None:
        return []
    words = ["--data", data.name] if data.name else []
    words += ["--columns", ",".join(data.columns)] if data.columns else []
    return words + (["--scale", ",".join(f"{end:g}" for end in data.scale)] if data.scale else [])


_RESULTS: dict[Method, tuple[str, type[Result]]] = {
    "cut": ("cut", CutResult),
    "finetune": ("sweep", SweepResult),
    "distill": ("distilled", DistillResult),
    "contrast": ("contrast", ContrastiveResult),
    "freeze": ("heads", FrozenReport),
    "combine": ("combined", CombinationReport),
}
"""Names of the results in `Run`. Several methods write `lean`: its folder says which of them made it."""


def read_run(folder: Path) -> Run:
    """Read what commands left in a workspace. Raises `UsageError` where there is nothing, `ModelError` as `export`."""
    workspace = Workspace(folder)
    models = (workspace.lean, workspace.combined, workspace.frozen)
    model = next((path for path in models if path.is_dir()), None)
    made = None if model is None else read_origin(model)
    lean = read_origin(workspace.lean)
    results: dict[str, Any] = {
        name: read_result(kind, folder / RESULT_FILES[method])
        for method, (name, kind) in _RESULTS.items()
        if method in ("freeze", "combine") or (lean is not None and lean.method == method)
    }
    files = sorted(folder.glob("bench*.json"), key=lambda path: (len(path.name), path.name))
    read = {path: read_result(BenchReport, path) for path in files}
    benches = [report for report in read.values() if report is not None]
    weights = (model or workspace.lean) / "model.safetensors"
    own = digest_of(weights) if weights.is_file() else None

    def order(report: BenchReport) -> tuple[bool, bool, int]:
        others = own is not None and report.lean.weights_sha256 != own
        return _is_of_another(workspace, model, report), others, _says_little(report)

    run = Run(
        workspace=workspace,
        model=model,
        profile=read_result(LayerProfile, workspace.profile),
        made=made,
        **results,
        benches=tuple(sorted(benches, key=order)),
        graphs=() if model is None else read_exports(model).graphs,
        notes=(*_unreadable(read), *_of_others(workspace, model, read, own)),
        weights=own,
    )
    if model is None and run.profile is None and not run.benches:
        raise _nothing_to_show(workspace)
    return run


def _nothing_to_show(workspace: Workspace) -> UsageError:
    """The error for a folder without a model or a look at one."""
    folder = workspace.folder
    scores = [path.name for path in map(workspace.suite, report_kinds()) if path.is_file()]
    hint = "Name a workspace that analyze, finetune or demo has written; a study's page is study/tables.md."
    if not folder.is_dir():
        return UsageError(f"There is no folder {folder}.", hint=hint)
    if scores:
        return UsageError(
            f"{folder} holds scores alone ({', '.join(scores)}), and no command has left a model or a look at one.",
            hint="Run analyze on the model in this workspace: the page then shows the scores as well.",
        )
    if inside := sorted(path.parent for path in folder.glob("*/workspace.json")):
        hint = f"Name {inside[0]}."
    return UsageError(f"No command has left a model or a look at one in {folder}.", hint=hint)


def _unreadable(read: dict[Path, "BenchReport | None"]) -> list[str]:
    return [f"{path.name} cannot be read and is left out." for path, report in read.items() if report is None]


def _is_of_another(workspace: Workspace, model: Path | None, report: BenchReport) -> bool:
    """Whether a bench names another model of this workspace as its lean one than the one of the page.

    Weights say less: combinations of all layers have those of their model. Names are as they were typed, in any folder.
    """
    if model is None:
        return False
    named = Path(report.lean.name).parts[-2:]
    places = (workspace.lean, workspace.full, workspace.combined, workspace.frozen)
    # The workspace may be named by a link, and the model without it.
    found = [real.parts for place in places if place != model for real in (place.absolute(), real_path(place))]
    return bool(named) and any(parts[-len(named) :] == named for parts in found)


def _says_little(report: BenchReport) -> int:
    """0 for scores on pairs of the user's, which come first, 1 for the bundled ones, 2 where it names none."""
    return 2 if report.scored is None else int(report.scored.bundled)


def _of_others(
    workspace: Workspace, model: Path | None, read: dict[Path, "BenchReport | None"], own: str | None
) -> list[str]:
    """A sentence where other weights were measured than those of the lean model as it is, whose digest is `own`."""
    of_model = {
        path: report.lean.weights_sha256
        for path, report in read.items()
        if report is not None and not _is_of_another(workspace, model, report)
    }
    first = next(iter(of_model), None)
    if first is None or own is None or own in of_model.values() or of_model[first] is None:
        return []
    return [f"{first.name} measured other weights than those of the model here. Run bench again."]


def newest(folder: Path) -> float:
    """When the last of a workspace's results was written, seconds since 1970."""
    found = [path.stat().st_mtime for path in (*folder.glob("*.json"), *folder.glob("*/*.json"))]
    return max(found, default=0.0)


def report_kinds() -> dict[str, Callable[[], type[SuiteReport]]]:
    """The classes of all reports that `evaluate` writes, by name in a workspace; each is imported when it is asked."""
    suites = {name: suite.report for name, suite in SUITES.items()}
    return suites | {"mteb": lambda: MtebReport, "mteb-comparison": lambda: MtebComparison}


def suite_reports(workspace: Workspace) -> dict[Path, SuiteReport]:
    """The results of suites that are there, shorter ones after the longest."""
    found: dict[Path, SuiteReport | None] = {}
    for name, kind in report_kinds().items():
        if files := files_at(workspace.suite(name)):  # the modules of others stay unread
            found |= {file: read_result(kind(), file) for file in files}
    return {file: report for file, report in found.items() if report is not None}


def is_of_gone_model(report: SuiteReport, workspace: Workspace) -> bool:
    """Whether a suite measured a model in whose place there is another one now."""
    measured = report.measured
    if measured is None:
        return False
    now = MeasuredModel.of(workspace.located(measured.name))
    return now is not None and now.sha256 != measured.sha256
