"""Settings of the process that registers a foreign server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...coordinator.config import join_address
from ...errors import UsageError
from ...proto.datatypes import FREE, TensorSpec, datatype_of
from ...proto.protocols import OIP
from ...proto.security import ClientSecurity, ServerSecurity
from ...scheduler.admission import Patience
from ..self_test import Canary


@dataclass(frozen=True, slots=True)
class RegisterConfig:
    """What is registered, and how.

    Attributes:
        service: what students ask for.
        endpoint: where students dial the server: grpc://, http:// or https://host:port; host:port
            alone is the first of these that answers.
        model: its name at the server.
        content_id: of the model, as its operator declares it; empty: that of the canary.
        coordinator: Redis URL of the mesh.
        protocol: which the server speaks.
        canary: file of samples and what the model answered when it was known to be good.
        inputs: what the model takes, where its server does not say, or leaves dimensions free.
        rows: samples of a batch that tests and measures it, where there is no canary.
        slots: requests that students may have at it at once.
        device: what it runs on, in words for people.
        teacher_id: unique within the service; empty: the endpoint.
        ttl_s: seconds without a heartbeat after which it counts as gone.
        grace_s: most seconds between the word that it leaves and its leave.
        timeout_s: seconds that it has to label a batch of a test.
        patience: how often it is looked at, and how long its silence is borne.
        host: address to bind, where managers ask who has registered it.
        port: 0 takes a free one.
        advertise: HOST or HOST:PORT at which managers reach that; None: `host`.
        client: how to prove to the server who calls, as students do.
        server: who may ask at `host`.

    Raises:
        UsageError: something that cannot be.
    """

    service: str
    endpoint: str
    model: str
    content_id: str
    coordinator: str
    protocol: str = OIP
    canary: Path | None = None
    inputs: tuple[TensorSpec, ...] = ()
    rows: int = 8
    slots: int = 4
    device: str = "foreign"
    teacher_id: str = ""
    ttl_s: float = 6.0
    grace_s: float = 30.0
    timeout_s: float = 30.0
    patience: HealthCheckSettings = field(default_factory=HealthCheckSettings)
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    client: ClientSecurity | None = None
    server: ServerSecurity | None = None

    def __post_init__(self) -> None:
        if not self.content_id and self.canary is None:
            raise UsageError(
                "which content does it serve? Name its id by --content, as 'edl teacher"
                " fingerprint' prints it, or a canary of it by --canary"
            )
        numbers: Mapping[str, float] = {
            "rows": self.rows, "slots": self.slots, "ttl": self.ttl_s, "timeout": self.timeout_s,
        }  # fmt: skip
        for name, value in numbers.items():
            if not value > 0:
                raise UsageError(f"--{name} must be above 0, not {value:g}")

    @property
    def address(self) -> str:
        """The endpoint as it stands in the registry: gRPC's without its scheme."""
        return self.endpoint.removeprefix("grpc://")

    @property
    def member(self) -> str:
        """The teacher's id."""
        return self.teacher_id or self.address

    @property
    def listen(self) -> str:
        """Where managers are answered, as it is bound."""
        return join_address(self.host, self.port)


def with_canary(config: RegisterConfig, canary: Canary | None) -> RegisterConfig:
    """`config` with what students are told of the model where its operator does not say it.

    Raises:
        UsageError: the name of an input holds blanks.
    """
    if canary is not None:
        sampled = tuple(
            TensorSpec(name, datatype_of(array.dtype), (FREE, *array.shape[1:]))
            for name, array in canary.inputs.items()
        )
        content_id, inputs = config.content_id or canary.content_id, config.inputs or sampled
        config = replace(config, content_id=content_id, inputs=inputs)
    for tensor in config.inputs:  # they are told with blanks between them
        if any(letter.isspace() for letter in tensor.name):
            raise UsageError(f"the name of input {tensor.name!r} must hold no blanks")
    return config
