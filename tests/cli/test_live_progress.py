"""What a running sweep shows, in a terminal and elsewhere, by a clock that the tests set."""

import io
import sys
from contextlib import redirect_stderr
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.support.pairs import word_splits
from tests.support.training import SETTINGS
from truncate_kit.methods.tmft.finetune import finetune
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models import load_encoder
from truncate_kit.progress import PlannedTrial, TrialEvent, announce
from truncate_kit.wording import lasting
from truncate_kit_cli import output
from truncate_kit_cli.live_progress import SHOWN_TRIALS, _Lines, _LiveTable, watching
from truncate_kit_cli.output import ProgressLines, progress_bar

EPOCHS = 3
STEPS = 9  # of a trial


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(clock):
    return _LiveTable(clock)


def planned(*layers, seed=0, until=EPOCHS):
    return [PlannedTrial(task(layer, seed), layer, seed, EPOCHS, until) for layer in layers]


def task(layer, seed=0):
    return f"layer {layer}, seed {seed}, {EPOCHS} epochs"


def drawn(table) -> SimpleNamespace:
    """The cells of the table, row by row, and the lines around it."""
    screen = io.StringIO()
    Console(file=screen, width=100).print(table._drawn())
    lines = screen.getvalue().splitlines()
    rows = [tuple(cell.strip() for cell in line.split("│")[1:-1]) for line in lines if line.startswith("│")]
    return SimpleNamespace(rows=rows, lines=[line.strip() for line in lines if line and line[0] not in "│┏┃┡└"])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "1 s"),
        (12.4, "12 s"),
        (59.6, "1 min"),
        (200, "3 min"),
        (3599, "1 h"),
        (7500, "2 h 5 min"),
        (86400 + 7500, "1 d 2 h"),
        (86400 + 120, "1 d 2 min"),
    ],
)
def test_times_are_said_in_two_units_at_most(seconds, said):
    assert lasting(seconds) == said


def test_a_trial_has_a_row_from_its_first_step_on(table, clock):
    table.planned(planned(2))
    assert drawn(table).rows == []
    table.progress(task(2), 1, STEPS)
    assert drawn(table).rows == [("2", "0", "0/3", "", "")]  # one step tells no speed
    clock.now += 40
    table.progress(task(2), 3, STEPS)
    assert drawn(table).rows == [("2", "0", "1/3", "", "2 min")]  # two steps in 40 s, six to come
    table.trial(TrialEvent("epoch", 2, 0, EPOCHS, 1, 61.254, 0.1))
    assert drawn(table).rows == [("2", "0", "1/3", "61.25", "2 min")]
    table.progress(task(2), STEPS, STEPS)
    table.trial(TrialEvent("finished", 2, 0, EPOCHS, EPOCHS, 62.5))
    assert drawn(table).rows == [("2", "0", "done", "62.50", "")]
    assert drawn(table).lines == []


def test_trials_at_once_and_one_that_was_lost(table, clock):
    table.planned(planned(1, 2))
    for layer in (1, 2):
        table.progress(task(layer), 4, STEPS)  # a killed run had made the first epoch
        clock.now += 5
        table.progress(task(layer), 5, STEPS)
    assert drawn(table).rows == [("1", "0", "1/3", "", "20 s"), ("2", "0", "1/3", "", "20 s")]
    table.trial(TrialEvent("again", 1, 0, EPOCHS, reason="it was ended by SIGKILL"))
    assert drawn(table).rows[0] == ("1", "0", "again", "", "")
    table.progress(task(1), 4, STEPS)
    clock.now += 2
    table.progress(task(1), 5, STEPS)
    assert drawn(table).rows[0] == ("1", "0", "1/3", "", "8 s")


def test_the_time_left_of_what_is_planned_goes_by_block_steps(table, clock):
    table.planned(planned(3, 1))
    clock.now += 300  # workers start
    table.progress(task(3), 1, 10)
    assert drawn(table).lines == ["0 of 2 planned trials done"]
    clock.now += 12
    table.progress(task(3), 5, 10)  # 12 block-steps in 12 s; 15 of this trial and 10 of the next remain
    assert drawn(table).lines == ["0 of 2 planned trials done, about 25 s left"]
    clock.now += 15
    table.trial(TrialEvent("finished", 3, 0, EPOCHS, EPOCHS, 60.0))
    assert drawn(table).lines == ["1 of 2 planned trials done, about 10 s left"]
    clock.now += 1
    table.progress(task(1), 1, 10)
    assert drawn(table).lines == ["1 of 2 planned trials done, about 9 s left"]
    table.trial(TrialEvent("finished", 1, 0, EPOCHS, EPOCHS, 60.0))
    assert drawn(table).lines == []


