"""The identity of a teacher, its address, and its state for metrics and for the registry."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from .. import __version__
from ..coordinator.registry import Registry, retry_timeouts
from ..proto.security.instance import CHALLENGE, INCARNATION, PROOF, TEACHER_ID, new_key, prove
from ..runtime.addresses import advertised_host, is_ipv6, is_wildcard, join_address
from ..runtime.errors import RequestRefused, UsageError, WrongInstance
from ..runtime.lifecycle import Stop
from .predictor_jobs import PredictorReady


@dataclass(slots=True)
class InstanceIdentity:
    """The identity of a teacher.

    Attributes:
        service: the name that students ask for; the model's name on the wire.
        teacher_id: unique within the service.
        incarnation: grows with each start.
        draining: whether the teacher is about to leave; each answer with soft labels says so.
        key: secret of this incarnation; stored in the registry, never sent in a message.
        attested_address: address of the foreign server that a sidecar attests; empty for a teacher.
    """

    service: str
    teacher_id: str
    incarnation: int
    draining: bool = False
    key: str = field(default_factory=new_key, repr=False)
    attested_address: str = ""

    def check(self, parameters: Mapping[str, object]) -> None:
        """Check that a request is for this instance.

        Args:
            parameters: parameters of the request; a missing parameter fits every instance.

        Raises:
            WrongInstance: the request is for another instance.
        """
        own_values = {"teacher_id": self.teacher_id, "incarnation": str(self.incarnation)}
        for name, value in own_values.items():
            if (requested := str(parameters.get(name, value))) != value:
                raise WrongInstance(f"{name} {requested!r} was asked for; this is {value!r}")

    def proof(self, metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the trailing metadata that answers a challenge; empty if there is none.

        Raises:
            WrongInstance: the challenge is for another teacher.
            RequestRefused: the challenge is too long.
        """
        if CHALLENGE not in metadata:
            return ()
        self.check({"teacher_id": metadata.get(TEACHER_ID, self.teacher_id)})
        try:
            proof = prove(
                self.key,
                self.teacher_id,
                self.incarnation,
                metadata[CHALLENGE],
                self.attested_address,
            )
        except ValueError as error:
            raise RequestRefused(f"{CHALLENGE}: {error}") from None
        return (PROOF, proof), (INCARNATION, str(self.incarnation))


