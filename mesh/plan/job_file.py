"""YAML files of `edl plan`: the job file of a plan, and profiles with measured speeds.

The job file of a plan is not the job file (`job.py`) of `edl student train`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...runtime.errors import UsageError
from ...scheduler.cluster import DeviceRate, Distillation
from ...scheduler.units import Bytes, Count, Positive, SamplesPerSecond, Seconds
from ..files import read


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of `edl profile` on a machine.

    Attributes:
        student: rates of the student by kind of device.
        teacher: rates of the teacher by kind of device.
        batch: rows of the student's batch.
        samples: number of samples of an epoch; None: unknown.
        sample_bytes: bytes of the inputs of a sample.
        label_bytes: bytes of all outputs of the teacher for a sample; None: unknown.
        source_samples_per_s: samples per second of the job's loader.
        measured: descriptions of machine, student and teacher.
    """

    student: Mapping[str, DeviceRate] = field(default_factory=dict)
    teacher: Mapping[str, DeviceRate] = field(default_factory=dict)
    batch: Count | None = None
    samples: Count | None = None
    sample_bytes: Bytes | None = None
    label_bytes: Bytes | None = None
    source_samples_per_s: SamplesPerSecond | None = None
    measured: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFile:
    """The job file of a plan; `Distillation` describes all keys except `profiles`.

    Attributes:
        profiles: files of `edl profile`, relative to this file, for keys that are missing here.
    """

    name: str
    profiles: tuple[Path, ...] = ()
    batch: Count | tuple[Count, ...] | None = None
    samples: Count | None = None
    sample_bytes: Bytes | None = None
    label_bytes: Bytes | None = None
    student: Mapping[str, DeviceRate] = field(default_factory=dict)
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


def load_job(path: str | os.PathLike[str]) -> Distillation:
    """Load the job file of a plan, and its profiles.

    Raises:
        UsageError: a file is missing or malformed, or a required key is missing in all files.
    """
    job_file = read(path, JobFile)
    for profile in job_file.profiles:
        if not profile.exists():
            raise UsageError(f"{path}: profiles: {profile}: no such file; 'edl profile' writes one")
    profiles = [read(profile, Profile) for profile in job_file.profiles]
    values: dict[str, Any] = {
        key.name: getattr(job_file, key.name) for key in fields(job_file) if key.name != "profiles"
    }
    for key in (*_HINTS, "source_samples_per_s"):
        candidates = [values[key], *(getattr(profile, key) for profile in profiles)]
        values[key] = next((value for value in candidates if value is not None), None)
        if values[key] is None and key in _HINTS:
            raise UsageError(f"{path}: {key!r} is missing, here and in profiles: {_HINTS[key]}")
    if isinstance(values["batch"], int):
        values["batch"] = (values["batch"],)
    for role in ("student", "teacher"):
        values[role] = {
            **{k: rate for profile in profiles[::-1] for k, rate in getattr(profile, role).items()},
            **values[role],
        }
    if not values["student"]:
        raise UsageError(
            f"{path}: 'student' is missing, here and in profiles: the rate of its step on each"
            " kind of devices, such as `student: {v100: {samples_per_s: 340}}`"
        )
    try:
        return Distillation(**values)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


_HINTS = {
    "batch": "rows of a student's batch, such as `batch: 32` or `batch: [32, 64]`",
    "samples": "samples of an epoch, such as `samples: 1281167`",
    "sample_bytes": "bytes of the inputs of one sample, such as `sample_bytes: 147 KiB`",
    "label_bytes": "bytes of the soft labels of one sample, such as `label_bytes: 4 kB`",
}
