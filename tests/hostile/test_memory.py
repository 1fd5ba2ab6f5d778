"""Strangers with large messages, at a teacher of its own process: its memory stays what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.proto import tensors
from edl.proto.security import open_channel
from edl.supervise import python_command, start
from edl.tests.hostile.inputs import Input
from edl.tests.hostile.planes import DATA, Code, ends_of
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.fakes import array

LARGE = bytes(64 << 20)
MAX_MESSAGE_BYTES = 256 << 20
#: What a stranger may cost: gRPC takes in some of each message before it is asked for it.
SPARE_BYTES = 32 << 20
CALLS = 4


@pytest.mark.parametrize(
    ("method", "ends"),
    [
        ("ServerLive", Code.OK),
        ("ServerReady", Code.OK),
        ("ServerMetadata", Code.UNAUTHENTICATED),
        ("ModelMetadata", Code.UNAUTHENTICATED),
        ("ModelInfer", Code.UNAUTHENTICATED),
    ],
)
def test_a_stranger_fills_no_memory(tmp_path: Path, method: str, ends: Code) -> None:
    tokens = write_secret(tmp_path / "tokens", "student:resnet s3cret\n")
    teacher = start(
        python_command("teacher", "edl.tests.hostile.guarded_teacher", tokens, MAX_MESSAGE_BYTES)
    )
    try:
        port = teacher.expect(r"^port (\d+)$", 20.0)[1]
        with open_channel(f"127.0.0.1:{port}") as channel:
            small = Input(
                "ModelInfer", tensors.encode_request(model_name="m", inputs={"x": array(1, 4)})
            )
            assert ends_of(channel, DATA, [small])[0][0] is Code.UNAUTHENTICATED
            before = most_bytes(teacher.pid)
            for _ in range(CALLS):
                code, details = ends_of(channel, DATA, [Input(method, LARGE)])[0]
                assert code is ends, details
        assert most_bytes(teacher.pid) - before < SPARE_BYTES
    finally:
        teacher.stop(grace_s=0.0)


def most_bytes(pid: int) -> int:
    """The most that the process ever held in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10
