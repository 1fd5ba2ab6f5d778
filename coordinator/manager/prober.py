"""Probes teachers before they are assigned: each must answer and be the one that registered."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import grpc

from ...proto import inference_pb2 as pb
from ...proto.protocols import OIP
from ...proto.security import instance
from ...proto.security.client_connections import open_channel
from ...proto.security.credentials import ClientSecurity
from ...runtime.errors import AccessError, BadAnswer, EdlError, UsageError
from ...scheduler.admission import TeacherIdentity, identity_address
from ..store.records import Member
from .messages import identity_from


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """The result of a probe.

    Attributes:
        status: "ok": the teacher answers and has proved its identity; "retry": it is refused, but
            the next probe may succeed; "never": it is refused, and not probed again unless it
            registers as another incarnation or at another address.
        why: reason of a refusal, as text; empty if `status` is "ok".
    """

    status: Literal["ok", "retry", "never"]
    why: str = ""


#: Called with the result of a probe.
Done = Callable[[ProbeVerdict], None]


class Prober(Protocol):
    """Probes teachers."""

    def probe(self, service: str, member: Member, done: Done) -> None:
        """Start to probe a teacher, without blocking; `done` is called once, in any thread.

        If an earlier probe of the teacher still waits for its start, only its `done` is called.
        """
        ...


log = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
_ANSWER_S: Final = 2.0
_AT_ONCE: Final = 64
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 1 << 20),
)
#: Fact of our own teachers and of sidecars: the key that proves their identity.
INSTANCE_KEY: Final = "instance_key"
#: Fact of a foreign server: address of the sidecar that registered it and attests it.
SIDECAR: Final = "voucher"
#: Protocols of our own teachers.
_OURS: Final = ("", "oip")
_NOT_OIP: Final = "does not speak the Open Inference Protocol"
_UNPROVEN: Final = (
    "it has no instance key, so its identity cannot be verified: a foreign server needs a sidecar,"
    " 'edl teacher register'"
)
_REFUSALS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class GrpcProber:
    """Probes teachers in its own threads, a limited number at once.

    A teacher has to prove that it holds its instance key, and that it is the incarnation that
    registered. A foreign server has no key. Its sidecar has to prove the same about itself, and
    that it attests the server's address. Then the server has to be ready for requests of
    students.

    It uses threads, not asyncio: gRPC supports only one event loop per process well, and the
    manager's server has that loop.

    Args:
        security: how to call teachers; None: neither TLS nor token.
        answer_s: seconds within which a teacher must answer.
        at_once: maximum number of concurrent probes.
    """

    def __init__(
        self,
        security: ClientSecurity | None = None,
        *,
        answer_s: float = _ANSWER_S,
        at_once: int = _AT_ONCE,
    ) -> None:
        self._security = security
        self._answer_s = answer_s
        self._threads = ThreadPoolExecutor(at_once, "edl-probe")  # started when they are needed
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._users: Counter[str] = Counter()  # address -> probes that use its channel
        self._waiting: set[tuple[str, TeacherIdentity]] = set()  # service and teacher
        self._stopped = False

    def probe(self, service: str, member: Member, done: Done) -> None:
        """Start to probe a teacher, without blocking.

        `done` is called once, in a thread of this object; after `stop`, it is not called. If an
        earlier probe of the teacher still waits for a thread, only its `done` is called: otherwise,
        probes of many unreachable teachers would wait in ever longer queues.
        """
        teacher = service, identity_from(member)
        with self._lock:
            if teacher in self._waiting:
                return
            self._waiting.add(teacher)
        with contextlib.suppress(RuntimeError):  # the threads were stopped
            self._threads.submit(self._probe, service, member, done)

    def stop(self) -> None:
        """Wait for the probes that run, and call no further `done`. Idempotent."""
        self._stopped = True
        self._threads.shutdown(cancel_futures=True)

    # -- in its threads

    def _probe(self, service: str, member: Member, done: Done) -> None:
        with self._lock:
            self._waiting.discard((service, identity_from(member)))
        try:
            verdict = self._verdict(member)
        except Exception as error:  # a bug, or invalid facts in Redis
            log.exception("a probe of teacher %s failed because of a bug", member.member)
            verdict = ProbeVerdict("retry", f"probing it failed: {error!r}")
        if self._stopped:
            return
        if verdict.status != "ok":
            log.debug("service %s: teacher %s: %s", service, member.member, verdict.why)
        try:
            done(verdict)
        except Exception:
            log.exception("the callback of a probe failed")

    def _verdict(self, member: Member) -> ProbeVerdict:
        address = member.facts.get("address", "")
        protocol = member.facts.get("protocol", "")
        sidecar = member.facts.get(SIDECAR, "")
        if not sidecar and protocol not in _OURS:
            return ProbeVerdict(
                "never",
                f"protocol {protocol!r:.40} is only for foreign servers, which need a sidecar",
            )
        prover = identity_address(address, sidecar, has_key=bool(member.facts.get(INSTANCE_KEY)))
        if prover is None:
            return ProbeVerdict("never", _UNPROVEN)
        if not _is_address(prover):
            return ProbeVerdict("never", f"its address {prover!r:.120} is no host:port")
        try:
            with self._channel(prover) as channel:
                verdict = self._prove(channel, prover, member)
        except grpc.RpcError as error:
            return _failed(prover, error)
        except UsageError as error:  # our own certificates or token are wrong
            return ProbeVerdict("retry", f"it cannot be probed: {error}")
        if verdict.status == "ok" and sidecar:
            return self._ready(address, protocol, member.facts.get("model", ""))
        return verdict

    @contextlib.contextmanager
    def _channel(self, address: str) -> Iterator[grpc.Channel]:
        """Yield a channel that concurrent probes of one address share."""
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = open_channel(address, self._security, _OPTIONS)
                self._channels[address] = channel
            self._users[address] += 1
        try:
            yield channel
        finally:
            with self._lock:
                self._users[address] -= 1
                unused = not self._users[address]
                if unused:
                    del self._users[address], self._channels[address]
            if unused:
                channel.close()

    def _prove(self, channel: grpc.Channel, address: str, member: Member) -> ProbeVerdict:
        """Check that the server has the teacher's key and is the incarnation that registered."""
        attested_address = member.facts["address"] if member.facts.get(SIDECAR) else ""
        challenge = instance.new_challenge()
        _, call = _method(channel, "ServerMetadata").with_call(
            pb.ServerMetadataRequest().SerializeToString(),
            timeout=self._answer_s,
            metadata=((instance.CHALLENGE, challenge), (instance.TEACHER_ID, member.member)),
        )
        metadata = {name: str(value) for name, value in call.trailing_metadata() or ()}
        if metadata.get(instance.INCARNATION, "") == str(member.incarnation) and instance.verify(
            member.facts[INSTANCE_KEY],
            member.member,
            member.incarnation,
            challenge,
            metadata.get(instance.PROOF, ""),
            attested_address,
        ):
            return ProbeVerdict("ok")
        return ProbeVerdict(
            "never", f"another server answers at {address}: an impostor or an old address"
        )

    def _ready(self, address: str, protocol: str, model: str) -> ProbeVerdict:
        """Check that a foreign server is ready; use the same client as a student."""
        from ...proto.clients import open_client  # loads numpy, which a manager rarely needs

        try:
            client = open_client(protocol, address, model, self._security)
        except UsageError as error:
            return ProbeVerdict("never", f"it cannot be probed: {error}")
        try:
            client.probe(self._answer_s)
        except AccessError as error:
            return ProbeVerdict("retry", f"{address} refuses the manager's probe: {error}")
        except BadAnswer as error:
            text = f"the server at {address} does not speak protocol {protocol or OIP}: {error}"
            return ProbeVerdict("never", text)
        except EdlError as error:
            return ProbeVerdict("retry", f"the server at {address} is not ready: {error}")
        finally:
            client.close()
        return ProbeVerdict("ok")


def _method(channel: Any, name: str) -> Any:
    # No deserializer: gRPC would log its failure to parse an invalid answer.
    return channel.unary_unary(f"/{_SERVICE}/{name}")


def _failed(address: str, error: grpc.RpcError) -> ProbeVerdict:
    code, details = grpc.StatusCode.UNKNOWN, ""
    if isinstance(error, grpc.Call):
        code, details = error.code(), error.details() or ""
    if code in _REFUSALS:
        return ProbeVerdict("retry", f"{address} refuses the manager's probe: {details}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ProbeVerdict("never", f"the server at {address} {_NOT_OIP}")
    return ProbeVerdict("retry", f"it does not answer at {address} ({details or code.name})")


def _is_address(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and address.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
