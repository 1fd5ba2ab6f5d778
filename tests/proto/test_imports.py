"""Shared memory and channels are used where neither gRPC nor protobuf may be loaded."""

from __future__ import annotations

import sys

import pytest

from edl.supervise import Command, start

LIST = (
    "import sys, edl.proto.{0}; print('loaded', *sorted({{m.split('.')[0] for m in sys.modules}}))"
)


@pytest.mark.parametrize("module", ["arena", "channel", "allocator", "version"])
def test_light_modules_load_no_wire_libraries(module: str) -> None:
    process = start(Command("imports", (sys.executable, "-P", "-c", LIST.format(module))))
    try:
        loaded = process.expect(r"^loaded (.*)$", timeout_s=60).group(1).split()
    finally:
        process.stop()
    assert "edl" in loaded
    assert not {"grpc", "google", "redis", "paddle"} & set(loaded)
