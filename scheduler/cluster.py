"""What a plan is made for: the devices of a cluster, and a job that is to run on them.

Section 3.1 of the paper has two kinds of devices, dedicated and elastic ones; here a kind is a line
of a file: how many there are, what they cost, how they are wired. A job says how fast student and
teacher are on each kind, and what travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
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
#: A share above 0: what is there at no time is left out of a cluster.
Availability = Annotated[float, Number("share", above=0, at_most=1)]


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """How a device is reached.

    Attributes:
        bandwidth_bytes_per_s: each way, of all that goes over it together.
        latency_s: one way.
        jitter: standard deviation of the time of one transfer, as a share of it.
    """

    bandwidth_bytes_per_s: BytesPerSecond = 1.25e9
    latency_s: SecondsOrZero = 0.0
    jitter: NotNegative = 0.0

    def __post_init__(self) -> None:
        numbers = (self.bandwidth_bytes_per_s, self.latency_s, self.jitter)
        if not (all(map(isfinite, numbers)) and numbers[0] > 0 and min(numbers[1:]) >= 0):
            raise ValueError(f"a link has a bandwidth above 0, and neither is negative: {numbers}")


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that are alike.

    Attributes:
        name: of the kind; rates of a job name it.
        count: how many there are.
        price_per_hour: of one, in the cluster's currency; 0: it is lent for nothing.
        memory_bytes: of one; None: enough for anything.
        link: to the rest of the cluster; each device has one of its own.
        tenure: "dedicated" devices stay; "spot" ones come and go, and are teachers alone.
        availability: the share of the time that one is there.
        roles: what it may do.

    Raises:
        ValueError: a bound is broken, or a spot device is to be a student.
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
            raise ValueError("a kind of devices has a name")
        if self.count < 1 or not 0 <= self.price_per_hour < float("inf"):
            raise ValueError(f"{self.name}: needs count >= 1 and price_per_hour >= 0")
        if not 0 < self.availability <= 1:
            raise ValueError(f"{self.name}: needs 0 < availability <= 1, not {self.availability}")
        if self.roles is not None and not self.roles:
            raise ValueError(f"{self.name}: roles: at least one of student and teacher")
        if self.tenure == "spot" and self.roles is not None and "student" in self.roles:
            raise ValueError(f"{self.name}: spot devices leave at any time: roles: [teacher]")

    def may_be(self, role: Role) -> bool:
        """Whether it may do that."""
        if self.roles is None:
            return role == "teacher" or self.tenure == "dedicated"
        return role in self.roles

    @property
    def expected(self) -> float:
        """How many are there on average."""
        return self.count * self.availability


@dataclass(frozen=True, slots=True)
class Cluster:
    """All devices that a plan may use.

    Attributes:
        devices: their kinds, each name once.
        currency: of the prices.

    Raises:
        ValueError: there is none, or two of one name.
    """

    devices: tuple[DeviceKind, ...]
    currency: str = "$"

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.devices]
        if not names:
            raise ValueError("a cluster has at least one kind of devices")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two kinds of devices are called {twice[0]!r}")

    def kind(self, name: str) -> DeviceKind:
        """The kind of that name.

        Raises:
            ValueError: there is none.
        """
        for kind in self.devices:
            if kind.name == name:
                return kind
        known = ", ".join(kind.name for kind in self.devices)
        raise ValueError(f"the cluster has no devices {name!r}; there are: {known}")


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """How fast a model is on one device of a kind: a batch takes `batch_s(rows)`.

    Attributes:
        samples_per_s: without what is fixed per batch; this or `seconds_per_sample`.
        seconds_per_sample: the reciprocal.
        batch_overhead_s: what a batch takes besides, however many rows it has.
        jitter: standard deviation of the time of a batch, as a share of it.
        memory_bytes: what the model takes of a device's memory.
        memory_per_sample_bytes: and each row of a batch.
        micro_batch: rows that the device is fastest at; None: not known.

    Raises:
        ValueError: both or neither of the two rates is given, or a bound is broken.
    """

    samples_per_s: SamplesPerSecond | None = None
    seconds_per_sample: Seconds | None = None
    batch_overhead_s: SecondsOrZero = 0.0
    jitter: NotNegative = 0.0
    memory_bytes: BytesOrZero = 0.0
    memory_per_sample_bytes: BytesOrZero = 0.0
    micro_batch: Count | None = None

    def __post_init__(self) -> None:
        given = [x for x in (self.samples_per_s, self.seconds_per_sample) if x is not None]
        if len(given) != 1:
            raise ValueError("expects one of samples_per_s and seconds_per_sample")
        if not (isfinite(given[0]) and given[0] > 0 and isfinite(1 / given[0])):
            raise ValueError(f"a rate is above 0, not {given[0]}")
        if not (min(self.batch_overhead_s, self.jitter) >= 0 and isfinite(self.batch_overhead_s)):
            raise ValueError("batch_overhead_s and jitter are not negative")

    @property
    def sample_s(self) -> float:
        """Seconds per sample: the t_t or t_s of Algorithm 1, line 1."""
        if self.seconds_per_sample is not None:
            return self.seconds_per_sample
        assert self.samples_per_s is not None
        return 1 / self.samples_per_s

    def batch_s(self, rows: int) -> float:
        """Seconds of a batch of so many rows."""
        return self.batch_overhead_s + rows * self.sample_s

    def needs_bytes(self, rows: int) -> float:
        """Memory for the model and a batch of so many rows."""
        return self.memory_bytes + rows * self.memory_per_sample_bytes


@dataclass(frozen=True, slots=True)
class Distillation:
    """A distillation.

    Attributes:
        name: of the job.
        samples: of an epoch.
        batch: rows of one student's batch; several: a plan chooses.
        student: how fast the student's step is, by kind of devices.
        teacher: how fast a teacher labels, by kind of devices.
        sample_bytes: of the inputs of one sample, as they travel.
        label_bytes: of the soft labels of one sample, as they travel.
        epochs: of the training.
        students: how many ranks train, each on a device of its own with a reader of its own.
        synchronous: ranks wait for each other at each step, so the slowest decides.
        fixed_inputs: an epoch has the inputs of the one before, bit for bit (no augmentation), so
            that its labels can be kept.
        source_samples_per_s: what the loader of one student yields at most; None: any amount.
        buffer_bytes: most that the buffer of one reader may hold; None: as much as it needs.
        window: requests in flight at each teacher, at least.
        window_max: and at most: readers have more in flight where travel takes longer than work.
        deadline_s: the training has to be over by then.
        budget: it must not cost more, in the cluster's currency.

    Raises:
        ValueError: a bound is broken.
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
        counts = (*self.batch, self.samples, self.epochs, self.students, self.window)
        if min(counts) < 1 or not min(self.sample_bytes, self.label_bytes) > 0:
            raise ValueError("counts and bytes are above 0")
        if self.window > self.window_max:
            raise ValueError("needs window <= window_max")
        if not self.student:
            raise ValueError("student: a rate for at least one kind of devices")

    def batch_bytes(self, rows: int) -> float:
        """Bytes of a labelled batch: what one takes of a reader's volume."""
        return rows * (self.sample_bytes + self.label_bytes)

    def rate(self, role: Role, kind: str) -> DeviceRate:
        """How fast a model is on a kind of devices.

        Raises:
            ValueError: the job does not say.
        """
        rates = self.student if role == "student" else self.teacher
        if kind not in rates:
            known = ", ".join(rates) or "none"
            raise ValueError(f"the job has no rate of the {role} on {kind!r}; it has: {known}")
        return rates[kind]