@dataclass(frozen=True, slots=True)
class TeacherView:
    """The state of a teacher at one moment.

    Attributes:
        identity: of the teacher.
        model: the loaded model; None while it loads.
        slots: limit of requests that wait for the model or run in it.
        device_count: devices that serve side by side, each with its own requests.
        in_flight: requests that are not answered yet.
        t_t_s: seconds per sample of one device.
        accepting: whether the model accepts requests.
        restarts: number of restarts of predictor processes.
        micro_batch_reductions: how often a device ran out of memory, which reduced its micro-batch.
        registry_answers: whether the registry answered the last heartbeat; None before the
            registration and without a registry.
        samples_per_second: labelled samples per second, over the last seconds.
    """

    identity: InstanceIdentity
    model: PredictorReady | None
    slots: int
    device_count: int
    in_flight: int
    t_t_s: float
    accepting: bool
    restarts: int
    micro_batch_reductions: int
    registry_answers: bool | None
    samples_per_second: float = 0.0

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of this state; unknown values are left out."""
        identity, model = self.identity, self.model
        info = InfoMetricFamily("edl_teacher", "1; the labels say which teacher this is.")
        labels = {
            "service": identity.service,
            "teacher_id": identity.teacher_id,
            "version": __version__,
            "incarnation": str(identity.incarnation),
            "content_id": model.spec.content_id if model else "",
            "numerics_id": model.spec.numerics_id if model else "",
        }
        info.add_metric((), labels)
        yield info
        yield CounterMetricFamily(
            "edl_teacher_predictor_restarts", "Restarts of the model after a crash.", self.restarts
        )
        yield CounterMetricFamily(
            "edl_teacher_micro_batch_reductions",
            "Times that a device ran out of memory and reduced its micro-batch.",
            self.micro_batch_reductions,
        )
        gauges: tuple[tuple[str, str, float | None], ...] = (
            ("slots", "Limit of the sum of waiting and running requests.", self.slots),
            ("devices", "Devices that serve side by side.", self.device_count),
            (
                "micro_batch_samples",
                "Samples of one run of the model.",
                model.micro_batch if model else None,
            ),
            ("in_flight_requests", "Requests without an answer yet.", self.in_flight),
            (
                "sample_device_seconds",
                "t_t: median device time of one sample; of several devices, the harmonic mean.",
                self.t_t_s if model else None,
            ),
            ("model_loaded", "1 while the model accepts requests.", self.accepting),
            ("draining", "1 while the teacher drains.", identity.draining),
            (
                "heartbeat_answering",
                "1 if Redis answered the teacher's last heartbeat, else 0.",
                self.registry_answers,
            ),
        )
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"edl_teacher_{name}", text, float(value))

    def facts(self, address: str, device: str) -> dict[str, str]:
        """Return the registry fields of this teacher; its model must be loaded.

        They are fields of message `Teacher`, except `version` and `instance_key`, which no message
        contains.

        Args:
            address: where students reach the teacher.
            device: its devices, for people.
        """
        identity, model = self.identity, self.model
        assert model is not None
        return {
            "incarnation": str(identity.incarnation),
            "address": address,
            "protocol": "oip",
            "content_id": model.spec.content_id,
            "numerics_id": model.spec.numerics_id,
            "verified": "declared",
            "device": device,
            "state": "draining" if identity.draining else "serving",
            "slots": str(self.slots),
            "lanes": str(self.device_count),
            # Two digits: a smaller change is not worth a write to the registry.
            "t_t_seconds": f"{self.t_t_s:.2g}",
            "in_flight": str(self.in_flight),
            "samples_per_second": f"{self.samples_per_second:.4g}",
            "model": identity.service,  # its name on the wire
            "host": socket.gethostname(),
            "output_kinds": kinds_fact({one.name: one.kind for one in model.spec.outputs}),
            "version": __version__,
            "instance_key": identity.key,
        }


def advertised(bound: str, advertise: str | None, bound_port: int) -> str:
    """Return the `host:port` at which others reach a server.

    Args:
        bound: the host that is bound.
        advertise: HOST or HOST:PORT from the user; None: the bound host, or this machine's name if
            the bound host is a wildcard.
        bound_port: the port that is bound.

    Raises:
        UsageError: `advertise` is neither HOST nor HOST:PORT, or it is `*.NAME` and this machine
            has no address to insert.
    """
    host, port = split_address(advertise or (socket.gethostname() if is_wildcard(bound) else bound))
    return join_address(advertised_host(host), port or bound_port)


def split_address(text: str) -> tuple[str, int]:
    """Split "HOST" or "HOST:PORT" (port 0 if missing); IPv6 with a port needs brackets.

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or is_ipv6(text):
        return text, 0
    is_host = bool(host) and (":" not in host or is_ipv6(host))
    if not is_host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(
            f"{text!r} is no address to advertise: write HOST, or HOST:PORT with a port from 1 to "
            "65535"
        )
    return host, int(port)


def kinds_fact(kinds: Mapping[str, str]) -> str:
    """Return the registry field `output_kinds` of a teacher: NAME=KIND separated by blanks.

    Args:
        kinds: `OutputKind` of each output, by name; empty if unknown. Names with blanks are left
            out.
    """
    known = {name: kind for name, kind in kinds.items() if kind}
    return " ".join(f"{name}={kind}" for name, kind in known.items() if len(name.split()) == 1)


def new_incarnation(registry: Registry | None, stop: Stop) -> int:
    """Return the start time in ms by the clock of Redis, or of this machine without a registry.

    Later starts under the same id get larger numbers, unless that clock goes back.

    Raises:
        RedisUnavailable: Redis does not answer.
        AccessError: Redis refuses the user or password of its URL.
        StartCancelled: `stop` was requested before Redis answered.
    """
    if registry is None:
        return time.time_ns() // 1_000_000
    return retry_timeouts(registry.time_ms, stop)
