"""The place of a foreign server in the registry: taken, given up, left; and what it says there.

Service managers are answered in the server's place who has registered it: by a few methods of the
Open Inference Protocol, so that what asks our teachers who they are can ask here too. There is no
model behind it: batches go to the server itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc

from ... import __version__
from ...coordinator.heartbeat import Heartbeat
from ...coordinator.registry import Registry
from ...errors import EdlError, LeaseSuperseded, RetryableError, UsageError
from ...lifecycle import Stop
from ...proto import inference_pb2 as pb
from ...proto.datatypes import FREE, TensorSpec, datatype_of
from ...proto.security import Gate, ServerSecurity, listen
from ...proto.status import to_status
from ..registration import Identity, advertised, kinds_fact, new_incarnation, split
from ..self_test import Canary
from .config import RegisterConfig
from .trial import TrialResult

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
#: A question and its answer are a few hundred bytes.
_MAX_BYTES: Final = 1 << 16
_AT_ONCE: Final = 64
_THREADS: Final = 4


class AttestationServer:
    """Serves at `address` until `stop`.

    Args:
        address: host:port to bind; port 0 is any.
        security: who may ask.

    Attributes:
        identity: as what the server stands in the registry now; None: it does not stand there.
        port: that was bound.

    Raises:
        UsageError: a file of `security` cannot be used.
        AddressInUse: another process listens there.
    """

    def __init__(self, address: str, security: ServerSecurity | None) -> None:
        self.identity: Identity | None = None
        self._gate = Gate(security)
        self._threads = ThreadPoolExecutor(_THREADS, "edl-voucher")
        self._server = grpc.server(
            self._threads,
            options=[("grpc.max_receive_message_length", _MAX_BYTES), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_AT_ONCE,
        )
        methods = {
            "ServerLive": _anybody(lambda: pb.ServerLiveResponse(live=True)),
            "ServerReady": _anybody(
                lambda: pb.ServerReadyResponse(ready=self.identity is not None)
            ),
            "ServerMetadata": grpc.unary_unary_rpc_method_handler(self._metadata),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, methods),)
        )
        self.port = listen(self._server, address, security, self._gate)
        self._server.start()

    def stop(self) -> None:
        """Let go of the port. Idempotent."""
        self._server.stop(0).wait()
        self._threads.shutdown()

    def _metadata(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        asked = {name: str(value) for name, value in context.invocation_metadata() or ()}
        identities: Any = context.auth_context()
        try:
            self._gate.admit(context.invocation_metadata(), identities, context.peer())
            if (identity := self.identity) is None:
                raise RetryableError("the server that is vouched for here does not answer well now")
            context.set_trailing_metadata(identity.proof(asked))
        except EdlError as error:
            context.abort(*to_status(error))
        said = pb.ServerMetadataResponse(name="edl-teacher-register", version=__version__)
        return said.SerializeToString()


def _anybody(answer: Callable[[], Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """These tell nothing but that somebody is here, and load balancers have no token."""

    def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
        message: bytes = answer().SerializeToString()
        return message

    return grpc.unary_unary_rpc_method_handler(serve)


#: Managers and students hear within so many seconds that a teacher leaves, and send elsewhere.
LEAVE_S: Final = 2.0


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


@dataclass(slots=True, eq=False)
class RegisteredServer:
    """One server's place; each time that it is taken it is that of a new life.

    Attributes:
        config: which server, and what students are told of its model.
        attestation: answers managers for as long as the place is held.
        registry: where it is.
        stop: once it is requested, calls that Redis does not answer are not repeated.
        on_superseded: somebody else has registered under the same id.
        on_drain: an administrator wants it to leave.
    """

    config: RegisterConfig
    attestation: AttestationServer
    registry: Registry
    stop: Stop
    on_superseded: Callable[[LeaseSuperseded], None]
    on_drain: Callable[[], None]
    _heartbeat: Heartbeat | None = None
    _draining: bool = False

    def take(self, shown: TrialResult) -> None:
        """Register, and go on to beat.

        Raises:
            RegistryUnavailable: Redis does not answer.
            AccessError: it does not let us.
            LeaseSuperseded: somebody else holds the id.
        """
        config = self.config
        incarnation = new_incarnation(self.registry, self.stop)
        identity = Identity(config.service, config.member, incarnation, vouched=config.address)
        heartbeat = Heartbeat(
            self.registry,
            "teachers",
            config.service,
            config.member,
            lambda: self._facts(identity, shown),
            config.ttl_s,
            on_superseded=self.on_superseded,
            on_drain=self.on_drain,
        )
        self.attestation.identity = identity  # before any manager can ask
        try:
            heartbeat.start()
        except BaseException:
            self.attestation.identity = None
            raise
        self._heartbeat = heartbeat

    def give_up(self, why: str) -> None:
        """As a teacher that has died: nobody is to wait for what it has, nor to believe it."""
        self.attestation.identity = None
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.give_up(f"taken out by its sidecar: {why}")

    def drain(self) -> None:
        """Have students send elsewhere, and leave once the word has got round.

        Who works at the server is not known here, and goes on there: only the lease ends.
        """
        if self._heartbeat is not None:
            self._draining = True
            self._heartbeat.update()
            time.sleep(min(LEAVE_S, self.config.grace_s))
        self.leave()

    def leave(self) -> None:
        """End the lease now, if there is one. Idempotent."""
        self.attestation.identity = None
        if self._heartbeat is not None:
            self._heartbeat.stop(leave=True)

    def _facts(self, identity: Identity, shown: TrialResult) -> dict[str, str]:
        config = self.config
        place = config.address.rpartition("://")[2].partition("/")[0]
        return {
            "incarnation": str(identity.incarnation),
            "address": config.address,
            "protocol": config.protocol,
            "content_id": config.content_id,
            "verified": shown.verified,
            "device": config.device,
            "state": "draining" if self._draining else "serving",
            "slots": str(config.slots),
            "lanes": "1",
            "t_t_seconds": f"{shown.t_t_s:.2g}",
            "model": config.model,
            "inputs": " ".join(map(str, config.inputs)),
            "output_kinds": kinds_fact(shown.kinds),
            "host": split(place)[0],
            "version": __version__,
            "voucher": advertised(config.host, config.advertise, self.attestation.port),
            "instance_key": identity.key,
        }
