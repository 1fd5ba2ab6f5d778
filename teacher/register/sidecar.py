"""The sidecar of a foreign server: registers it while it answers well, and attests it to managers.

A manager challenges the sidecar, which proves that it has registered the server's address. The
sidecar has a few methods of the Open Inference Protocol, so managers challenge it as they challenge
our teachers. Then the manager asks the server itself whether it is ready. Batches go to the server.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import grpc

from ... import __version__
from ...coordinator.heartbeat import Heartbeat
from ...coordinator.registry import Registry, connect
from ...coordinator.registry.schema import check_member, check_service
from ...proto import inference_pb2 as pb
from ...proto.clients import open_client
from ...proto.protocols import OIP
from ...proto.security.access_control import AccessControl
from ...proto.security.credentials import ServerSecurity
from ...proto.security.servers import listen
from ...proto.status import to_status
from ...runtime.addresses import join_address
from ...runtime.errors import (
    AccessError,
    BadAnswer,
    EdlError,
    ModelError,
    RetryableError,
    TeacherLost,
    UnavailableError,
    UsageError,
)
from ...runtime.lifecycle import Stop
from ...scheduler.admission import (
    CheckMode,
    CheckResult,
    RegistryAction,
    ServerHealth,
    after_check,
    next_check,
    registration_failed,
)
from ..identity import InstanceIdentity, advertised, kinds_fact, new_incarnation, split_address
from ..self_test import Canary
from .config import RegisterConfig, with_canary
from .server_check import ServerTest, ServerTestResult

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
#: Requests and answers have a few hundred bytes.
_MAX_BYTES: Final = 1 << 16
_CONCURRENT_CALLS: Final = 64
_THREADS: Final = 4


class AttestationServer:
    """Answers managers at `address` until `stop`.

    Args:
        address: host:port to bind; port 0 takes a free one.
        security: credentials, and accepted callers.

    Attributes:
        identity: of the registered server; None while it is not registered.
        port: the bound port.

    Raises:
        UsageError: a file of `security` cannot be used.
        AddressInUse: another process listens there.
    """

    def __init__(self, address: str, security: ServerSecurity | None) -> None:
        self.identity: InstanceIdentity | None = None
        self._access = AccessControl(security)
        self._threads = ThreadPoolExecutor(_THREADS, "edl-attestation")
        self._server = grpc.server(
            self._threads,
            options=[("grpc.max_receive_message_length", _MAX_BYTES), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=_CONCURRENT_CALLS,
        )
        methods = {
            "ServerLive": _unauthenticated_handler(lambda: pb.ServerLiveResponse(live=True)),
            "ServerReady": _unauthenticated_handler(
                lambda: pb.ServerReadyResponse(ready=self.identity is not None)
            ),
            "ServerMetadata": grpc.unary_unary_rpc_method_handler(self._metadata),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, methods),)
        )
        self.port = listen(self._server, address, security, self._access)
        self._server.start()

    def stop(self) -> None:
        """Close the port. Idempotent."""
        self._server.stop(0).wait()
        self._threads.shutdown()

    def _metadata(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
        identities: Any = context.auth_context()
        try:
            self._access.admit(context.invocation_metadata(), identities, context.peer())
            if (identity := self.identity) is None:
                raise RetryableError("the server that this sidecar attests does not answer well")
            context.set_trailing_metadata(identity.proof(metadata))
        except EdlError as error:
            context.abort(*to_status(error))
        response = pb.ServerMetadataResponse(name="edl-teacher-register", version=__version__)
        return response.SerializeToString()


def _unauthenticated_handler(answer: Callable[[], Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler of a probe without authentication: load balancers have no token."""

    def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
        message: bytes = answer().SerializeToString()
        return message

    return grpc.unary_unary_rpc_method_handler(serve)


#: Timeout of a probe for the protocol of an endpoint, in seconds.
_ANSWER_S: Final = 2.0


def resolve_endpoint(
    config: RegisterConfig, stop: Stop, on_progress: Callable[[str], None]
) -> RegisterConfig | None:
    """Find out whether a server of the Open Inference Protocol speaks gRPC or HTTP.

    Waits until the server answers, and returns `config` with the scheme in its endpoint. gRPC is
    tried first, as it is faster. If the endpoint has a scheme, or the protocol is a different one,
    `config` is returned unchanged, at once.

    Returns:
        None if `stop` was requested before the server answered.

    Raises:
        UsageError: the endpoint is invalid, or a file of credentials cannot be used.
    """
    if "://" in config.endpoint or config.protocol != OIP:
        return config
    reported = ""
    while not stop.requested:
        problems: list[str] = []
        for endpoint in (f"grpc://{config.endpoint}", f"http://{config.endpoint}"):
            if (problem := _protocol_problem(config, endpoint)) is None:
                return replace(config, endpoint=endpoint)
            problems.append(f"{endpoint}: {problem}")
        where = f"{config.model} at {config.endpoint}"
        if (text := f"{where} is not registered: {'; '.join(problems)}") != reported:
            reported = text
            on_progress(text)
        stop.wait(config.health_check.every_s)
    return None


