"""What a teacher tells the registry about itself, for as long as it serves."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ..coordinator.heartbeat import Heartbeat
from ..coordinator.registry import Registry
from ..errors import LeaseSuperseded
from .config import TeacherConfig
from .servicer import Identity, Labeller
from .traffic import Traffic


def new_registration(
    registry: Registry,
    config: TeacherConfig,
    identity: Identity,
    address: str,
    labeller: Labeller,
    traffic: Traffic,
    on_superseded: Callable[[LeaseSuperseded], None],
) -> Heartbeat:
    """The heartbeat of a teacher that is ready; its facts are the fields of message `Teacher`."""

    def facts() -> dict[str, str]:
        loaded = labeller.require_loaded()
        return {
            "incarnation": str(identity.incarnation),
            "address": address,
            "protocol": "oip",
            "content_id": loaded.spec.content_id,
            "numerics_id": loaded.spec.numerics_id,
            "verified": "declared",
            "device": config.predictor.device,
            "state": "draining" if identity.draining else "serving",
            "slots": str(config.server.slots),
            # Two digits: who reads it rounds it up, and a change wakes every manager.
            "t_t_seconds": f"{traffic.t_t_s or loaded.t_t_s:.2g}",
            "in_flight": str(traffic.in_flight),
            "samples_per_second": f"{traffic.samples_per_second:.4g}",
            "model": config.service,  # its name on the wire
            "host": socket.gethostname(),
        }

    return Heartbeat(
        registry,
        "teachers",
        config.service,
        identity.teacher_id,
        facts,
        config.ttl_s,
        on_superseded=on_superseded,
    )
