"""Measure the table of run.py without AVX-512: in each runtime, `cpuid` answers that the processor has none.

    python -m benchmarks.encoding.avx2 OPTIONS_OF_RUN

torch obeys variables. ONNX Runtime and OpenVINO do not: in copies of their libraries each `cpuid` becomes an undefined
instruction, whose signal hide_avx512.c answers. Needs gcc and objdump.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from site import getsitepackages

from benchmarks.common import new_parser
from truncate_kit.core.hardware import INSTRUCTIONS, instructions

SOURCE = Path(__file__).with_name("hide_avx512.c")
LIBRARIES = (
    "onnxruntime/capi/onnxruntime_pybind11_state*.so",
    "openvino/libs/libopenvino.so*",
    "openvino/libs/libopenvino_intel_cpu_plugin.so",
)
PARSER = new_parser(__doc__)
CPUID, UNDEFINED = b"\x0f\xa2", b"\x0f\x0b"


def replace_cpuid(library: Path) -> None:
    """Replace each `cpuid` of a library, in place."""
    code = bytearray(library.read_bytes())
    listed = subprocess.check_output(["objdump", "-d", "-F", "--no-show-raw-insn", library], text=True)
    offset = 0  # of the file, minus the address
    for line in listed.splitlines():
        if start := re.match(r"([0-9a-f]+) <.*\(File Offset: (0x[0-9a-f]+)\)", line):
            offset = int(start[2], 16) - int(start[1], 16)
        elif line.rstrip().endswith("\tcpuid"):
            place = int(line.split(":")[0], 16) + offset
            assert code[place : place + 2] == CPUID
            code[place : place + 2] = UNDEFINED
    library.write_bytes(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark on the copies."""
    _, options = PARSER.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        hidden, copies = Path(scratch) / "hidden.so", Path(scratch) / "copies"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", hidden, SOURCE], check=True)
        for pattern in LIBRARIES:
            package = pattern.split("/")[0]
            if not (copies / package).exists():
                shutil.copytree(Path(getsitepackages()[0]) / package, copies / package)
            for library in copies.glob(pattern):
                replace_cpuid(library)
        others = (name for name in instructions() if not name.startswith(("avx512", "avx_vnni", "amx")))
        masked = {"LD_PRELOAD": str(hidden), "PYTHONPATH": str(copies), INSTRUCTIONS: " ".join(others)}
        masked |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        command = [sys.executable, "-m", "benchmarks.encoding.run", *options]
        raise SystemExit(subprocess.call(command, env=os.environ | masked))


if __name__ == "__main__":
    main()
