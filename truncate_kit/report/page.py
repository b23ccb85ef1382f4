"""Write one or two workspaces as one HTML page that needs no network."""

import base64
import functools
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from truncate_kit.analysis.result import LayerProfile
from truncate_kit.bench.result import BACKENDS, BenchReport
from truncate_kit.core.errors import UsageError, capitalized, counted, harmless
from truncate_kit.core.files import digest_of, local_path, read_json, write_text
from truncate_kit.core.hardware import GRAPH_RUNTIMES
from truncate_kit.core.results import VERSION, Result
from truncate_kit.core.workspace import (
    RESULT_FILES,
    Method,
    Source,
    Workspace,
    miniature_path,
    model_digest,
    read_origin,
)
from truncate_kit.evaluation import SuiteReport
from truncate_kit.export.record import read_exports
from truncate_kit.methods.bert_lc.settings import CombinationReport
from truncate_kit.methods.contrast.settings import ContrastiveResult
from truncate_kit.methods.distill.settings import DistillResult
from truncate_kit.methods.frozen.settings import FrozenReport
from truncate_kit.methods.tmft.settings import SweepResult
from truncate_kit.report import chart
from truncate_kit.report.card import SAMPLE_TEXTS, graph_lines, sentence_transformers_lines
from truncate_kit.report.distillation import choice
from truncate_kit.report.measuring import BUNDLED_SAY_LITTLE, gained_table, quality_sentence
from truncate_kit.report.view import Table, View, view_of
from truncate_kit.training.cutting import CutResult

PAIRS = "PAIRS.csv"  # placeholder in commands
FASTER = 1.1  # a smaller speedup does not justify the lean model
LOSS = 1.0  # points; the interval must exclude this loss

OWN_POOLINGS = ("layer_pooling.LayerAttentionPooling", "layer_pooling.LayerPooling")
"""Pooling modules of this package in modules.json; pages recommend no other code of model folders."""
_RESULTS: dict[Method, type[Result]] = {
    "cut": CutResult,
    "finetune": SweepResult,
    "distill": DistillResult,
    "contrast": ContrastiveResult,
    "freeze": FrozenReport,
    "combine": CombinationReport,
}


class PageReport(Result):
    """A written page: recommendations with their `grounds`, and `commands` that add the `missing` parts."""

    page: str
    file_bytes: int
    recommendations: tuple[str, ...]
    grounds: tuple[tuple[str, ...], ...]
    commands: tuple[str, ...]
    missing: tuple[str, ...] = ()


class Run:
    """The model, results and benches of a workspace.

    `model` is the lean, else the combined, else the frozen model; `origin` is the model that it was made from, if
    known. Benches on the user's pairs come first.

    Raises:
        UsageError: The workspace has no results.
        ModelError: An exported graph is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.workspace = workspace = Workspace(folder)
        models = [path for path in (workspace.lean, workspace.combined, workspace.frozen) if path.is_dir()]
        origins = [read_origin(path) for path in models]
        methods = [origin.method for origin in origins if origin is not None and origin.method in _RESULTS]
        results = [_RESULTS[method].read_if_whole(folder / RESULT_FILES[method]) for method in methods]
        self.results = [result for result in results if result is not None]
        self.model, self.made = next(iter(models), None), next(iter(origins), None)
        self.graphs = () if self.model is None else read_exports(self.model)
        self.profile = LayerProfile.read_if_whole(workspace.profile)
        self.notes = list[str]()
        self.benches = sorted(self._benches(), key=lambda report: report.scored_on is None or report.bundled)
        self.bench = next(iter(self.benches), None)
        first = self.made or self.profile
        self.origin = "" if first is None else workspace.located(first.model)
        if self.model is None and self.profile is None and self.bench is None:
            empty = f"{folder} contains no model, analysis or bench."
            hint = "Name a workspace that analyze, finetune or demo has written; a study's page is study/tables.md."
            raise UsageError(empty if folder.is_dir() else f"There is no folder {folder}.", hint=hint)

    def _benches(self) -> Iterator[BenchReport]:
        """Yield the benches that measured this model's weights; add a note about each other bench."""
        weights = (self.model or self.workspace.lean) / "model.safetensors"
        own = digest_of(weights) if weights.is_file() else None
        for path in _files_at(self.workspace.bench):
            report = BenchReport.read_if_whole(path)
            if report is None:
                continue
            if own is None or report.lean.weights_sha256 in (None, own):
                yield report
            else:
                other = f"{path.name} measured different weights than this model has, so it is not shown."
                self.notes.append(f"{other} Run bench again.")

    def says_little(self, data: str) -> bool:
        """Return whether a user's model was scored on the bundled, synthetic pairs."""
        return data.split("/")[0] == "bundled" and miniature_path(self.origin) is None

    def command(self, *words: str) -> str:
        """Return a command for this model."""
        named = () if self.model in (None, self.workspace.lean) or words[0] == "analyze" else (str(self.model),)
        return shlex.join(["truncate-kit", words[0], *named, *words[1:], "--workspace", str(self.workspace.folder)])

    def bench_command(self) -> str:
        """Return the bench command, with the last data or a placeholder."""
        last = self.workspace.remembered()
        data, alone = last.benched or Source(), self.made and self.made.method not in ("cut", "finetune", "distill")
        words = ["--full", self.origin] if alone and self.origin else []
        if last.queries is None and self.says_little((last.benched or last.data).name or "bundled"):
            return self.command("bench", *words, "--data", PAIRS)
        words += ["--data", data.name] if data.name else []
        words += ["--columns", ",".join(data.columns)] if data.columns else []
        words += ["--scale", ",".join(f"{end:g}" for end in data.scale)] if data.scale else []
        words += ["--skip-bad-rows"] if data.skip_bad_rows else []
        return self.command("bench", *words)


