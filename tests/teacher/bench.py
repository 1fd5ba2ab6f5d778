"""A teacher's server in the test's own process, and a client of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from edl.proto import tensors
from edl.proto.security import ClientSecurity, Gate, open_channel
from edl.teacher.config import ServerConfig
from edl.teacher.front.server import Server
from edl.teacher.identity import Identity
from edl.teacher.metrics import TeacherMetrics
from edl.teacher.servicer import Servicer
from edl.teacher.traffic import Traffic
from edl.tests.teacher.fakes import FakeLabeller, array

WAIT_S = 20.0
SERVICE = "inference.GRPCInferenceService"


class Bench:
    """A server on a free port, of a model that is a function; `config` as of `ServerConfig`."""

    def __init__(self, client: ClientSecurity | None = None, **config: Any) -> None:
        self.identity = Identity("resnet", "t1", 41)
        self.labeller = FakeLabeller()
        self.metrics = TeacherMetrics()
        self.traffic = Traffic(on_labelled=self.metrics.labelled)
        self.server = Server(
            ServerConfig(**{"slots": 2, "max_message_bytes": 1 << 20, **config}),
            Servicer(self.identity, self.labeller, self.traffic),
            Gate(config.get("security"), self.metrics.refused),
            self.metrics,
        )
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self.channel = open_channel(self.address, client)

    def call(self, method: str, request: Any, response: type[Any]) -> Any:
        rpc = self.channel.unary_unary(
            f"/{SERVICE}/{method}", lambda m: m.SerializeToString(), response.FromString
        )
        return rpc(request, timeout=WAIT_S)

    def method(self, name: str = "ModelInfer") -> Any:
        """A method that takes and gives bytes."""
        return self.channel.unary_unary(f"/{SERVICE}/{name}", None, None)

    def infer_bytes(self, data: bytes) -> bytes:
        answer = self.method()(data, timeout=WAIT_S)
        assert isinstance(answer, bytes)
        return answer

    def request(self, rows: int = 3, **request: Any) -> bytes:
        return tensors.encode_request(
            **{"model_name": "resnet", "inputs": {"x": array(rows, 4)}, **request}
        )

    def infer(self, rows: int = 3, **request: Any) -> tensors.InferResponse:
        return tensors.decode_response(self.infer_bytes(self.request(rows, **request)))

    def count(self, name: str, **labels: str) -> float:
        """A metric as it stands."""
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None, f"no metric {name} {labels}"
        return value

    def refused(self, reason: str) -> float:
        return self.count("edl_teacher_refused_total", reason=reason)

    def close(self) -> None:
        self.channel.close()
        self.server.stop(0)


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()
