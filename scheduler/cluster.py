"""Input of a plan: the devices of a cluster, and the distillation that is to run on them.

Section 3.1 of the paper has two kinds of devices, dedicated and elastic ones. Here a kind is an
entry of a file: number, price and network of equal devices. A `Distillation` says how fast student
and teacher are on devices of each kind, and how many bytes are transferred.

Annotations give the bounds of single numbers. The parsers of files check them (`units.py`), as in
`simulator/scenario.py`; the constructors only check how fields fit together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from .units import (
    Bytes,
    BytesOrZero,
    BytesPerSecond,
    Count,
    NotNegative,
    Number,
    Positive,
    SamplesPerSecond,
    Seconds,
    SecondsOrZero,
)

#: What a device may do in a plan.
Role = Literal["student", "teacher"]
#: A share above 0; a cluster must not contain devices that are never available.
Availability = Annotated[float, Number("share", above=0, at_most=1)]


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """Network link of a device.

    Attributes:
        bandwidth_bytes_per_s: limit in each direction, for all transfers together.
        latency_s: one way, to another device; the greater of both devices' values counts.
        jitter: standard deviation of the time of a transfer, relative to it.
    """

    bandwidth_bytes_per_s: BytesPerSecond = 1.25e9
    latency_s: SecondsOrZero = 0.0
    jitter: NotNegative = 0.0


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A number of equal devices.

    Attributes:
        name: name of the kind, used by the rates of a job.
        count: number of devices.
        price_per_hour: of one device, in the cluster's currency; 0: free.
        memory_bytes: of one device; None: enough for anything.
        link: each device's own link to the rest of the cluster.
        tenure: "dedicated" devices stay; "spot" devices come and go, and can only be teachers.
        availability: share of the time that a device is available; below 1, it can only be a
            teacher.
        roles: allowed roles; None: those that the tenure allows.

    Raises:
        ValueError: the name is missing, the list of roles is empty, or a spot device may be a
            student.
    """

    name: str
    count: Count = 1
    price_per_hour: NotNegative = 0.0
    memory_bytes: Bytes | None = None
    link: DeviceLink = DeviceLink()
    tenure: Literal["dedicated", "spot"] = "dedicated"
    availability: Availability = 1.0
    roles: tuple[Role, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a kind of devices must have a name")
        if self.roles is not None and not self.roles:
            raise ValueError(f"{self.name}: roles: at least one of student and teacher")
        if self.tenure == "spot" and self.roles is not None and "student" in self.roles:
            raise ValueError(
                f"{self.name}: spot devices leave at any time: roles must be [teacher]"
            )

    def may_be(self, role: Role) -> bool:
        if self.roles is None:
            return role == "teacher" or self.tenure == "dedicated"
        return role in self.roles


@dataclass(frozen=True, slots=True)
class Cluster:
    """All devices that a plan may use.

    Attributes:
        devices: the kinds, with unique names.
        currency: currency of the prices.

    Raises:
        ValueError: there are no devices, or two kinds have one name.
    """

    devices: tuple[DeviceKind, ...]
    currency: str = "$"

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.devices]
        if not names:
            raise ValueError("a cluster must have at least one kind of devices")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two kinds of devices are called {twice[0]!r}")

    def kind(self, name: str) -> DeviceKind:
        """Return the kind of that name; raise ValueError if there is none."""
        for kind in self.devices:
            if kind.name == name:
                return kind
        known = ", ".join(kind.name for kind in self.devices)
        raise ValueError(f"the cluster has no devices {name!r}; it has: {known}")


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """Speed of a model on one device of a kind: a batch takes `batch_s(rows)`.

    Attributes:
        samples_per_s: speed without the fixed time per batch; give this or `seconds_per_sample`.
        seconds_per_sample: the reciprocal of `samples_per_s`.
        batch_overhead_s: fixed time per batch, for any number of rows.
        jitter: standard deviation of the time of a batch, relative to it.
        memory_bytes: device memory of the model.
        memory_per_sample_bytes: device memory of each row of a batch.
        micro_batch: number of rows at which the device is fastest; None: unknown.

    Raises:
        ValueError: both or neither of the two rates is given.
    """

    samples_per_s: SamplesPerSecond | None = None
    seconds_per_sample: Seconds | None = None
    batch_overhead_s: SecondsOrZero = 0.0
    jitter: NotNegative = 0.0
    memory_bytes: BytesOrZero = 0.0
    memory_per_sample_bytes: BytesOrZero = 0.0
    micro_batch: Count | None = None

    def __post_init__(self) -> None:
        if (self.samples_per_s is None) == (self.seconds_per_sample is None):
            raise ValueError("expects one of samples_per_s and seconds_per_sample")

    @property
    def sample_s(self) -> float:
        """Seconds per sample: the t_t or t_s of Algorithm 1, line 1."""
        if self.seconds_per_sample is not None:
            return self.seconds_per_sample
        assert self.samples_per_s is not None
        return 1 / self.samples_per_s

    def batch_s(self, rows: int) -> float:
        return self.batch_overhead_s + rows * self.sample_s

    def needs_bytes(self, rows: int) -> float:
        """Return the memory for the model and the rows that it takes at once."""
        at_once = min(rows, self.micro_batch or rows)
        return self.memory_bytes + at_once * self.memory_per_sample_bytes


