"""What the processor can do, asked for in one place that can be set for another processor."""

import subprocess
import sys

import pytest
import torch

from truncate_kit.core.errors import DeviceError
from truncate_kit.core.hardware import (
    INSTRUCTIONS,
    bf16_instructions,
    check_precision,
    core_quota,
    has_avx512,
    instructions,
    int8_instructions,
)
from truncate_kit.training.loop import onednn_pays

CPU = torch.device("cpu")
SERVER = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512_vnni,avx512_bf16"


@pytest.mark.parametrize(
    ("flags", "bf16", "int8", "wide"),
    [("", None, None, False), ("avx2", None, None, False), (SERVER, "avx512_bf16", "avx512_vnni", True)],
)
def test_another_processor_is_set_by_one_variable(flags, bf16, int8, wide, monkeypatch):
    monkeypatch.setenv(INSTRUCTIONS, flags)
    assert instructions() == frozenset(flags.split(",")) - {""}
    assert (bf16_instructions(CPU), int8_instructions(), has_avx512()) == (bf16, int8, wide)
    code = "from truncate_kit.core.hardware import int8_instructions; print(int8_instructions())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(int8)


def test_the_precisions_that_need_instructions_are_refused_without_them(monkeypatch):
    monkeypatch.setenv(INSTRUCTIONS, "avx2")
    for precision in ("fp32", "tf32", "fp16", "int8"):
        check_precision(precision, CPU)
    with pytest.raises(DeviceError, match=r"This processor has no bf16 instructions\."):
        check_precision("bf16", CPU)
    assert not onednn_pays()
    monkeypatch.setenv(INSTRUCTIONS, SERVER)
    check_precision("bf16", CPU)


def test_a_quota_is_read_as_the_kernel_writes_it(tmp_path):
    file = tmp_path / "cpu.max"
    for text, cores in (("max 100000\n", None), ("150000 100000\n", 1.5), ("nonsense\n", None)):
        file.write_text(text)
        assert core_quota(file) == cores
    assert core_quota(tmp_path / "none") is None