def test_what_a_killed_run_had_done_tells_nothing_of_the_speed(table, clock):
    table.planned(planned(1, 2))
    table.progress(task(1), 7, 10)
    clock.now += 2
    table.progress(task(1), 9, 10)  # two steps in 2 s; this trial's last and 2 × 10 remain
    assert drawn(table).lines == ["0 of 2 planned trials done, about 21 s left"]
    clock.now += 4
    table.progress(task(2), 6, 10)  # two block-steps
    assert drawn(table).lines == ["0 of 2 planned trials done, about 14 s left"]  # 1 + 2 × 4, at 6 s for 4


def test_a_trial_that_waits_has_no_time_left_and_goes_on_later(table, clock):
    table.planned(planned(2, until=1))
    table.progress(task(2), 1, STEPS)
    clock.now += 4
    table.progress(task(2), 2, STEPS)
    assert drawn(table).rows == [("2", "0", "0/3", "", "4 s")]  # its stop is after the third step, not after the ninth
    table.progress(task(2), 3, STEPS)
    table.trial(TrialEvent("stopped", 2, 0, EPOCHS, 1, 40.0))
    assert drawn(table).rows == [("2", "0", "1/3", "40.00", "")]
    table.planned(planned(2))
    table.progress(task(2), 4, STEPS)
    assert drawn(table).rows == [("2", "0", "1/3", "", "")]


def test_what_is_no_trial_stands_below_and_parts_begin_anew(table, clock):
    table.progress("masked words at layer 3, 1 epoch", 1, 4)
    clock.now += 10
    table.progress("masked words at layer 3, 1 epoch", 2, 4)
    assert drawn(table).lines == ["masked words at layer 3, 1 epoch: step 2 of 4, 20 s left"]
    table.progress("masked words at layer 3, 1 epoch", 4, 4)
    assert drawn(table).lines == []
    table.part("a model, [a task]")
    table.planned(planned(1))
    table.progress(task(1), 1, STEPS)
    assert drawn(table).lines == ["a model, [a task]"]
    table.part("another model, a task")
    assert (drawn(table).rows, drawn(table).lines) == ([], ["another model, a task"])


def test_a_trial_that_runs_is_seen_however_many_are_done(table):
    many = range(1, SHOWN_TRIALS + 5)
    table.planned(planned(*many))
    table.progress(task(1), 1, STEPS)
    for layer in many[1:]:
        table.trial(TrialEvent("finished", layer, 0, EPOCHS, EPOCHS, 50.0))
    rows = drawn(table).rows
    assert len(rows) == SHOWN_TRIALS
    assert rows[-1][:3] == ("1", "0", "0/3")


def test_the_table_of_a_real_sweep(tiny_folder, tmp_path):
    seen = []

    class Watched(_LiveTable):
        def progress(self, task, done, total):
            super().progress(task, done, total)
            seen.append((task, drawn(self)))

    table = Watched()

    result = finetune(
        load_encoder(tiny_folder("bert")),
        word_splits(),
        out=tmp_path,
        settings=SweepSettings(strategy="multi-exit", seeds=(0,), pick="best-dev"),
        training=SETTINGS,
        progress=table,
    )
    for trial in result.trials:
        assert (str(trial.layer), "0", "done", f"{trial.dev:.2f}", "") in drawn(table).rows
        during = [shown for name, shown in seen if name == task(trial.layer)]
        assert during
        assert all((str(trial.layer), "0") in [row[:2] for row in shown.rows] for shown in during)
        assert not [line for shown in during for line in shown.lines if line.startswith("layer")]
    rankings = [shown for name, shown in seen if name.startswith("ranking")]
    assert all(shown.lines for shown in rankings[:-1])
    assert drawn(table).lines == rankings[-1].lines == []


@pytest.fixture
def lines(clock, monkeypatch):
    """What `_Lines` says, and itself."""
    said = []
    monkeypatch.setattr(output, "note", said.append)
    return SimpleNamespace(said=said, watcher=_Lines(clock))


def test_elsewhere_what_runs_is_said_after_a_minute_of_silence(lines, clock):
    watcher = lines.watcher
    watcher.planned(planned(3, 1))
    watcher.progress(task(3), 1, 90)
    clock.now += 59
    watcher.progress(task(3), 30, 90)
    assert lines.said == []
    clock.now += 31
    watcher.progress(task(3), 46, 90)
    assert lines.said == [
        # 45 steps in 90 s, 44 to come; 3 × 45 block-steps in 90 s, 3 × 44 + 90 to come
        "Layer 3, seed 0, 3 epochs: step 46 of 90, 1 min left. 0 of 2 planned trials done, about 2 min left."
    ]
    clock.now += 50
    watcher.trial(TrialEvent("finished", 3, 0, EPOCHS, EPOCHS, 61.234))
    clock.now += 50  # less than a minute after that line
    watcher.progress(task(1), 1, 90)
    assert lines.said[1:] == ["Layer 3, seed 0, 3 epochs: dev 61.23."]


