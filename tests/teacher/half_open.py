"""A hostile client: opens calls of `ModelInfer`, sends nothing on them, and opens them again.

`python -m edl.tests.teacher.half_open ADDRESS CALLS`; prints "open" once all were open, and goes on
until it is stopped.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio

from edl.supervise import end_with_parent

PATH = "/inference.GRPCInferenceService/ModelInfer"


async def attack(address: str, calls: int) -> None:
    opened = asyncio.Semaphore(0)
    async with grpc.aio.insecure_channel(address) as channel:
        attackers = [asyncio.create_task(hold(channel, opened)) for _ in range(calls)]
        for _ in attackers:
            await opened.acquire()
        print("open", flush=True)
        await asyncio.gather(*attackers)


async def hold(channel: grpc.aio.Channel, opened: asyncio.Semaphore) -> None:
    method: Any = channel.stream_unary(PATH, None, None)
    while True:
        call = method()
        await call.wait_for_connection()
        opened.release()
        await call.code()
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(attack(sys.argv[1], int(sys.argv[2])))
