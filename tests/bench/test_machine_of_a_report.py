"""What a report says of the machine."""

import sys
import types

import pytest
import torch

from truncate_kit.bench import machine


@pytest.mark.parametrize(("loaded", "version"), [(None, "1.30.0"), ("1.31.1", "1.31.1")])
def test_the_onnx_runtime_that_ran_is_named_where_two_are_installed(loaded, version, monkeypatch):
    """`onnxruntime` and `onnxruntime-gpu` install into one folder: the last one written runs, both have a version."""
    monkeypatch.setattr(machine, "installed_version", {"onnxruntime": "1.30.0", "transformers": "5.23.0"}.get)
    module = None if loaded is None else types.SimpleNamespace(__version__=loaded)
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    found = machine.describe_machine(torch.device("cpu"), threads=1, others_busy=None)
    assert found.onnxruntime == version
