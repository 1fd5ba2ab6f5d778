"""What processes that pass data or settings on load, and how they allocate memory."""

from __future__ import annotations

import platform
from textwrap import dedent

import pytest

from edl.proto.arena import tune_allocator
from edl.runtime.supervise import start
from edl.tests.runtime.programs import WAIT_S, python

pytestmark = pytest.mark.system

SETTINGS = """
    import pathlib
    from edl.proto.dataclass_json import from_plain, to_plain
    from edl.proto.security.access_control import AccessControl
    from edl.proto.security.client_connections import open_channel
    from edl.proto.security.credentials import ClientSecurity, TlsFiles
    from_plain(ClientSecurity, to_plain(ClientSecurity(TlsFiles(ca=pathlib.Path("x")))))
"""
#: Page faults of filling and freeing 16 MB ten times, after the first time.
FAULTS = """
    import resource, sys
    from edl.proto.arena import tune_allocator
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


def printed(code: str, *args: str) -> str:
    process = start(python(code, *args))
    assert process.wait(WAIT_S) == 0, process.tail()
    return process.tail(1)[0]


@pytest.mark.parametrize(
    "code",
    [
        *(f"import edl.{name}\n" for name in ("proto.arena", "proto.channel", "proto.protocols")),
        "import edl.student, edl.teacher\n",
        SETTINGS,
    ],
    ids=["arena", "channel", "protocols", "student and teacher", "settings"],
)
def test_light_modules_load_no_wire_libraries(code: str) -> None:
    loaded = "import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    names = set(printed(dedent(code) + loaded).split())
    assert "edl" in names
    assert not {"grpc", "google", "redis", "typer", "paddle"} & names


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_tuned_process_does_not_fetch_the_same_pages_again_and_again() -> None:
    pages = 10 * (16 << 20) // 4096
    assert int(printed(FAULTS, "tuned")) < pages / 100
    assert int(printed(FAULTS, "untouched")) > pages / 100


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert tune_allocator() is False
