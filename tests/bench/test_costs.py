"""What a billion sentences cost, against arithmetic done by hand."""

from dataclasses import replace

import pytest

from truncate_kit.bench.bench_report import Timing
from truncate_kit.bench.gains import costs
from truncate_kit.models import load_encoder
from truncate_kit.models.tail import Dense


def timing(role, scenario, rate):
    return Timing(
        role=role,
        backend="onnx-fp32",
        scenario=scenario,
        batch_size=None,
        length=None,
        sentences=100,
        tokens=1000,
        seconds=(100 / rate,),
        p50_seconds=100 / rate,
        p95_seconds=100 / rate,
        sentences_per_second=rate,
        tokens_per_second=10 * rate,
    )


def test_hours_and_gigabytes_per_billion(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))  # vectors of 16 numbers
    rows = [timing("full", "real set", 1000), timing("lean", "real set", 5000), timing("lean", "latency", 50)]
    full, lean = costs(rows, {"lean": encoder, "full": encoder})
    assert full.hours_per_billion == pytest.approx(277.78, abs=0.01)  # 10⁹ / 1,000 a second = 10⁶ s = 277.78 h
    assert lean.hours_per_billion == pytest.approx(55.56, abs=0.01)
    assert lean.dimensions == 16
    assert lean.gigabytes_per_billion == {"float32": 64, "float16": 32, "int8": 16, "binary": 2}


def test_energy_per_billion_where_a_meter_read_it(tiny_folder):
    row = timing("full", "real set", 1000)
    encoders = {"full": load_encoder(tiny_folder("bert"))}
    (unknown,), (known,) = costs([row], encoders), costs([replace(row, joules=36.0)], encoders)
    assert unknown.kilowatt_hours_per_billion is None
    assert known.kilowatt_hours_per_billion == pytest.approx(100)  # 36 J a call of 100: 3.6e8 J, 3.6e6 a kilowatt hour


def test_the_last_dense_module_says_how_wide_vectors_are(tiny_folder):
    encoder = load_encoder(tiny_folder("bert"))
    encoder.tail.append(Dense(16, 6, bias=True, activation="Tanh"))
    assert encoder.vector_width == encoder.vectors(["a cat"]).shape[1] == 6
