"""The identity of a teacher, its state at one moment, and its heartbeat in the registry."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from ..coordinator.heartbeat import Heartbeat
from ..coordinator.registry import Registry, with_patience
from ..proto.security.instance import new_key, prove
from ..runtime.addresses import is_wildcard, join_address, named_by_address
from ..runtime.errors import LeaseSuperseded, RequestRefused, UsageError, WrongInstance
from ..runtime.lifecycle import Stop
from .config import TeacherConfig


@dataclass(frozen=True, slots=True)
class TeacherView:
    """The state of a teacher at one moment.

    Attributes:
        service: the name that students ask for.
        teacher_id: unique within the service.
        incarnation: the number of this start.
        version: of this package.
        content_id: of the model; empty while it loads.
        numerics_id: likewise; teachers with the same one give equal bits.
        slots: requests that may wait for the model or run in it.
        lanes: devices that run requests in parallel.
        micro_batch: samples per run; None while unknown.
        in_flight: requests that are not answered yet.
        t_t_s: seconds per sample of one device; None while unknown.
        loaded: the model accepts requests.
        draining: about to leave.
        restarts: number of restarts of predictor processes.
        micro_batch_reductions: how often a device ran out of memory, which halved its micro-batch.
        registry_answers: the registry answered the last heartbeat; None without a registry.
        samples_per_second: labelled samples per second, over the last seconds.
        output_kinds: `OutputKind` of each output, by name; empty while unknown.
    """

    service: str
    teacher_id: str
    incarnation: int
    version: str
    content_id: str
    numerics_id: str
    slots: int
    lanes: int
    micro_batch: int | None
    in_flight: int
    t_t_s: float | None
    loaded: bool
    draining: bool
    restarts: int
    micro_batch_reductions: int
    registry_answers: bool | None
    samples_per_second: float = 0.0
    output_kinds: Mapping[str, str] = field(default_factory=dict)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of this state; unknown values are left out."""
        who = InfoMetricFamily("edl_teacher", "1; the labels say which teacher this is.")
        names = ("service", "teacher_id", "version", "incarnation", "content_id", "numerics_id")
        who.add_metric((), {name: str(getattr(self, name)) for name in names})
        yield who
        yield CounterMetricFamily(
            "edl_teacher_predictor_restarts", "Restarts of the model after a crash.", self.restarts
        )
        yield CounterMetricFamily(
            "edl_teacher_micro_batch_reductions",
            "Times that a device ran out of memory and halved its micro-batch.",
            self.micro_batch_reductions,
        )
        gauges: tuple[tuple[str, str, float | None], ...] = (
            ("slots", "Requests that may wait for the model or run in it at a time.", self.slots),
            ("lanes", "Devices that serve side by side.", self.lanes),
            ("micro_batch_samples", "Samples of one run of the model.", self.micro_batch),
            ("in_flight_requests", "Requests without an answer yet.", self.in_flight),
            ("sample_device_seconds", "t_t: device time of one sample, median.", self.t_t_s),
            ("model_loaded", "1 while the model accepts requests.", self.loaded),
            ("draining", "1 while the teacher drains.", self.draining),
            (
                "heartbeat_answering",
                "1: Redis answered the last heartbeat.",
                self.registry_answers,
            ),
        )
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"edl_teacher_{name}", text, float(value))


#: Metadata keys of `ServerMetadata`: the challenge of a manager, and the teacher's answer.
CHALLENGE: Final = "edl-challenge"
INSTANCE: Final = "edl-instance"
PROOF: Final = "edl-proof"
INCARNATION: Final = "edl-incarnation"


