"""What is no gRPC at all on the ports of both planes: nobody notices, and nothing stays open."""

from __future__ import annotations

from contextlib import ExitStack

import psutil
import pytest
from hypothesis import strategies as st

from edl.tests.ground.programs import wait_for
from edl.tests.hostile import frames
from edl.tests.hostile.good_client import served_throughout
from edl.tests.hostile.inputs import report
from edl.tests.hostile.planes import CONTROL, DATA, ControlPlane, GoodStudent
from edl.tests.hostile.storm import FRAMES, storm
from edl.tests.teacher.bench import Bench

_KEPT_OPEN = 50


@pytest.mark.parametrize("count", FRAMES)
def test_control_plane(control: ControlPlane, count: int) -> None:
    path, message = f"/{CONTROL}/Status".encode(), b""
    # What is bent is a call that works.
    assert b"grpc-status" in frames.answer(control.address, frames.call(path, message))
    good = GoodStudent(control.address)
    with served_throughout(good):
        strike(control.address, frames.writings(path, report().SerializeToString()), count)
    good.close()
    wait_for(lambda: open_at(control.address) == 0)


@pytest.mark.parametrize("count", FRAMES)
def test_data_plane(data: Bench, count: int) -> None:
    path, message = f"/{DATA}/ModelInfer".encode(), data.request(rows=1)
    assert b"grpc-status" in frames.answer(data.address, frames.call(path, message))
    with served_throughout(lambda: data.infer()):
        strike(data.address, frames.writings(path, message), count)
    data.channel.close()
    wait_for(lambda: open_at(data.address) == 0)


def strike(address: str, writings: st.SearchStrategy[bytes], count: int) -> None:
    """Write all of them, each on a connection of its own, of which the latest stay open a while."""
    with ExitStack() as lingering:
        kept = []

        def hit(batch: list[bytes]) -> None:
            for writing in batch:
                kept.append(frames.write(address, writing))
                lingering.callback(kept[-1].close)
            while len(kept) > _KEPT_OPEN:
                kept.pop(0).close()

        assert storm(writings, count, hit) == count


def open_at(address: str) -> int:
    """Connections that this process holds as the server of `address`."""
    port = int(address.rpartition(":")[2])
    return sum(
        one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED
        for one in psutil.Process().net_connections("tcp")
    )
