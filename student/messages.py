"""Messages between a supervisor and its ranks, one dataclass each.

| sender | messages |
|---|---|
| supervisor | first `Order`; then `Leave`, and an `Answer` to each `Ask` |
| rank | `Ready`, `Progress`, `Saved`, `Ask`, `Scaled`; last `Finished`, `Left` or `Failed` |
| rank with an order to inspect its job | `Inspected` or `Failed` |

They are JSON lines on a socket pair (`proto/channel.py`), with the class name in lower case as
"kind".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from ..proto.channel import Message
from ..proto.dataclass_json import from_plain, to_plain
from ..runtime.errors import WireError
from ..scheduler.students.shards import Range
from .settings import TrainSettings

#: Exit code of a rank that has not failed, and whose job may continue in a newer generation; see
#: `rank/__main__.py`. The code is EX_TEMPFAIL of sysexits.h.
EXIT_AGAIN: Final = 75


@dataclass(frozen=True, slots=True)
class RankMessage:
    """Base class of all messages."""

    def to_json(self) -> Message:
        return {"kind": type(self).__name__.lower(), **to_plain(self)}


@dataclass(frozen=True, slots=True)
class Order(RankMessage):
    """The first message to a rank: everything that it needs to start.

    Attributes:
        settings: settings of the job.
        generation: number of the generation, the run of one world's ranks.
        rank: number of the rank in this world, from 0.
        world: number of ranks in this world.
        local_rank: number of the rank on its node, from 0.
        node: id of the rank's node.
        endpoints: host:port of each rank, for the framework's process group.
        restore: path or URL of the checkpoint to start from; empty: start at step 0.
        snapshot: keys of the shared memory for snapshots, one for each slot; empty: this rank
            writes none.
        restarts_epoch: settings that decide the order of samples have changed since the checkpoint
            `restore`, so the epoch starts from its beginning.
        optimizer_changes: settings of the optimizer that have changed since the checkpoint
            `restore`; see `scheduler.students.fingerprint.optimizer_changes`.
        inspect: do not train: send the fingerprint of the job as `Inspected`, and exit.
    """

    settings: TrainSettings
    generation: int = 1
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    node: str = ""
    endpoints: tuple[str, ...] = ()
    restore: str = ""
    snapshot: tuple[str, ...] = ()
    restarts_epoch: bool = False
    optimizer_changes: tuple[str, ...] = ()
    inspect: bool = False


@dataclass(frozen=True, slots=True)
class Leave(RankMessage):
    """Leave at the next safe point: write a snapshot, send `Left`, exit with code 75."""


@dataclass(frozen=True, slots=True)
class Answer(RankMessage):
    """Answer to the `Ask` with the same number.

    Attributes:
        number: number of the question.
        value: the answer, or the text of the error.
        error: name of a class in `runtime.errors`; empty: no error.
    """

    number: int
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Inspected(RankMessage):
    """The rank has built the job's data, model and optimizer without an error.

    Attributes:
        fingerprint: fingerprint of the job; see `scheduler/students/fingerprint.py`.
    """

    fingerprint: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready(RankMessage):
    """The job is loaded, the checkpoint restored, the process group formed; the first step begins.

    Attributes:
        step: optimizer steps taken so far.
        epoch: epoch in which it starts, from 0.
        steps: optimizer steps of the whole job; 0: unknown.
        total_batch: rows of a step, of all ranks together; 0: each rank reads its own batches.
    """

    step: int = 0
    epoch: int = 0
    steps: int = 0
    total_batch: int = 0


@dataclass(frozen=True, slots=True)
class Progress(RankMessage):
    """A step is done, or the rank waits for something.

    Attributes:
        step: optimizer steps taken in this job, including this one.
        epoch: number of the epoch, from 0.
        rows: rows of this rank in this step.
        total: rows of all ranks in this step.
        losses: terms of the loss by name ("total", "hard", "soft", "hint NAME"): means over this
            rank's rows.
        metrics: metrics of the last evaluation, by name.
        step_s: seconds of the forward and backward passes, without waiting for the batch or other
            ranks, and without the optimizer.
        wait_s: seconds spent waiting for the batch.
        samples_per_s: recent rate of all ranks together.
        teachers: number of teachers that label for this rank; None: the job uses none.
        volume: bytes of labelled, unconsumed batches.
        waiting_for: what the rank waits for now, as text; empty: nothing.
        peers_s: seconds for which the rank has waited for other ranks without a break.
        upper_bytes: volume at which its reader pulls no more batches; 0: the job uses no teachers.
        wanted: number of teachers that its reader requests.
    """

    step: int
    epoch: int = 0
    rows: int = 0
    total: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    step_s: float = 0.0
    wait_s: float = 0.0
    samples_per_s: float = 0.0
    teachers: int | None = None
    volume: int = 0
    waiting_for: str = ""
    peers_s: float = 0.0
    upper_bytes: int = 0
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class Saved(RankMessage):
    """The supervisor's memory has a complete snapshot of this step."""

    step: int