def _protocol_problem(config: RegisterConfig, endpoint: str) -> str | None:
    """Return why no server at `endpoint` speaks the protocol; None if a server does."""
    try:
        client = open_client(config.protocol, endpoint, config.model, config.client)
    except UsageError as error:
        # Credentials are not sent over plain HTTP. A later attempt by gRPC may still succeed.
        if endpoint.startswith("http://"):
            return str(error)
        raise
    try:
        client.probe(_ANSWER_S)
    except (TeacherLost, BadAnswer) as error:
        return str(error)
    except EdlError:  # not ready, or no access: the test reports that
        return None
    finally:
        client.close()
    return None


log = logging.getLogger(__name__)

#: Seconds within which managers and students notice that a teacher leaves.
LEAVE_S: Final = 2.0
#: Timeout of a probe whether the server is ready, in seconds.
PROBE_S: Final = 2.0

Reporter = Callable[[str], None]


def register(
    config: RegisterConfig, stop: Stop, *, on_ready: Reporter, on_progress: Reporter
) -> None:
    """Keep a foreign server registered while it answers well, until `stop` is requested.

    Names, canary, registry and port are checked first. Then this function waits until the server
    answers well.

    Args:
        config: the server.
        stop: requests the end.
        on_ready: called with one line each time the server is registered.
        on_progress: called with findings, in words.

    Raises:
        UsageError: the service, the id, the endpoint or a file cannot be used; the inputs of the
            server's model are unknown or invalid; or the server is a teacher of ours.
        ModelError: the canary cannot be read, or is of another content.
        RedisUnavailable: Redis does not answer at the start. Later this function tries again.
        AccessError: Redis refuses the user or password of its URL at the start.
        AddressInUse: another process listens on the port.
        LeaseSuperseded: another process has registered under the same id.
    """
    open_client(config.protocol, config.address, config.model, config.client).close()
    check_service(config.service)
    check_member("teachers", config.member)
    canary = None if config.canary is None else Canary.load(config.canary)
    if canary is not None and config.content_id:
        try:
            canary.check_content(config.content_id)
        except ModelError as error:
            raise ModelError(f"{error}; or leave --content out: the canary contains it") from None
    config = with_canary(config, canary)
    with ExitStack() as leaving:
        registry = connect(config.coordinator)
        leaving.callback(registry.close)
        registry.time_ms()  # check that Redis answers and accepts us
        attestation = AttestationServer(join_address(config.host, config.port), config.server)
        leaving.callback(attestation.stop)
        resolved = resolve_endpoint(config, stop, on_progress)
        if resolved is None:
            return
        config = resolved
        client = open_client(config.protocol, config.address, config.model, config.client)
        server_test = ServerTest(client, config, canary)
        leaving.callback(server_test.close)
        Sidecar(config, server_test, attestation, registry, stop, on_ready, on_progress).run()


