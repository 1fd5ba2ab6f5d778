"""The settings of an agent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...runtime.errors import UsageError
from .lending import LendingConfig

_BEATS_PER_TTL: Final = 6


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of one agent.

    Attributes:
        coordinator: Redis URL of the mesh.
        machine_id: name of the machine in the mesh, and of its teacher.
        devices: devices of teachers, as in `edl teacher serve --devices`.
        cache: folder for models, and for the files of `edl agent yield`.
        cache_bytes: size limit of the models in bytes; None: no limit.
        ttl_s: seconds without a heartbeat after which the machine or its teacher counts as dead.
        lending: conditions under which the machine is lent.
        grace_s: seconds that a teacher has to finish its requests.
        teacher_options: further arguments of `edl teacher serve` that belong to the machine, not to
            a deployment.
        log_dir: folder for the teachers' output; None: only the last lines are kept, in memory.
    """

    coordinator: str
    machine_id: str
    devices: tuple[str, ...]
    cache: Path
    cache_bytes: int | None = None
    ttl_s: float = 6.0
    lending: LendingConfig = field(default_factory=LendingConfig)
    grace_s: float = 30.0
    teacher_options: tuple[str, ...] = ()
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.ttl_s <= 3600:
            raise UsageError(f"a machine's TTL is 0.5 to 3600 seconds, not {self.ttl_s:g}")
        max_load = self.lending.max_load
        if max_load is not None and not 0 < max_load <= 1 << 16:
            raise UsageError(
                f"--load is a number of CPU cores above 0, at most 65536, not {max_load:g}"
            )

    @property
    def beat_relay(self) -> Path:
        """Path of the heartbeat relay's socket, shared by agents with this cache and Redis URL."""
        mesh_hash = hashlib.sha256(self.coordinator.encode()).hexdigest()[:8]
        return self.cache / "beats" / mesh_hash

    @property
    def beat_s(self) -> float:
        """Seconds between heartbeats. After each heartbeat, the agent reads its order."""
        return self.ttl_s / _BEATS_PER_TTL
