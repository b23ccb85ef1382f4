"""Two runs side by side."""

from truncate_kit.bench.backends import BACKENDS
from truncate_kit.hardware import QUIET
from truncate_kit.report.charts import speed_chart
from truncate_kit.report.evidence import bench_of
from truncate_kit.report.layout import Page, Section
from truncate_kit.report.measures import Measures, lean_and_full, side_by_side
from truncate_kit.report.run import Run
from truncate_kit.report.verdict import verdict


def comparison(first: Run, second: Run) -> Page:
    """What was measured of both, and what speaks against comparing them."""
    runs = {"A": first, "B": second}
    return Page(
        title=f"A: {first.name}, B: {second.name}",
        subtitle="Two workspaces side by side.",
        verdicts=tuple((f"{letter}: {run.name}", verdict(run)) for letter, run in runs.items()),
        sections=(_measures(runs), *_charts(runs)),
    )


def _measures(runs: dict[str, Run]) -> Section:
    found: dict[str, Measures] = {}
    for letter, run in runs.items():
        if run.bench is not None:
            lean, full = lean_and_full(run.bench)
            found |= {f"{letter} {one.role}": one for one in (lean, full) if one is not None}
    missing = [(f"{letter} was not measured", bench_of(run)) for letter, run in runs.items() if run.bench is None]
    return Section(
        key="measures",
        title="Measured",
        sentences=_cautions(runs),
        tables=(side_by_side(found),) if found else (),
        missing=missing,
    )


def _cautions(runs: dict[str, Run]) -> list[str]:
    """Why figures of one may say nothing of the other."""
    found = []
    sweeps = [run.sweep for run in runs.values() if run.sweep is not None]
    if len({(sweep.data_fingerprint, sweep.retrieval) for sweep in sweeps}) > 1:
        found.append("Trained and tested on different data: scores of A and B cannot be compared.")
    elif len({sweep.metric for sweep in sweeps}) > 1:
        found.append("Scored by different measures: scores of A and B cannot be compared.")
    benches = [run.bench for run in runs.values() if run.bench is not None]
    if len({(row.machine.processor, row.machine.threads, row.machine.device) for row in benches}) > 1:
        found.append("Timed on different machines or numbers of threads: compare factors, not seconds.")
    if len({row.num_texts for row in benches}) > 1:
        found.append("Timed on sets of different sizes, and so perhaps of different lengths.")
    found += _other_pairs(runs)
    found += [f"{letter}: {note}" for letter, run in runs.items() for note in run.notes]
    timed = {letter: lean for letter, run in runs.items() if run.bench and (lean := lean_and_full(run.bench)[0])}
    if len({lean.backend for lean in timed.values()}) > 1:
        named = "; ".join(f"{letter} in {BACKENDS[lean.backend].title}" for letter, lean in timed.items())
        found.append(f"Each is shown in its own fastest runtime: {named}.")
    if any((row.machine.others_busy or 0.0) > QUIET for row in benches):
        found.append("Other processes were busy while one of them was timed: speeds are rough.")
    if found:
        return found
    said = "Nothing in the results speaks against comparing them"
    if len(benches) < len(runs) or any(row.quality is None for row in benches):
        return [f"{said}, but not both were measured by `bench` on pairs against their full models."]
    return [f"{said}: same machine, same pairs."]


def _other_pairs(runs: dict[str, Run]) -> list[str]:
    """That the benches scored on different pairs, or that one does not say on which."""
    scored = {letter: run.bench for letter, run in runs.items() if run.bench is not None and run.bench.quality}
    if len(scored) < 2:
        return []
    pairs = {letter: bench.scored for letter, bench in scored.items()}
    if nameless := [letter for letter, one in pairs.items() if one is None]:
        said = f"{' and '.join(nameless)} {'does' if len(nameless) == 1 else 'do'} not say on which pairs"
        return [f"{said}: scores of A and B cannot be compared. Run bench again."]
    if len({one.fingerprint for one in pairs.values() if one is not None}) == 1:
        return []
    on = "; ".join(f"{letter} on {one.words}" for letter, one in pairs.items() if one is not None)
    return [f"Scored on different pairs ({on}): scores of A and B cannot be compared."]


def _charts(runs: dict[str, Run]) -> list[Section]:
    sections = []
    for letter, run in runs.items():
        chart = None if run.bench is None else speed_chart([run.bench], name=f"speed-{letter}")
        if chart is not None:
            title = f"{letter}: speed against quality"
            sections.append(Section(key=f"speed-{letter}", title=title, charts=(chart,)))
    return sections
