"""A process that only passes settings on loads no gRPC."""

from __future__ import annotations

import sys

from edl.supervise import Command, start

PROGRAM = """
import sys, pathlib
from edl.proto.security import ClientSecurity, Gate, TlsFiles, open_channel
ClientSecurity.from_json(ClientSecurity(TlsFiles(ca=pathlib.Path('x'))).to_json())
print('loaded', *sorted({m.split('.')[0] for m in sys.modules}))
"""


def test_settings_load_no_wire_libraries() -> None:
    process = start(Command("settings", (sys.executable, "-P", "-c", PROGRAM)))
    try:
        loaded = process.expect(r"^loaded (.*)$", timeout_s=60).group(1).split()
    finally:
        process.stop()
    assert "edl" in loaded
    assert not {"grpc", "google", "redis", "typer"} & set(loaded)