#: Calls of the job board that a rank can make.
BoardCall = Literal["fill", "lease"]


@dataclass(frozen=True, slots=True)
class Ask(RankMessage):
    """A call of the job board through the supervisor, which sends an `Answer`.

    Attributes:
        number: number of this question; the answer repeats it.
        what: "fill" creates the `shards` of `epoch`, unless another rank has done so; returns None.
            "lease" leases the next shard of `epoch`, or its first `most` rows; returns [start,
            stop], or None if none is left.
        epoch: number of the epoch, from 0.
        most: limit of the rows to lease; 0: no limit.
        shards: [start, stop] of each shard.
    """

    number: int
    what: BoardCall
    epoch: int = 0
    most: int = 0
    shards: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Scaled(RankMessage):
    """`on_scale(old, new)` of the job was called on this rank."""

    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Finished(RankMessage):
    """The job is done; `metrics` are from its last evaluation."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Left(RankMessage):
    """The rank left: at a safe point, after the snapshot; or because its generation cannot go on.

    Attributes:
        step: optimizer steps taken.
        safe: the rank left at a safe point; false: a peer is gone, or a newer generation has begun.
        why: reason as text.
    """

    step: int
    safe: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Failed(RankMessage):
    """The rank failed with an exception.

    Attributes:
        step: the step that it was taking, from 1; 0: it was still starting.
        epoch: epoch of that step, from 0.
        positions: positions of its batch, in the order of the epoch; empty: unknown.
        error: the error in one line.
        traceback: the traceback; empty for errors of EDL itself, which `error` explains.
        usage: do not retry: the job file, or a setting, is wrong.
        gave_up: do not retry: no teacher came in the time that the job allows.
    """

    step: int
    epoch: int = 0
    positions: list[int] = field(default_factory=list)
    error: str = ""
    traceback: str = ""
    usage: bool = False
    gave_up: bool = False


FromSupervisor = Order | Leave | Answer
FromRank = Inspected | Ready | Progress | Saved | Ask | Scaled | Finished | Left | Failed


def from_supervisor(message: Message) -> FromSupervisor:
    """Parse a message of a supervisor; raises WireError if it is invalid."""
    parsed: FromSupervisor = _parse(message, get_args(FromSupervisor), "a supervisor")
    return parsed


def from_rank(message: Message) -> FromRank:
    """Parse a message of a rank; raises WireError if it is invalid."""
    parsed: FromRank = _parse(message, get_args(FromRank), "a rank")
    return parsed


def _parse(message: Message, kinds: Sequence[type], sender: str) -> Any:
    name = message["kind"]
    for kind in kinds:
        if kind.__name__.lower() == name:
            try:
                return from_plain(kind, message)
            except WireError as error:
                raise WireError(f"{sender} sent an invalid message {name!r}: {error}") from error
    raise WireError(f"unknown message {name!r} from {sender}")
