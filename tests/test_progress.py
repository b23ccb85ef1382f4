"""`progress=True`: bars where someone looks, a log in any case; callables and watchers hear what they always heard."""

import inspect
import io
import logging
import re
import sys
from types import SimpleNamespace

import truncate_kit
from tests.support.pairs import word_splits
from tests.support.training import SETTINGS
from truncate_kit import SweepSettings, finetune, profile
from truncate_kit.core import progress
from truncate_kit.core.progress import (
    Bars,
    ProgressOption,
    TrialEvent,
    TrialWatcher,
    WatchOption,
    reporter,
    silent,
    watcher_of,
)
from truncate_kit.models.loading import load_encoder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_are_drawn_in_a_terminal_and_nowhere_else(monkeypatch, capsys, caplog):
    caplog.set_level(logging.INFO, logger="truncate_kit")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    bars = Bars()
    for done in (1, 2, 3):
        bars("Encoding", done, 3)
    assert "Encoding" in screen.getvalue()
    assert "1/3" in screen.getvalue()
    assert screen.getvalue().endswith("\r")  # a full bar goes
    first, last = caplog.messages
    assert first == "Encoding: step 1 of 3."
    assert last.startswith("Encoding: done after ")

    monkeypatch.undo()
    for done in (1, 2):
        bars("Counting", done, 2)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_each_task_tells_how_long_it_takes(monkeypatch):
    said, clock = [], iter([0.0, 1.0, 13.0, 30.0, 74.0, 399.0, 400.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    bars = Bars(said.append)
    for done in (10, 11, 13, 40, 74, 409, 410):
        bars("Encoding", done, 410)
    said, last = said[:-1], said[-1]
    assert said == ["Encoding: 13 of 410, about 29 min left.", "Encoding: 74 of 410, about 6 min left."]
    assert last == "Encoding: 409 of 410, about 1 s left."  # after minutes without a line


def test_a_notebook_without_widgets_has_one_line_for_all_bars(monkeypatch):
    lines, updates = [], []
    handle = SimpleNamespace(update=lambda line, raw: updates.append(line["text/plain"]))
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": {}}))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    shown = SimpleNamespace(display=lambda *line, raw, display_id: lines.append(line) or handle)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(progress, "find_spec", lambda _: None)
    bars = Bars()
    bars.planned({"one": 1, "two": 1})
    for task, done in (("one", 0), ("one", 2), ("two", 1), ("two", 2)):
        bars(task, done, 2)
    assert len(lines) == 1
    assert any(re.fullmatch(r"all trials: .*%.*  two: .*1/2.*", line) for line in updates)
    assert updates[-1] == ""


def test_planned_trials_have_a_bar_of_all_and_a_line_at_their_end(monkeypatch):
    screen, said, heard = Terminal(), [], []
    monkeypatch.setattr("sys.stderr", screen)
    beside = TrialWatcher()
    beside.trial = heard.append
    bars = Bars(said.append, beside)
    bars.part("a model")
    bars.planned({"one": 1, "two": 3})
    bars.progress("one", 4, 4)
    assert "all trials:  25%" in screen.getvalue()
    bars.progress("two", 4, 4)
    assert screen.getvalue().endswith("\r")
    bars.planned({"one": 1, "two": 1})
    bars.progress("one", 1, 4)  # and diverges
    bars.planned({"three": 1, "four": 3})
    bars.progress("three", 4, 4)
    assert "all trials:  25%" in screen.getvalue().rpartition("12%")[2]  # of the next part alone
    for kind in ("epoch", "finished"):
        bars.trial(TrialEvent(kind, 1, 0, 2, done=2, dev=50.0, loss=1.0, test=40.0))
    assert said == ["a model:", "Layer 1, seed 0, 2 epochs: dev 50.00. Test 40.00."]
    assert [event.kind for event in heard] == ["epoch", "finished"]


def test_finetune_logs_epochs_and_scores(encoder, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="truncate_kit")
    settings = SweepSettings(layers=1, seeds=(0,))
    assert settings.layers == "1"
    result = finetune(encoder, word_splits(), out=tmp_path, settings=settings, training=SETTINGS, progress=True)
    dev, test = f"dev {result.trials[0].dev:.2f}", f"Test {result.trials[0].test:.2f}"
    assert f"Layer 1, seed 0, 3 epochs: {dev}. {test}." in caplog.messages
    assert sum("Layer 1" in line and ": loss" in line for line in caplog.messages) == SETTINGS.epochs


def test_a_callable_is_called_and_the_default_is_silent(tiny_folder, caplog, capsys):
    caplog.set_level(logging.INFO, logger="truncate_kit")
    seen = []
    encoder, texts = load_encoder(tiny_folder("bert")), word_splits().train.texts()
    profile(encoder, texts, progress=lambda task, done, total: seen.append(task))
    assert seen
    caplog.clear()
    profile(encoder, texts)
    assert (caplog.messages, capsys.readouterr()) == ([], ("", ""))
    watcher = TrialWatcher()
    assert watcher_of(watcher) is watcher
    assert reporter(False) is silent


def test_every_public_function_with_progress_takes_true():
    found = 0
    for name in truncate_kit.__all__:
        public = getattr(truncate_kit, name)
        if inspect.isfunction(public) and "progress" in (parameters := inspect.signature(public).parameters):
            assert parameters["progress"].annotation in (ProgressOption, WatchOption), name
            found += 1
    assert found >= 18
