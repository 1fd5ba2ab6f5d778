"""A teacher as a real process, and a client of it, for tests of both together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest

from edl.coordinator.registry import connect
from edl.coordinator.store.records import Member
from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.arena import Array
from edl.proto.clients import LabelResponse
from edl.proto.security.client_connections import open_channel
from edl.proto.security.credentials import ClientSecurity
from edl.runtime.supervise import Command, Process, python_command, start
from edl.tests.proto.strategies import encoded_request
from edl.tests.waiting import DEADLINE_S

STEERED = "edl.tests.teacher.functions:steered"
#: The same of Paddle, with a second output "logits"; it takes seconds to start.
NETWORK = "edl.tests.teacher.networks:steered"

_numbers = itertools.count(1)


def unique(name: str) -> str:
    """The name of a service that no other test of this worker has."""
    return f"{name}-{next(_numbers)}"


def rows(order: float = 0.0, about: float = 0.5, count: int = 3) -> Array:
    """A batch for `STEERED`; its first number is an order."""
    x = np.full((count, 4), about, dtype=np.float32)
    x[0, 0] = order
    return x


class Teacher:
    """A teacher process that is ready, and a client of it."""

    def __init__(
        self, process: Process, address: str, client: ClientSecurity | None, service: str = "m"
    ) -> None:
        self.process = process
        self.address = address
        self.service = service
        self._channel = open_channel(address, client)

    def ask(self, order: float = 0.0, **request: Any) -> LabelResponse:
        return self.infer({"x": rows(order)}, **request)

    def infer(self, inputs: dict[str, Array], **request: Any) -> LabelResponse:
        data = encoded_request(model_name=self.service, inputs=inputs, **request)
        call = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        return tensors.decode_response(call(data, timeout=DEADLINE_S))

    @property
    def ready(self) -> bool:
        path = "/inference.GRPCInferenceService/ServerReady"
        call = self._channel.unary_unary(path, None, pb.ServerReadyResponse.FromString)
        return bool(call(b"", timeout=DEADLINE_S).ready)

    def told(self, word: str) -> str:
        """The URL behind `word` in its output."""
        (line,) = [line for line in self.process.tail(1000) if line.startswith(f"{word} on ")]
        return line.removeprefix(f"{word} on ")

    def metric(self, sample: str) -> float:
        """The value of a sample, written as Prometheus does: `name{label="value"}`."""
        text = httpx.get(self.told("metrics"), timeout=DEADLINE_S).text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines())
        return float(values[sample])

    def predictor(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def disconnect(self) -> None:
        self._channel.close()


def command(*arguments: str, **env: str) -> Command:
    return python_command("teacher", "edl.teacher", "serve", *arguments, env=env)


@contextmanager
def serving(
    *arguments: str,
    model: str = STEERED,
    service: str = "m",
    client: ClientSecurity | None = None,
    env: Mapping[str, str] | None = None,
    through: Sequence[str] = (),
) -> Iterator[Teacher]:
    """`edl-teacher serve` until the end of the `with`, and a client of it.

    It runs in the surroundings of the command `through`, which executes its arguments.
    """
    whole = command("--model", model, "--service", service, *arguments, **(env or {}))
    process = start(replace(whole, argv=(*through, *whole.argv)))
    with ExitStack() as ending:
        ending.callback(process.stop)
        ready = process.expect(rf"^teacher ready: \S+ {service} on (\S+)$", DEADLINE_S)
        teacher = Teacher(process, ready[1], client, service)
        ending.callback(teacher.disconnect)
        yield teacher


def refusal(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    code: grpc.StatusCode = error.code()
    return code


def members(url: str, service: str = "m") -> list[Member]:
    with closing(connect(url)) as registry:
        return registry.members("teachers", service)