def suite_reports(workspace: Workspace) -> dict[Path, SuiteReport]:
    """Return a workspace's suite reports by path."""
    read = {path: SuiteReport.read_if_whole(path) for path in _files_at(workspace.suite(""))}
    return {path: report for path, report in read.items() if report is not None}


def _files_at(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.stem}*{path.suffix}"), key=lambda file: (len(file.name), file.name))


def sections(run: Run) -> list[View]:
    """Return one workspace's sections."""
    bench, missing = run.bench, list[tuple[str, str]]()
    gained = None if bench is None else gained_table(bench)
    if run.model is None:
        missing.append(("No lean model yet (with scored pairs: fine-tune)", run.command("finetune")))
        distill = run.command("distill", "--texts", "sentences.txt")
        missing.append(("No lean model yet (without labels: distill)", distill))
    elif gained is None:
        missing.append(("Lean and full were not measured in one runtime", run.bench_command()))
    elif bench is not None and bench.scored_on is not None and run.says_little(bench.scored_on):
        missing.append(("No score on pairs of your own", run.bench_command()))
    benches = [view_of(report) for report in run.benches]
    # The first section shows this table.
    benches = [replace(view, tables=[table for table in view.tables if table != gained]) for view in benches]
    title = "Two runtimes" if bench is not None and len(bench.models) == 1 else "Lean against full"
    parts = [View("against", title, [gained], missing=missing)]
    parts += [*benches, *map(view_of, run.results)]
    if run.profile is None:
        command = run.command("analyze", *([run.origin] if run.origin else []))
        parts.append(View("cka", "What the layers show", missing=[("Layers were not analyzed", command)]))
    else:
        view, model = view_of(run.profile), run.workspace.located(run.profile.model)
        other = model != run.origin and f"These are the layers of {model}, not of {run.origin}."
        parts.append(replace(view, notes=(other, *view.notes)))
    parts += map(view_of, run.graphs)
    if run.model is not None:
        if not run.graphs:
            command = run.command("export")
            parts.append(View("graph", "The ONNX graph", missing=[("No graph yet", command)]))
        parts.append(View("loading", "Use the model", snippets=snippets(run.model)))
    replaced = list[str]()
    for path, report in suite_reports(run.workspace).items():
        now = model_digest(run.workspace.located(report.model))
        if None not in (now, report.sha256) and now != report.sha256:
            replaced.append(f"{path.name} measured a model that was replaced since: run evaluate again.")
        else:
            parts.append(view_of(report))
    return _numbered([*parts, _environment(run, replaced)])


def _numbered(views: Sequence[View]) -> list[View]:
    numbered, known = list[View](), Counter[str]()
    for view in views:
        number, known[view.key] = known[view.key], known[view.key] + 1
        numbered.append(replace(view, key=f"{view.key}-{number}") if number else view)
    return numbered


