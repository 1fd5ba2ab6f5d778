"""Settings of a sidecar, which registers a foreign server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ...proto.datatypes import FREE, TensorSpec, datatype_of
from ...proto.protocols import OIP
from ...proto.security.credentials import ClientSecurity, ServerSecurity
from ...runtime.errors import UsageError
from ...scheduler.admission import HealthCheckSettings
from ..self_test import Canary


@dataclass(frozen=True, slots=True)
class RegisterConfig:
    """Which server to register, and how.

    Attributes:
        service: the name that students ask for.
        endpoint: the address of the server for students: grpc://, http:// or https://host:port.
            With host:port alone, gRPC is tried first, then HTTP.
        model: its name at the server.
        content_id: of the model, as declared by the operator; empty for the canary's content_id.
        coordinator: Redis URL of the mesh.
        protocol: protocol of the server, a name in `proto.protocols`.
        canary: file with samples and known good answers.
        inputs: specs of the model's inputs, if the server does not state them or leaves dimensions
            free.
        rows: samples of a test batch without a canary.
        slots: requests that students may have in flight at the server.
        device: description of its device, for people.
        teacher_id: unique within the service; empty for the endpoint.
        ttl_s: seconds without a heartbeat after which the teacher counts as gone.
        grace_s: the longest time, in seconds, between announcing the leave and leaving.
        timeout_s: seconds for the server to label a test batch.
        health_check: how often the server is probed.
        host: address to bind for managers.
        port: port to bind for managers; 0 takes a free port.
        advertise: HOST or HOST:PORT at which managers reach the sidecar; None for `host`, or for
            this machine's name if `host` is a wildcard.
        client: credentials that the sidecar shows to the server, as students do.
        server: security of the sidecar's own server.

    Raises:
        UsageError: invalid settings.
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
    health_check: HealthCheckSettings = field(default_factory=HealthCheckSettings)
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    client: ClientSecurity | None = None
    server: ServerSecurity | None = None

    def __post_init__(self) -> None:
        if not self.content_id and self.canary is None:
            raise UsageError(
                "the content of the server's model is not declared: name its content_id by"
                " --content, as 'edl teacher fingerprint' prints it, or a canary by --canary"
            )
        if not self.ttl_s > 0:  # NaN is not
            raise UsageError(f"--ttl must be above 0, not {self.ttl_s:g}")

    @property
    def address(self) -> str:
        """The endpoint as it is registered: without grpc://."""
        return self.endpoint.removeprefix("grpc://")

    @property
    def member(self) -> str:
        """The teacher's id."""
        return self.teacher_id or self.address


def with_canary(config: RegisterConfig, canary: Canary | None) -> RegisterConfig:
    """Return `config` with the canary's content and inputs, unless the operator declared them.

    Raises:
        UsageError: the name of an input contains blanks.
    """
    if canary is not None:
        sampled = tuple(
            TensorSpec(name, datatype_of(array.dtype), (FREE, *array.shape[1:]))
            for name, array in canary.inputs.items()
        )
        content_id, inputs = config.content_id or canary.content_id, config.inputs or sampled
        config = replace(config, content_id=content_id, inputs=inputs)
    for tensor in config.inputs:  # blanks separate them in the registry
        if any(letter.isspace() for letter in tensor.name):
            raise UsageError(f"the name of input {tensor.name!r} must hold no blanks")
    return config