@dataclass(eq=False)
class Sidecar:
    """Carries out the decisions of `scheduler.admission`.

    Attributes:
        config: the server.
        server_test: tests it.
        attestation: answers managers while the server is registered.
        registry: of the mesh.
        stop: requests the end; a failure or an order to drain requests it too.
        on_ready: called each time the server is registered.
        on_progress: called with findings.
    """

    config: RegisterConfig
    server_test: ServerTest
    attestation: AttestationServer
    registry: Registry
    stop: Stop
    on_ready: Reporter
    on_progress: Reporter
    _health: ServerHealth = field(default_factory=ServerHealth)
    _result: ServerTestResult | None = None
    _heartbeat: Heartbeat | None = None  # while the server is registered
    _draining: bool = False
    _failure: Exception | None = None
    _last_report: str = ""

    def run(self) -> None:
        """Watch the server until the end is requested; raises as `register`."""
        watching = threading.Thread(target=self._watch, name="edl-sidecar", daemon=True)
        watching.start()
        try:
            self.stop.wait()
            self.server_test.close()  # ends the running test
            watching.join()
            if self._failure is not None:
                raise self._failure
            self.on_progress("leaving")
            self._drain()
        finally:
            self._leave()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.stop.request()

    def _asked_to_drain(self) -> None:
        self.on_progress("asked by an administrator to leave")
        self.stop.request()

    def _watch(self) -> None:
        try:
            while not self.stop.requested:
                self._check_once()
        except Exception as error:
            self._fail(error)

    def _check_once(self) -> None:
        health_check = self.config.health_check
        mode, wait_s = next_check(self._health, time.monotonic(), health_check)
        if self.stop.wait(wait_s):
            return
        result, problem = self._check(mode)
        if self.stop.requested:
            return
        now = time.monotonic()
        self._health, action = after_check(self._health, mode, result, now, health_check, random)
        self._apply(action, problem)

    def _check(self, mode: CheckMode) -> tuple[CheckResult, str]:
        """Check the server; return the result, and the problem in words, empty if there is none."""
        try:
            if mode == "ask":
                self.server_test.check_ready(PROBE_S)
            elif self._health.registered:
                self.server_test.repeat()
            else:
                self._result = self.server_test.run()
        except ModelError as error:
            return "wrong", str(error)
        except UsageError:  # the operator must act: another try would fail as well
            raise
        except EdlError as error:
            return "silent", str(error)
        return "well", ""

    def _apply(self, action: RegistryAction, problem: str) -> None:
        where = f"{self.config.model} at {self.config.endpoint}"
        if action == "register":
            self._register()
        elif action == "withdraw":
            self._withdraw(problem)
            self._report(f"{where} is taken out of the registry: {problem}")
        elif problem and not self._health.registered:
            self._report(f"{where} is not registered: {problem}")
        elif problem:
            log.info("%s: %s", where, problem)

    def _register(self) -> None:
        config, result = self.config, self._result
        assert result is not None
        for warning in result.warnings:
            self._report(f"warning: {warning}")
        try:
            self._start_lease(result)
        except (UnavailableError, AccessError) as error:
            self._health = registration_failed(time.monotonic(), config.health_check)
            self._report(str(error))
            return
        self._last_report = ""
        self.on_ready(
            f"teacher registered: {config.member} {config.service} at {config.address},"
            f" {result.t_t_s * 1000:.3g} ms/sample, {result.verified}"
        )

    # --- the lease; each new one has a new incarnation

    def _start_lease(self, result: ServerTestResult) -> None:
        """Register the server and start its heartbeat.

        Raises:
            RedisUnavailable: Redis does not answer.
            AccessError: Redis refuses the user or password of its URL.
            LeaseSuperseded: another process holds the id.
        """
        config = self.config
        incarnation = new_incarnation(self.registry, self.stop)
        identity = InstanceIdentity(
            config.service, config.member, incarnation, attested_address=config.address
        )
        heartbeat = Heartbeat(
            self.registry,
            "teachers",
            config.service,
            config.member,
            lambda: self._facts(identity, result),
            config.ttl_s,
            on_superseded=self._fail,
            on_drain=self._asked_to_drain,
        )
        self.attestation.identity = identity  # before a manager can ask
        try:
            heartbeat.start()
        except BaseException:
            self.attestation.identity = None
            raise
        self._heartbeat = heartbeat

    def _withdraw(self, why: str) -> None:
        """Give the lease up as if the teacher had died, so that students do not wait for it."""
        self.attestation.identity = None
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.give_up(f"taken out by its sidecar: {why}")

    def _drain(self) -> None:
        """Announce the leave, and wait as long as students need to notice it (`LEAVE_S`).

        The sidecar does not know the requests at the server; they continue after the lease ends.
        """
        if self._heartbeat is not None:
            self._draining = True
            self._heartbeat.update()
            time.sleep(min(LEAVE_S, self.config.grace_s))

    def _leave(self) -> None:
        """End the lease now, if there is one."""
        self.attestation.identity = None
        if self._heartbeat is not None:
            self._heartbeat.stop(leave=True)

    def _facts(self, identity: InstanceIdentity, result: ServerTestResult) -> dict[str, str]:
        config = self.config
        address = config.address.rpartition("://")[2].partition("/")[0]
        return {
            "incarnation": str(identity.incarnation),
            "address": config.address,
            "protocol": config.protocol,
            "content_id": config.content_id,
            "verified": result.verified,
            "device": config.device,
            "state": "draining" if self._draining else "serving",
            "slots": str(config.slots),
            "lanes": "1",
            "t_t_seconds": f"{result.t_t_s:.2g}",
            "model": config.model,
            "inputs": " ".join(map(str, config.inputs)),
            "output_kinds": kinds_fact(result.kinds),
            "host": split_address(address)[0],
            "version": __version__,
            "voucher": advertised(config.host, config.advertise, self.attestation.port),
            "instance_key": identity.key,
        }

    def _report(self, text: str) -> None:
        """Report a finding, unless it was the last one reported."""
        if text != self._last_report:
            self._last_report = text
            self.on_progress(text)