def snippets(folder: Path) -> list[tuple[str, str]]:
    """Return titles and code that uses the model. Raises `ModelError` for a damaged folder."""
    place = str(folder)
    encode = ["truncate-kit", "encode", "texts.txt", "--model", place, "--out", "vectors.npy"]
    ours = (
        f"import truncate_kit\n\nmodel = truncate_kit.load_encoder({place!r})\nvectors = model.encode({SAMPLE_TEXTS})"
    )
    lines = [("Command line", shlex.join(encode)), ("Python", ours)]
    modules, transformer, settings = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
    )
    kinds = [str(module["type"]) for module in modules]
    plain_text = not transformer.get("do_lower_case") and not settings.get("default_prompt_name")
    if all(kind.startswith(("sentence_transformers.", *OWN_POOLINGS)) for kind in kinds):
        own = any(kind in OWN_POOLINGS for kind in kinds)
        lines.append(("sentence-transformers", sentence_transformers_lines(place, own_pooling=own)))
    readable = plain_text and (folder / "tokenizer.json").is_file()
    graphs = sorted(read_exports(folder) if readable else (), key=lambda report: report.precision != "fp32")
    for runtime, row in GRAPH_RUNTIMES.items():
        for graph in [report for report in graphs if report.runtime == runtime][:1]:
            code = graph_lines(place, graph.file, graph.max_length)
            lines.append((f"{row.title}, without torch ({graph.precision})", code))
    return lines


def _environment(run: Run, notes: Sequence[str]) -> View:
    rows: dict[str, object] = {}
    if (made := run.made) is not None:
        rows |= {"method": made.method, "made from": made.model, "data": made.data, "fingerprint": made.fingerprint}
        rows |= {f"setting {name.replace('_', ' ')}": value for name, value in made.settings.items()}
        rows |= {f"version of {name}": value for name, value in made.versions.items()}
    if run.bench is not None:
        names = ("processor", "cores", "threads", "device", "bf16_instructions", "others_busy")
        rows |= {name.replace("_", " "): getattr(run.bench, name) for name in names} | run.bench.versions
    rows["this page"] = f"truncate-kit {VERSION}"
    cells = [(name, str(value)) for name, value in rows.items() if value not in (None, "")]
    table = Table("Data, settings, versions and machine", ("what", "value"), cells, detail=True)
    return View("environment", "Environment", [table], notes=notes)


def recommend(run: Run) -> tuple[str, list[str]]:
    """Return a recommendation and its reasons."""
    result, bench, grounds = next(iter(run.results), None), run.bench, list[str]()
    gain: float | None = None
    scores: dict[str, Any] | None = None
    on, few = "", None
    if run.model is None:
        return "There is no lean model yet.", [*run.notes]
    if isinstance(result, SweepResult):
        grounds.append(capitalized(result.choice))
        if result.chosen == result.full.layer:
            return f"Keep the full model: all {counted(result.chosen, 'layer')} are needed.", [*grounds, *run.notes]
    if isinstance(result, DistillResult):
        gain, grounds = result.speedup, [choice(result)]
        if (held_out := result.scores) is not None:
            scores, on, few = held_out.to_dict(), held_out.data, held_out.too_few
    if bench is not None and bench.quality is not None:
        scores, on, few = bench.quality, bench.scored_on or "", bench.too_few
        grounds.append(quality_sentence(bench, bench.quality))
    if run.says_little(on):
        grounds.append(BUNDLED_SAY_LITTLE)
    if bench is not None and len(bench.models) == 1 and len(steps := [*bench.steps().values()]) > 1:
        (_, today), (_, best) = steps[0], steps[-1]
        gain = (bench.rate("lean", best) or 0.0) / (bench.rate("lean", today) or 1.0)
        faster = (
            f"{gain:.1f} times as fast as in {BACKENDS[today].title}{', and the score holds' * (scores is not None)}"
        )
        return f"Run this model in {BACKENDS[best].title}: {faster}.", [*grounds, *run.notes]
    if bench is not None and len(bench.models) > 1 and (backend := bench.shared()) is not None:
        gain = (bench.rate("lean", backend) or 0.0) / (bench.rate("full", backend) or 1.0)
        grounds.append(f"The lean model is {gain:.1f} times as fast, both models in {BACKENDS[backend].title}.")
    place = "as measured" if run.made is None else run.made.place
    verdict, why = _judge(None if run.says_little(on) else scores, gain, few)
    return f"{verdict} ({place}): {why}.", [*grounds, *run.notes]


