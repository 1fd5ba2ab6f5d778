"""The allocator keeps big buffers once it is told to, which a process's page faults show."""

from __future__ import annotations

import platform

import pytest

from edl.proto.allocator import tune_allocator
from edl.supervise import start
from edl.tests.ground.programs import WAIT_S, python

#: Page faults of filling and freeing 16 MB ten times, after the first time.
PROGRAM = """
    import resource, sys
    from edl.proto.allocator import tune_allocator
    if sys.argv[1] == "tuned":
        assert tune_allocator()
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x") * (16 << 20)
    before = faults()
    for _ in range(10):
        bytearray(b"x") * (16 << 20)
    print(faults() - before)
"""

glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def faults(how: str) -> int:
    process = start(python(PROGRAM, how))
    try:
        assert process.wait(WAIT_S) == 0, process.tail()
    finally:
        process.stop()
    return int(process.tail(1)[0])


@glibc_only
def test_a_tuned_process_does_not_fetch_the_same_pages_again_and_again() -> None:
    pages = 10 * (16 << 20) // 4096
    assert faults("tuned") < pages / 100
    assert faults("untouched") > pages / 100


def test_it_says_where_it_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert tune_allocator() is False