@dataclass(slots=True)
class InstanceIdentity:
    """The identity of a teacher.

    Attributes:
        service: the name that students ask for; the model's name on the wire.
        teacher_id: unique within the service.
        incarnation: grows with each start.
        draining: about to leave; stated in every answer.
        key: secret of this start; stored in the registry, never sent in a message.
        attested_address: of the foreign server that a sidecar attests; empty for a teacher.
    """

    service: str
    teacher_id: str
    incarnation: int
    draining: bool = False
    key: str = field(default_factory=new_key, repr=False)
    attested_address: str = ""

    def check(self, asked: Mapping[str, object]) -> None:
        """Compare the instance that a request names with this one; missing values match.

        Raises:
            WrongInstance: the request is for another instance.
        """
        ours = {"teacher_id": self.teacher_id, "incarnation": str(self.incarnation)}
        for name, value in ours.items():
            if (meant := str(asked.get(name, value))) != value:
                raise WrongInstance(f"{name} {meant!r} was asked for; this is {value!r}")

    def proof(self, metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the trailing metadata that answers a challenge; empty if there is none.

        Raises:
            WrongInstance: the challenge is for another teacher.
            RequestRefused: the challenge is too long.
        """
        if CHALLENGE not in metadata:
            return ()
        self.check({"teacher_id": metadata.get(INSTANCE, self.teacher_id)})
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


def advertised(bound: str, advertise: str | None, bound_port: int) -> str:
    """Return the `host:port` at which others reach a server.

    Args:
        bound: the host that is bound.
        advertise: HOST or HOST:PORT from the user; None: the bound host, or this machine's name if
            that is a wildcard.
        bound_port: the port that is bound.

    Raises:
        UsageError: `advertise` is neither HOST nor HOST:PORT, or it is `*.NAME` and this machine
            has no address to insert.
    """
    host, port = split(advertise or (socket.gethostname() if is_wildcard(bound) else bound))
    return join_address(named_by_address(host), port or bound_port)


def split(text: str) -> tuple[str, int]:
    """Split "HOST" or "HOST:PORT" (port 0 if missing); IPv6 with a port needs brackets.

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # a bare IPv6 address has no port
        return text, 0
    if host.startswith("[") and port.endswith("]"):
        return text, 0
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(
            f"{text!r} is no address to advertise: say HOST, or HOST:PORT with a port from 1 to "
            "65535"
        )
    return host, int(port)


def new_registration(
    registry: Registry,
    config: TeacherConfig,
    identity: InstanceIdentity,
    address: str,
    view: Callable[[], TeacherView],
    *,
    on_superseded: Callable[[LeaseSuperseded], None],
    on_drain: Callable[[], None],
) -> Heartbeat:
    """Create the heartbeat of a teacher that is ready.

    Its facts are the fields of message `Teacher`, the version of this package, and the instance's
    key, which is in no message.

    Args:
        registry: where to register.
        config: the teacher.
        identity: its identity.
        address: where students reach it.
        view: returns its present state; the model is loaded.
        on_superseded: a newer teacher has taken the id; called in the heartbeat's thread.
        on_drain: an administrator drains the teacher; called in the heartbeat's thread.
    """

    def facts() -> dict[str, str]:
        now = view()
        return {
            "incarnation": str(now.incarnation),
            "address": address,
            "protocol": "oip",
            "content_id": now.content_id,
            "numerics_id": now.numerics_id,
            "verified": "declared",
            "device": config.device_label,
            "state": "draining" if now.draining else "serving",
            "slots": str(now.slots),
            "lanes": str(now.lanes),
            # Two digits, because every change wakes all managers.
            "t_t_seconds": f"{now.t_t_s or 0:.2g}",
            "in_flight": str(now.in_flight),
            "samples_per_second": f"{now.samples_per_second:.4g}",
            "model": now.service,  # its name on the wire
            "host": socket.gethostname(),
            "output_kinds": kinds_fact(now.output_kinds),
            "version": now.version,
            "instance_key": identity.key,
        }

    return Heartbeat(
        registry,
        "teachers",
        config.service,
        identity.teacher_id,
        facts,
        config.ttl_s,
        on_superseded=on_superseded,
        on_drain=on_drain,
    )


def kinds_fact(kinds: Mapping[str, str]) -> str:
    """Return the fact `output_kinds` of a teacher: NAME=KIND separated by blanks.

    Args:
        kinds: `OutputKind` of each output, by name; empty if unknown. Names with blanks are left
            out.
    """
    known = {name: kind for name, kind in kinds.items() if kind}
    return " ".join(f"{name}={kind}" for name, kind in known.items() if len(name.split()) == 1)


def new_incarnation(registry: Registry | None, stop: Stop) -> int:
    """Return the start time in ms by the clock of Redis, or of this machine without a registry.

    Later starts under the same id get larger numbers.

    Raises:
        RedisUnavailable: Redis does not answer.
        StartCancelled: it does not answer, and `stop` was requested.
    """
    if registry is None:
        return time.time_ns() // 1_000_000
    return with_patience(registry.time_ms, stop)