def test_elsewhere_what_runs_apart_from_trials_begins_and_ends_with_a_line(lines, clock):
    watcher = lines.watcher
    clock.now += 100
    watcher.progress("masked words at layer 3, 1 epoch", 1, 1000)
    clock.now += 30
    watcher.progress("masked words at layer 3, 1 epoch", 500, 1000)
    clock.now += 90
    watcher.progress("masked words at layer 3, 1 epoch", 1000, 1000)
    assert lines.said == [
        "Masked words at layer 3, 1 epoch: step 1 of 1,000.",
        "Masked words at layer 3, 1 epoch: done after 2 min.",
    ]
    watcher.planned(planned(3))
    watcher.progress("words at layer 3, seed 0, 50 epochs", 1, 100)  # part of a trial: too short for lines of its own
    watcher.progress("words at layer 3, seed 0, 50 epochs", 100, 100)
    assert len(lines.said) == 2


def test_elsewhere_a_trial_that_was_told_of_ends_with_its_score_alone(lines, clock):
    watcher = lines.watcher
    watcher.planned(planned(2, until=1))
    watcher.progress(task(2), 1, STEPS)
    clock.now += 60
    watcher.progress(task(2), 2, STEPS)
    watcher.progress(task(2), 3, STEPS)
    watcher.trial(TrialEvent("stopped", 2, 0, EPOCHS, 1, 40.0))
    assert lines.said == [
        "Layer 2, seed 0, 3 epochs: step 2 of 3, 1 min left.",
        "Layer 2, seed 0, 1 of 3 epochs: dev 40.00.",
    ]


def test_elsewhere_a_line_names_a_few_of_many_workers(lines, clock):
    watcher = lines.watcher
    watcher.planned(planned(1, 2, 3, 4, 5))
    for layer in (1, 2, 3, 4, 5):
        watcher.progress(task(layer), 1, STEPS)
    clock.now += 60
    watcher.progress(task(5), 1, STEPS)
    (line,) = lines.said
    assert line.startswith(f"L{task(1)[1:]}: step 1 of 9; {task(2)}: step 1 of 9; {task(3)}: step 1 of 9; 2 more. ")


def test_elsewhere_each_trial_is_one_line(lines):
    lines.watcher.part("a/model, pairs")
    for _ in range(2):  # trained, then read again for the result
        lines.watcher.trial(TrialEvent("finished", 3, 1, 10, 10, 61.234, test=50.0))
    lines.watcher.trial(TrialEvent("again", 2, 1, 10, reason="it was ended by SIGKILL"))
    lines.watcher.part("a/model, other pairs")
    lines.watcher.trial(TrialEvent("finished", 3, 1, 10, 10, 51.234, test=50.0))
    assert lines.said == [
        "a/model, pairs:",
        "Layer 3, seed 1, 10 epochs: dev 61.23.",
        "Layer 2, seed 1 is run again: its worker was lost, it was ended by SIGKILL.",
        "a/model, other pairs:",
        "Layer 3, seed 1, 10 epochs: dev 51.23.",
    ]


def test_lines_go_to_stderr_and_json_has_none(tmp_path):
    for quiet, said in ((False, "Layer 3, seed 1, 10 epochs: dev 61.23.\n"), (True, "")):
        screen = io.StringIO()
        with redirect_stderr(screen), watching(tmp_path, tensorboard=False, quiet=quiet) as watcher:
            assert not sys.stderr.isatty()
            watcher.planned(planned(3))
            watcher.progress(task(3), 1, STEPS)
            watcher.trial(TrialEvent("finished", 3, 1, 10, 10, 61.234, test=50.0))
        assert screen.getvalue() == said


def test_elsewhere_long_work_of_any_command_is_heard_of(lines, clock):
    work = ProgressLines(clock)
    for done in range(1, 5):
        work.progress("States of bert", done, 4)
        clock.now += 10
    assert lines.said == []
    for done in range(1, 5):
        work.progress("States of electra", done, 4)
        clock.now += 25
    assert lines.said == [
        "States of electra: step 2 of 4, 50 s left.",
        "States of electra: done after 1 min.",
    ]


def test_a_bar_that_cannot_be_drawn_is_lines_and_with_json_nothing(monkeypatch):
    monkeypatch.setattr(output, "SILENCE", 0.0)
    for quiet, said in ((False, "Work: step 1 of 2.\nThis takes an hour.\n"), (True, "")):
        screen = io.StringIO()
        with redirect_stderr(screen), progress_bar(quiet=quiet) as progress:
            progress("work", 1, 2)
            announce(progress, "This takes an hour.")
        assert screen.getvalue() == said


def test_in_a_terminal_sentences_stand_above_the_bars():
    screen = io.StringIO()
    screen.isatty = lambda: True
    with redirect_stderr(screen), progress_bar() as progress:
        progress("work", 1, 2)
        announce(progress, "This takes [an] hour.")
        progress("work", 2, 2)
    assert "This takes [an] hour." in screen.getvalue()
