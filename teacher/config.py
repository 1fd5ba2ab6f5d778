"""The settings of a teacher, one dataclass for each concern; `cli.py` fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import UsageError
from ..proto.security import ServerSecurity
from .model import TensorSpec


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """How the model is run: what the predictor process is started with.

    Attributes:
        model: path of an exported model, or `module:function`.
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        micro_batch: samples of one run; a request is cut into runs of this size. 4 to 8 is where
            Paddle is fastest on CPUs.
        inputs: inputs as the user declares them, where the model says less.
    """

    model: str
    device: str = "cpu"
    threads: int = 1
    micro_batch: int = 8
    inputs: tuple[TensorSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.threads < 1 or self.micro_batch < 1:
            raise UsageError(
                f"threads and micro-batch must be at least 1, got {self.threads} and "
                f"{self.micro_batch}"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "device": self.device,
            "threads": self.threads,
            "micro_batch": self.micro_batch,
            "inputs": [tensor.to_json() for tensor in self.inputs],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        inputs = tuple(TensorSpec.from_json(tensor) for tensor in value["inputs"])
        return cls(**{**value, "inputs": inputs})


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The socket side.

    Attributes:
        host: address to bind.
        port: 0 takes a free one.
        slots: requests that wait for the model or run in it at once; one more is refused.
        max_message_bytes: of one request or answer.
        max_calls: open at once, those included that have not sent their request yet.
        max_calls_per_peer: of one caller at one address.
        receive_s: seconds that a request may take to arrive, from the beginning of its call.
        security: certificates, and tokens that are let in; None: nobody is asked who calls.
    """

    host: str = "127.0.0.1"
    port: int = 0
    slots: int = 4
    max_message_bytes: int = 256 << 20
    max_calls: int = 256
    max_calls_per_peer: int = 64
    receive_s: float = 10.0
    security: ServerSecurity | None = None

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise UsageError(f"slots must be at least 1, got {self.slots}")
        if min(self.max_calls, self.max_calls_per_peer) < 1:
            raise UsageError(
                f"a server that takes no calls serves nobody: got {self.max_calls} in all and "
                f"{self.max_calls_per_peer} of one client"
            )
        if not 0.1 <= self.receive_s <= 3600:
            raise UsageError(
                f"a request takes 0.1 to 3600 seconds to arrive, not {self.receive_s:g}"
            )


@dataclass(frozen=True, slots=True)
class TeacherConfig:
    """One teacher.

    Attributes:
        service: the name that students ask for; also the model's name on the wire.
        predictor: how the model is run.
        server: the socket side.
        coordinator: Redis URL of the mesh; None serves alone.
        teacher_id: unique within the service; None takes the address.
        advertise: HOST or HOST:PORT that others reach this teacher at; None takes what is bound.
        ttl_s: seconds without a heartbeat after which it counts as gone.
        grace_s: seconds that a drain may take.
        metrics_listen: "PORT" or "HOST:PORT" for Prometheus; None: no metrics.
        insecure: let metrics be read from other machines though nobody is asked who reads.
    """

    service: str
    predictor: PredictorConfig
    server: ServerConfig = field(default_factory=ServerConfig)
    coordinator: str | None = None
    teacher_id: str | None = None
    advertise: str | None = None
    ttl_s: float = 6.0
    grace_s: float = 30.0
    metrics_listen: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if not 0.1 <= self.ttl_s <= 3600:
            raise UsageError(f"a TTL is between 0.1 and 3600 seconds, not {self.ttl_s:g}")
        if not 0 <= self.grace_s <= 86_400:
            raise UsageError(f"a grace period is 0 to 86,400 seconds, not {self.grace_s:g}")
