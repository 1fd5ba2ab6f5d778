"""What a teacher tells the registry about itself, for as long as it serves."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from .. import __version__
from ..coordinator.heartbeat import Heartbeat
from ..coordinator.registry import Registry, with_patience
from ..errors import LeaseSuperseded
from ..lifecycle import Stop
from .config import TeacherConfig
from .identity import Identity
from .labeller import Labeller
from .traffic import Traffic


def new_registration(
    registry: Registry,
    config: TeacherConfig,
    identity: Identity,
    address: str,
    labeller: Labeller,
    traffic: Traffic,
    *,
    on_superseded: Callable[[LeaseSuperseded], None],
    on_drain: Callable[[], None],
) -> Heartbeat:
    """The heartbeat of a teacher that is ready.

    Its facts are the fields of message `Teacher`, the version of this package, and its key, which
    stands in no message.

    Args:
        registry: where to register.
        config: the teacher.
        identity: who it is.
        address: where students reach it.
        labeller: knows the model, how fast it is, and on how many devices.
        traffic: how busy it is.
        on_superseded: a newer teacher has taken the id; in the heartbeat's thread.
        on_drain: an administrator wants it to leave; in the heartbeat's thread.
    """

    def facts() -> dict[str, str]:
        loaded = labeller.require_loaded()
        return {
            "incarnation": str(identity.incarnation),
            "address": address,
            "protocol": "oip",
            "content_id": loaded.spec.content_id,
            "numerics_id": loaded.spec.numerics_id,
            "verified": "declared",
            "device": config.device_label,
            "state": "draining" if identity.draining else "serving",
            "slots": str(config.server.slots),
            "lanes": str(labeller.lanes),
            # Two digits: who reads it rounds it up, and a change wakes every manager.
            "t_t_seconds": f"{labeller.t_t_s:.2g}",
            "in_flight": str(traffic.in_flight),
            "samples_per_second": f"{traffic.samples_per_second:.4g}",
            "model": config.service,  # its name on the wire
            "host": socket.gethostname(),
            "output_kinds": kinds_fact({one.name: one.kind for one in loaded.spec.outputs}),
            "version": __version__,
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
    """The fact `output_kinds` of a teacher.

    Args:
        kinds: `OutputKind` of each output, by name; empty: not known. Names that hold blanks, which
            part the items of a fact, are left out.
    """
    known = {name: kind for name, kind in kinds.items() if kind}
    return " ".join(f"{name}={kind}" for name, kind in known.items() if len(name.split()) == 1)


def new_incarnation(registry: Registry | None, stop: Stop) -> int:
    """Return the start time in ms, by Redis's clock, or the local one without a registry.

    Later starts under the same id get greater numbers.

    Raises:
        RegistryUnavailable: Redis does not answer.
        StartCancelled: it does not, and `stop` was requested.
    """
    if registry is None:
        return time.time_ns() // 1_000_000
    return with_patience(registry.time_ms, stop)
