"""Numbers of settings: what no run could take is refused, by the class, a study and a command alike."""

import json
import math

import numpy as np
import pytest

from truncate_kit.analysis.result import AnalysisSettings
from truncate_kit.bench.result import BenchSettings
from truncate_kit.core.errors import UsageError
from truncate_kit.core.hardware import check_threads
from truncate_kit.core.parallel import Processes
from truncate_kit.core.results import Bounds, blocks_named, first_seeds
from truncate_kit.evaluation.transfer import TransferSettings
from truncate_kit.export.record import ExportSettings
from truncate_kit.methods.bert_lc.settings import CombineSettings
from truncate_kit.methods.contrast.settings import ContrastiveSettings
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.methods.frozen.settings import FrozenSettings
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.training.settings import AdaptationSettings, TrainingSettings

HUGE = 10**30
WRONG = [
    (TrainingSettings, "max_gradient_norm", (-1, 0, math.nan, "1", True)),
    (TrainingSettings, "warmup", (1e9, -0.1, math.inf)),
    (TrainingSettings, "epochs", (0, HUGE, 2.5, np.int64(0), np.float64(2))),
    (SweepSettings, "seeds", ((), (-1,), (0, 1, 0), tuple(range(10_001)))),
    (AdaptationSettings, "epochs", (0, HUGE)),
    (CombineSettings, "splits", (HUGE, 0)),
    (TransferSettings, "test_share", (0, 1, -3, math.nan)),
    (FrozenSettings, "codes", ((1, HUGE), (0, 1))),
    (ContrastiveSettings, "evaluate_every", (0, HUGE)),
    (DistillSettings, "query_weight", (math.inf, -1)),
    (Budget, "speedup", (math.nan, 1)),
    (BenchSettings, "lengths", ((), (0,), (HUGE,))),
    (AnalysisSettings, "level", (0, 1)),
    (ExportSettings, "budget", (-1, math.inf)),
]


@pytest.mark.parametrize(("kind", "name", "values"), WRONG, ids=[f"{kind.__name__} {name}" for kind, name, _ in WRONG])
def test_a_setting_out_of_its_bounds_is_refused(kind, name, values):
    for value in values:
        with pytest.raises(UsageError) as refused:
            kind(**{name: value})
        assert refused.value.hint
        assert len(str(refused.value)) < 200


def test_numbers_of_numpy_are_taken_and_become_json():
    settings = FrozenSettings(epochs=np.int64(2), batch_size=np.int64(8), codes=np.array([16, 32]))
    assert FrozenSettings.from_dict(json.loads(settings.to_json())) == settings
    assert (settings.epochs, settings.batch_size, settings.codes) == (2, 8, (16, 32))
    assert json.loads(TrainingSettings(warmup=np.float64(0.25)).to_json())["warmup"] == 0.25


def test_both_ends_are_allowed_unless_it_has_to_be_above():
    assert all(map(Bounds(1, 3).holds, (1, 3)))
    assert all(map(Bounds(0, 1, whole=False).holds, (0.0, 1.0)))
    inside = Bounds(0, 1, whole=False, above=True, below=True)
    assert [inside.holds(value) for value in (0.0, 0.5, 1.0)] == [False, True, False]
    assert str(inside) == "a number above 0 and below 1"


def test_seeds_count_from_0_and_a_huge_number_of_them_takes_no_memory():
    assert first_seeds(3) == (0, 1, 2)
    for count in (-2, 0, HUGE):
        with pytest.raises(UsageError, match="`seeds`"):
            first_seeds(count)


def test_layers_and_steps_are_taken_as_lists():
    assert FrozenSettings(layers=[1, 2]).layers == SweepSettings(layers=[1, 2]).layers == "1,2"
    settings = FrozenSettings(steps=["cosine"])
    assert FrozenSettings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("threads", [0, 100_000, 999_999_999_999])
def test_threads_that_no_machine_starts(threads):
    with pytest.raises(UsageError, match="`threads`"):
        check_threads(threads)
    with pytest.raises(UsageError, match="`count`"):
        Processes(threads)


@pytest.mark.parametrize("text", ["", "all", "1,", "1..", "1.5", "3..1", "1..1000000000000"])
def test_what_names_none_is_refused(text):
    with pytest.raises(UsageError):
        blocks_named(text)