def _judge(scores: dict[str, Any] | None, gain: float | None, few: str | None) -> tuple[str, str]:
    speed = "its speed was not compared" if gain is None else f"it is {gain:.1f} times as fast"
    if scores is None or few:
        return "No recommendation", f"{speed}, and {few or 'its score was not compared on your pairs'}"
    pair = f"{scores['lean']:.1f} against {scores['full']:.1f} for the full model"
    if scores["low"] > 0:
        return "Take the lean model", f"it scores higher ({pair}) and {speed}"
    if gain is None:
        return "No recommendation", f"{pair}, and {speed}"
    if gain < FASTER:
        return "Keep the full model", f"the lean one is hardly faster ({gain:.2f} times the speed; {pair})"
    if scores["high"] < 0:
        return "Keep the full model", f"the lean one loses {-scores['difference']:.1f} points ({pair}), though {speed}"
    if scores["low"] <= -LOSS:
        return "No recommendation", f"{speed}, but a loss of {-scores['low']:.1f} points is not excluded ({pair})"
    return "Take the lean model", f"{speed}, and no difference in score is shown ({pair})"


def comparison(runs: dict[str, Run]) -> list[View]:
    """Return the sections for two runs, with notes if they cannot be compared."""
    benches = {letter: run.bench for letter, run in runs.items() if run.bench is not None}
    reports = benches.values()
    notes = [
        len({report.fingerprint for report in reports}) > 1
        and "Scored on different pairs: scores of A and B cannot be compared.",
        len({(one.processor, one.threads, one.device) for one in reports}) > 1
        and "Timed on different machines or numbers of threads: compare factors, not seconds.",
        len({report.num_texts for report in reports}) > 1 and "Timed on sets of different sizes.",
        *(f"{letter}: {note}" for letter, run in runs.items() for note in run.notes),
    ]
    missing = [(f"{letter} was not measured", run.bench_command()) for letter, run in runs.items() if run.bench is None]
    views = [replace(view_of(bench), title=f"{letter}: lean against full") for letter, bench in benches.items()]
    return _numbered([View("measures", "Measured", notes=notes, missing=missing), *views])


def write_page(run: Path, other: Path | None = None, *, out: Path | None = None) -> PageReport:
    """Write one or two workspaces as one HTML file.

    `out` is by default `report.html` or `comparison.html` in `run`.

    Raises:
        UsageError: A workspace has no results, or `out` does not end in .html or .htm.
        ModelError: An exported graph is damaged.
        FileProblemError: The file cannot be written.
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):  # never overwrite models or data
        raise UsageError(f"{out} does not end in .html.", hint="Name it like report.html.")
    first = Run(run)
    runs = {"Recommendation": first} if other is None else {"A": first, "B": Run(other)}
    parts = sections(first) if other is None else comparison(runs)
    recommended = {name: recommend(one) for name, one in runs.items()}
    named = {name: f"{Path(one.origin).name or 'Models'} in {one.workspace.folder}" for name, one in runs.items()}
    title = ", ".join(f"{name}: {words}" if other else words for name, words in named.items())
    text = _render(title, [(name, *verdict) for name, verdict in recommended.items()], parts)
    path = local_path(out or run / ("report.html" if other is None else "comparison.html"))
    write_text(path, text)
    missing = {command: what for part in parts for what, command in part.missing}
    return PageReport(
        page=str(path),
        file_bytes=path.stat().st_size,
        recommendations=tuple(sentence for sentence, _ in recommended.values()),
        grounds=tuple(tuple(grounds) for _, grounds in recommended.values()),
        commands=tuple(missing),
        missing=tuple(missing.values()),
    )


def _render(title: str, verdicts: Sequence[tuple[str, str, Sequence[str]]], parts: Sequence[View]) -> str:
    """Render the page; all strings except our style, script and drawings are escaped."""
    script = _own_text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = {"style": Markup(_own_text("page.css")), "script": Markup(script), "digest": digest, "version": VERSION}
    return _templates().get_template("page.html").render(title=title, verdicts=verdicts, sections=parts, **own)


def in_notebook(result: Result) -> str:
    """Return HTML that shows a result in a notebook cell, without scripts."""
    style = Markup(_own_text("notebook.css"))
    return _templates().get_template("notebook.html").render(view=view_of(result), style=style)


@functools.cache
def _templates() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_own_text),
        autoescape=True,
        finalize=lambda value: harmless(value) if type(value) is str else value,  # control characters
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"prose": _prose, "svg": lambda plot: chart.inline_svg(plot)}
    return environment


def _prose(sentence: str) -> Markup:
    """Escape a sentence for HTML; options do not break at hyphens."""
    return Markup(re.sub(r"--[a-z][a-z-]*", r'<span class="option">\g<0></span>', str(escape(harmless(sentence)))))


def _own_text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