@dataclass(frozen=True, slots=True)
class Distillation:
    """A training by distillation.

    Attributes:
        name: name of the job.
        samples: samples of an epoch.
        batch: rows of one student's batch; from several sizes the plan chooses one.
        student: speed of the student's step, by kind of devices.
        teacher: speed of a teacher, by kind of devices.
        sample_bytes: transferred bytes of the inputs of one sample.
        label_bytes: transferred bytes of the soft labels of one sample.
        epochs: number of epochs.
        students: number of ranks, each with its own device and its own reader.
        synchronous: ranks wait for each other at each step, so the slowest rank decides.
        fixed_inputs: every epoch has the same inputs, bit for bit (no augmentation), so labels can
            be stored.
        source_samples_per_s: limit of the loader of one student; None: no limit.
        buffer_bytes: limit of the buffer of one reader; None: no limit.
        window: lower limit of the requests in flight per teacher.
        window_max: upper limit of the same: readers use more than `window` where the transfer takes
            longer than the computation.
        deadline_s: longest time of the training; None: no limit.
        budget: highest cost, in the cluster's currency; None: no limit.

    Raises:
        ValueError: no batch size, no rate of the student, or `window` above `window_max`.
    """

    name: str
    samples: Count
    batch: tuple[Count, ...]
    student: Mapping[str, DeviceRate]
    sample_bytes: Bytes
    label_bytes: Bytes
    teacher: Mapping[str, DeviceRate] = field(default_factory=dict)
    epochs: Count = 1
    students: Count = 1
    synchronous: bool = True
    fixed_inputs: bool = False
    source_samples_per_s: SamplesPerSecond | None = None
    buffer_bytes: Bytes | None = None
    window: Count = 2
    window_max: Count = 8
    deadline_s: Seconds | None = None
    budget: Positive | None = None

    def __post_init__(self) -> None:
        if not self.batch:
            raise ValueError("batch: at least one size")
        if self.window > self.window_max:
            raise ValueError("needs window <= window_max")
        if not self.student:
            raise ValueError("student: a rate for at least one kind of devices")

    def batch_bytes(self, rows: int) -> float:
        """Return the bytes of a labelled batch in a reader's volume."""
        return rows * (self.sample_bytes + self.label_bytes)

    def rate(self, role: Role, kind: str) -> DeviceRate:
        """Return a model's speed on a kind of devices; raise ValueError if the job has none."""
        rates = self.student if role == "student" else self.teacher
        if kind not in rates:
            known = ", ".join(rates) or "none"
            raise ValueError(f"the job has no rate of the {role} on {kind!r}; it has: {known}")
        return rates[kind]

    def step_s(self, kind: str, rows: int, label_s: float = 0.0) -> float:
        """Return the seconds per batch of a student that never waits for teachers.

        Loader and device work at the same time: the slower one counts.

        Args:
            kind: kind of the student's device.
            rows: rows of a batch.
            label_s: seconds per batch to get labels: from a teacher on the same device, or to
                deliver stored ones.

        Raises:
            ValueError: the job has no rate for the kind.
        """
        own_s = self.rate("student", kind).batch_s(rows) + label_s
        if self.source_samples_per_s is None:
            return own_s
        return max(own_s, rows / self.source_samples_per_s)

    def online_s(self, kind: str, rows: int) -> float:
        """Return the seconds of a batch if the student's device also runs the teacher.

        Raises:
            ValueError: the job has no student's or no teacher's rate for the kind.
        """
        return self.step_s(kind, rows, self.rate("teacher", kind).batch_s(rows))
