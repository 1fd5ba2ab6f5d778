"""`edl teacher register` as a real process beside a server that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edl.supervise import Process, python_command, start
from edl.tests.interop.programs.network import MODEL

#: The factory of the tiny model, as our own teachers are told of it.
FACTORY = "edl.tests.interop.programs.network:teacher"
START_S = 60.0
TTL_S = 2.0


@contextmanager
def registered(
    name: str, address: str, redis: str, canary: Path, *options: str
) -> Iterator[Process]:
    """A sidecar that has registered the server at `address` as the teacher `name`."""
    flags = {
        "--service": MODEL,
        "--endpoint": address,
        "--model": MODEL,
        "--coordinator": redis,
        "--canary": canary,
        "--teacher-id": name,
        "--ttl": TTL_S,
        "--every": 0.2,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    words += options
    sidecar = start(python_command(f"sidecar of {name}", "edl", "teacher", "register", *words))
    try:
        sidecar.expect(rf"^teacher registered: {name} {MODEL} at .*canary", START_S)
        yield sidecar
    finally:
        sidecar.stop()


def write_canary(file: Path) -> Path:
    """What the model answers where it is known to be good: here."""
    command = python_command("canary", "edl", "teacher", "fingerprint", FACTORY, "--canary", file)
    process = start(command)
    assert process.wait(START_S) == 0, process.tail()
    return file
