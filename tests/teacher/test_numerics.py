"""What of a machine decides bits is read from the kernel, in one word."""

from __future__ import annotations

from pathlib import Path

from edl.teacher.numerics import instruction_set

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
flags\t\t: fpu sse4_1 avx2 avx512f rdtscp fma

processor\t: 1
vendor_id\t: AuthenticAMD
flags\t\t: fpu
"""


def test_the_decisive_flags_are_named_in_order_and_no_others(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO)
    word = instruction_set(file)
    assert word.endswith(",AuthenticAMD,avx2,avx512f,fma,sse4_1")
    file.write_text(CPUINFO.replace("avx512f ", ""))
    assert instruction_set(file) != word


def test_without_proc_the_architecture_is_what_is_known(tmp_path: Path) -> None:
    assert instruction_set(tmp_path / "nope") == instruction_set(tmp_path / "nope")
    assert "," not in instruction_set(tmp_path / "nope")
