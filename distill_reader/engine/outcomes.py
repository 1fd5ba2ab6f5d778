"""What the engine and its links say to each other: who is asked what, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import EdlError
from ...proto.arena import Array, Record
from ..label_forms import AS_GIVEN, LabelForms


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a teacher is; what is not known of one that was only named by address is empty."""

    teacher_id: str
    address: str
    model: str
    incarnation: int = 0
    content_id: str = ""
    protocol: str = ""  # as the registry names it; empty: `oip`
    inputs: tuple[str, ...] = ()  # of its model, where its server cannot be asked
    foreign: bool = False  # somebody vouches for it: it is no server of ours


@dataclass(frozen=True, slots=True)
class Job:
    """One request: a batch for a teacher."""

    number: int
    inputs: Mapping[str, Array]
    fetches: tuple[str, ...]
    samples: int
    forms: LabelForms = AS_GIVEN
    asked_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Ready:
    """The teacher answers; `inputs` are the names of its model's inputs."""

    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Labels of a batch lie in the arena."""

    job: Job
    names: tuple[str, ...]
    record: Record
    device_s: float
    draining: bool
    seconds: float  # since it was asked


@dataclass(frozen=True, slots=True)
class Broke:
    """A request, or the connection when `job` is None, came to nothing."""

    job: Job | None
    error: EdlError


Outcome = Ready | Done | Broke
