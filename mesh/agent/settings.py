"""The settings of an agent; `cli.py` fills them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...errors import UsageError
from .lending import LendingConfig

#: Beats of a machine in its time to live.
BEATS_PER_TTL: Final = 6


@dataclass(frozen=True, slots=True)
class TeacherSide:
    """What this machine, and not a deployment, says of the teachers that run on it.

    Attributes:
        host: address on which they listen.
        advertise: host name or address by which students reach them; None: `host`.
        insecure: they may listen beyond this machine without credentials.
        tls_cert: file of their certificate.
        tls_key: file of its key.
        tls_ca: file of the authorities that sign those of their clients.
        tokens: file of the tokens that they let in.
        ttl_s: seconds without a beat after which a teacher counts as gone.
        grace_s: seconds that a teacher has to finish what it has.
        start_s: seconds that a teacher has to load its model.
    """

    host: str = "127.0.0.1"
    advertise: str | None = None
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tokens: Path | None = None
    ttl_s: float = 6.0
    grace_s: float = 30.0
    start_s: float = 900.0

    def arguments(self) -> list[str]:
        """Arguments of `edl teacher serve`."""
        named = {
            "host": self.host,
            "advertise": self.advertise,
            "tls-cert": self.tls_cert,
            "tls-key": self.tls_key,
            "tls-ca": self.tls_ca,
            "tokens": self.tokens,
            "ttl": self.ttl_s,
            "grace": self.grace_s,
        }
        given = [f"--{name}={value}" for name, value in named.items() if value is not None]
        return [*given, *(["--insecure"] if self.insecure else [])]


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent.

    Attributes:
        coordinator: Redis URL of the mesh.
        machine_id: name of the machine in the mesh; teachers on it have the same.
        devices: what teachers run on, as `edl teacher serve --devices` names them.
        cache: folder for models, and for what `edl agent yield` says.
        cache_bytes: models are kept up to so many; None: all are kept.
        ttl_s: seconds without a beat after which the machine counts as gone.
        lending: when it is given back to others.
        teacher: what the machine says of its teachers.
        log_dir: folder for their output; None: their last lines are kept in memory.
    """

    coordinator: str
    machine_id: str
    devices: tuple[str, ...]
    cache: Path
    cache_bytes: int | None = None
    ttl_s: float = 6.0
    lending: LendingConfig = field(default_factory=LendingConfig)
    teacher: TeacherSide = field(default_factory=TeacherSide)
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.ttl_s <= 3600:
            raise UsageError(f"a machine's TTL is 0.5 to 3600 seconds, not {self.ttl_s:g}")
        if not self.devices:
            raise UsageError("a machine without devices runs no teacher: name them by --devices")
        most = self.lending.most_load
        if most is not None and not 0 < most <= 1 << 16:
            raise UsageError(f"--load is a number of CPU cores above 0, not {most:g}")

    @property
    def beat_s(self) -> float:
        """Seconds between two beats, which is how soon an order is seen."""
        return self.ttl_s / BEATS_PER_TTL
