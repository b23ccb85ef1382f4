"""A program whose `cpuid` is replaced sees the processor without AVX-512."""

import os
import platform
import shutil
import subprocess

import pytest

from benchmarks.encoding.avx2 import SOURCE, replace_cpuid

PROGRAM = r"""
#include <cpuid.h>
#include <stdio.h>
int main(void) {
    unsigned a, b, c, d;
    for (unsigned leaf = 0; leaf < 8; leaf++) {
        __cpuid_count(leaf, 0, a, b, c, d);
        if (leaf != 1) printf("%u %u %u %u\n", a, b, c, d); /* leaf 1 names the core that it runs on */
    }
}
"""
AVX2, AVX512F, VNNI = 1 << 5, 1 << 16, 1 << 11


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not (shutil.which("gcc") and shutil.which("objdump")),
    reason="needs gcc and objdump on x86-64",
)
def test_only_avx512_is_hidden(tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    program, hidden = tmp_path / "program", tmp_path / "hidden.so"
    subprocess.run(["gcc", "-o", program, tmp_path / "program.c"], check=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", hidden, SOURCE], check=True)

    def leaves(**variables):
        lines = subprocess.check_output([program], env=os.environ | variables, text=True).splitlines()
        return [tuple(map(int, line.split())) for line in lines]

    before = leaves()
    replace_cpuid(program)
    after = leaves(LD_PRELOAD=str(hidden))
    assert after[:-1] == before[:-1]
    (_, b, c, _), (_, old_b, _, _) = after[-1], before[-1]
    assert b & AVX2 == old_b & AVX2
    assert (b & AVX512F, c & VNNI) == (0, 0)
