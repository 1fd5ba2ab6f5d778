"""A server in an event loop outlives every path that a call may ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from edl.proto.security import listen
from edl.proto.security.sturdy import aio_server
from edl.tests.hostile.frames import answer, call

TIMEOUT_S = 20.0
#: Of a path: bytes that are no UTF-8, another method, another service, none.
PATHS = [b"/s/\xe8\xfd", b"\xff" * 100, b"/s/other", b"/other/echo", b"/s/echo\x80", b"/", b""]


async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@pytest.mark.parametrize("times", [1, 50])
def test_unknown_paths_are_refused_and_the_others_answered(times: int) -> None:
    unknown: list[None] = []

    async def talk() -> list[Any]:
        methods = {"echo": grpc.stream_stream_rpc_method_handler(echo)}
        server = aio_server("s", methods, on_unknown=lambda: unknown.append(None))
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0')}"
        await server.start()
        try:
            answers: list[Any] = []
            for path in PATHS * times:
                said = await asyncio.to_thread(answer, address, call(path, b""))
                answers.append(b"grpc-status\x0212" in said or said == b"")
            async with grpc.aio.insecure_channel(address) as channel:
                any_channel: Any = channel
                asked = any_channel.stream_stream("/s/echo")(iter([b"a", b"b"]))
                answers.append([said async for said in asked])
            return answers
        finally:
            await server.stop(0)

    answers = asyncio.run(asyncio.wait_for(talk(), TIMEOUT_S))
    assert answers.pop() == [b"a", b"b"]
    assert all(answers)
    assert len(unknown) >= 5 * times


def test_the_remedy_fits_this_grpc(caplog: pytest.LogCaptureFixture) -> None:
    async def make() -> None:
        await aio_server("s", {}).stop(0)

    asyncio.run(make())
    assert "not UTF-8" not in caplog.text
