"""The settings of a teacher, one dataclass for each concern; `cli.py` fills them.

Among them: the devices on which predictors run, as `--devices` names them, and whether the protocol
is spoken over HTTP besides gRPC, and where.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Final, Self

from ..coordinator.config import join_address
from ..errors import UsageError
from ..proto.datatypes import TensorSpec
from ..proto.forms import OUTPUT_KINDS, OutputKind
from ..proto.security import ServerSecurity
from ..scheduler.batching import BatchRule
from .backends import paced
from .microbatch import parse_micro_batch

#: What the number of threads is told by, to the libraries that a framework may use.
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: More than any machine has.
_MAX_CORES = 1 << 16


@dataclass(frozen=True, slots=True)
class Device:
    """One device, which has a predictor process of its own.

    Attributes:
        name: as backends know it: "cpu" or "gpu:N".
        cores: the CPUs that the process is bound to, one thread on each; empty: any, and the number
            of threads is a setting of its own.
    """

    name: str = "cpu"
    cores: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "cpu", "cpu:0-3", "cpu:0-1+4-5" or "gpu:N"; raises UsageError."""
        kind, colon, numbers = text.strip().partition(":")
        try:
            if kind == "cpu":
                return cls("cpu", _cores(numbers) if colon else ())
            if kind == "gpu":
                return cls(f"gpu:{_number(numbers) if colon else 0}")
        except ValueError:
            pass
        raise UsageError(
            f"unknown device {text.strip()!r}: write cpu, cpu:FIRST-LAST (cores, more of them with "
            "+, as cpu:0-1+4-5) or gpu:N"
        )

    def __str__(self) -> str:
        if not self.cores:
            return self.name
        return f"{self.name}:{'+'.join(_ranges(self.cores))}"


def parse_devices(text: str) -> tuple[Device, ...]:
    """Read a list as "cpu:0-1,cpu:2-3,gpu:0".

    Raises:
        UsageError: it is no such list, or two of its devices want the same core.
    """
    devices = tuple(Device.parse(part) for part in text.split(","))
    cores = [core for device in devices for core in device.cores]
    if twice := sorted({core for core in cores if cores.count(core) > 1}):
        raise UsageError(f"devices {text!r}: core {twice[0]} stands there twice")
    return devices


def check_cores(devices: Sequence[Device]) -> None:
    """Raise UsageError where a core is named that this process may not use."""
    cores = {core for device in devices for core in device.cores}
    if not cores:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("this system binds no process to cores: write cpu instead of cpu:CORES")
    usable = sorted(os.sched_getaffinity(0))
    if missing := sorted(cores - set(usable)):
        raise UsageError(
            f"core {missing[0]} cannot be used: this process has cores {', '.join(_ranges(usable))}"
        )


def _cores(text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        span = range(_number(first), _number(last if dash else first) + 1)
        if not span or len(span) > _MAX_CORES:
            raise ValueError(part)
        cores.extend(span)
    return tuple(cores)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _ranges(cores: Sequence[int]) -> list[str]:
    """Runs of neighbours, as "0-1"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


#: What `--precision` may say.
PRECISIONS: Final = ("fp32", "bf16")
#: Requests that wait for a device or run on it, where nobody says otherwise.
SLOTS_PER_DEVICE: Final = 4


def parse_output_kind(text: str) -> tuple[str, OutputKind]:
    """Read "NAME=KIND" ("probs=probabilities"); raises UsageError."""
    name, _, said = text.rpartition("=")
    kind = next((one for one in OUTPUT_KINDS if one == said), None)
    if not name or kind is None:
        raise UsageError(
            f"--output-kind {text!r}: write NAME=KIND, with KIND one of {', '.join(OUTPUT_KINDS)}"
        )
    return name, kind


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """How the model is run: what the predictor process is started with.

    Attributes:
        model: path of an exported model, or `module:function`.
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        micro_batch: samples of one run; a request is cut into runs of this size. 4 to 8 is where
            Paddle is fastest on CPUs. None: it is measured at the start.
        inputs: inputs as the user declares them, where the model says less.
        outputs: the same for outputs, where only a run would tell.
        backend: what runs it, one of `backends.selection.NAMES`; "auto" decides by the model.
        precision: "fp32" or "bf16".
        preprocess: what is done to a batch before the model, the first step first.
        rate: samples per second of the device that backend "paced" emulates.
        cores: the CPUs that the process is bound to; empty: any.
        self_test: hold the model against the rules of `self_test` before it serves.
        canary: file of what it answered when it was known to be good; None: there is none.
        output_kinds: pairs (output, kind) that count more than what the self-test finds.
    """

    model: str
    device: str = "cpu"
    threads: int = 1
    micro_batch: int | None = 8
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    backend: str = "auto"
    precision: str = "fp32"
    preprocess: tuple[str, ...] = ()
    rate: float | None = None
    cores: tuple[int, ...] = ()
    self_test: bool = True
    canary: str | None = None
    output_kinds: tuple[tuple[str, OutputKind], ...] = ()

    def __post_init__(self) -> None:
        if self.threads < 1 or (self.micro_batch is not None and self.micro_batch < 1):
            raise UsageError(
                f"threads and micro-batch must be at least 1, got {self.threads} and "
                f"{self.micro_batch}"
            )
        if self.canary is not None and not self.self_test:
            raise UsageError("a canary is compared by the self-test: leave --no-self-test out")
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}"
            )
        paced.check_rate(self.backend, self.rate)

    @property
    def device_label(self) -> str:
        """Where it runs, as others are told: an emulated device never passes for a real one."""
        if self.rate is not None:
            return paced.device_label(self.rate)
        return str(Device(self.device, self.cores))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that runs a model: libraries read them when they are loaded."""
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        # What is called fp32 is fp32: on GPUs, libraries would round products to the ten bits of
        # TF32.
        return {**threads, "GLOG_minloglevel": "2", "NVIDIA_TF32_OVERRIDE": "0"}

    def on(self, device: Device) -> Self:
        """The predictor of `device`: of cores, one thread runs on each."""
        threads = len(device.cores) or self.threads
        return replace(self, device=device.name, cores=device.cores, threads=threads)

    @classmethod
    def of_options(
        cls,
        model: str,
        *,
        micro_batch: str = "8",
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        preprocess: Sequence[str] | None = None,
        output_kind: Sequence[str] | None = None,
        **others: Any,
    ) -> Self:
        """From the options of a command, as texts; others are attributes. Raises UsageError."""
        return cls(
            model,
            micro_batch=parse_micro_batch(micro_batch),
            inputs=tuple(map(TensorSpec.parse, inputs or ())),
            outputs=tuple(map(TensorSpec.parse, outputs or ())),
            preprocess=tuple(preprocess or ()),
            output_kinds=tuple(map(parse_output_kind, output_kind or ())),
            **others,
        )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The socket side.

    Attributes:
        host: address to bind.
        port: 0 takes a free one.
        slots: requests that wait for the model or run in it at once; one more is refused.
        max_message_bytes: of one request or answer.
        max_calls: open at once, those included that have not sent their request yet.
        max_calls_per_peer: of one caller at one address.
        request_bytes: of requests that are being received or answered at once.
        receive_s: seconds that a request may take to arrive, from the beginning of its call.
        security: certificates, and tokens that are let in; None: nobody is asked who calls.
        allow_system_shm: callers on this host may register named shared memory.
        http: "HOST:PORT", or "PORT" on loopback, for the protocol over HTTP; None: gRPC only.
        transport_port: for batches of our own readers; 0 takes a free one.
    """

    host: str = "127.0.0.1"
    port: int = 0
    slots: int = SLOTS_PER_DEVICE
    max_message_bytes: int = 256 << 20
    max_calls: int = 256
    max_calls_per_peer: int = 64
    request_bytes: int = 16 << 30
    receive_s: float = 10.0
    security: ServerSecurity | None = None
    allow_system_shm: bool = False
    http: str | None = None
    transport_port: int = 0

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise UsageError(f"slots must be at least 1, got {self.slots}")
        if min(self.max_calls, self.max_calls_per_peer) < 1:
            raise UsageError(
                f"a server that takes no calls serves nobody: got {self.max_calls} in all and "
                f"{self.max_calls_per_peer} of one client"
            )
        if self.request_bytes < self.max_message_bytes:
            raise UsageError(
                f"{self.request_bytes >> 20} MiB for all requests are less than the largest request"
                f" may have: {self.max_message_bytes >> 20} MiB"
            )
        if not 0.1 <= self.receive_s <= 3600:
            raise UsageError(
                f"a request takes 0.1 to 3600 seconds to arrive, not {self.receive_s:g}"
            )

    @property
    def request_bytes_per_peer(self) -> int:
        """What one caller at one address may have of these: a quarter, or one request."""
        return max(self.request_bytes // 4, self.max_message_bytes)


@dataclass(frozen=True, slots=True)
class TeacherConfig:
    """One teacher.

    Attributes:
        service: the name that students ask for; also the model's name on the wire.
        predictor: how the model is run on each device.
        server: the socket side.
        coordinator: Redis URL of the mesh; None serves alone.
        teacher_id: unique within the service; None takes the address.
        advertise: HOST or HOST:PORT that others reach this teacher at; None takes what is bound.
        ttl_s: seconds without a heartbeat after which it counts as gone.
        grace_s: seconds that a drain may take.
        metrics_listen: "PORT" or "HOST:PORT" for Prometheus; None: no metrics.
        insecure: let metrics be read from other machines though nobody is asked who reads.
        devices: each has a predictor of its own; at least 1.
        batching: how requests of different callers are merged.
        deterministic: equal requests get equal bits, whatever else is asked meanwhile: nothing is
            measured and chosen by the teacher itself, and nothing merged.
    """

    service: str
    predictor: PredictorConfig
    server: ServerConfig = field(default_factory=ServerConfig)
    coordinator: str | None = None
    teacher_id: str | None = None
    advertise: str | None = None
    ttl_s: float = 6.0
    grace_s: float = 30.0
    metrics_listen: str | None = None
    insecure: bool = False
    devices: tuple[Device, ...] = (Device(),)
    batching: BatchRule = field(default_factory=BatchRule)
    deterministic: bool = False

    def __post_init__(self) -> None:
        if not 0.1 <= self.ttl_s <= 3600:
            raise UsageError(f"a TTL is between 0.1 and 3600 seconds, not {self.ttl_s:g}")
        if not 0 <= self.grace_s <= 86_400:
            raise UsageError(f"a grace period is 0 to 86,400 seconds, not {self.grace_s:g}")
        if self.deterministic:
            self._refuse_what_changes_bits()

    @property
    def device_label(self) -> str:
        """Those of its predictors."""
        return ",".join(predictor.device_label for predictor in self.predictors)

    @property
    def predictors(self) -> tuple[PredictorConfig, ...]:
        """One for each device."""
        return tuple(self.predictor.on(device) for device in self.devices)

    def _refuse_what_changes_bits(self) -> None:
        if self.predictor.micro_batch is None:
            raise UsageError(
                "a deterministic teacher does not measure its micro-batch: name a number"
            )
        if self.batching.max_samples:
            raise UsageError("a deterministic teacher merges no requests: leave batching out")
        if len({(one.device.partition(":")[0], one.threads) for one in self.predictors}) > 1:
            raise UsageError(
                "the devices of a deterministic teacher are of one kind and have equally many "
                f"cores, not {','.join(map(str, self.devices))}"
            )


OFF: Final = "off"
#: What the extra "http" installs.
_NEEDED: Final = ("starlette", "uvicorn")


def http_listen(said: str | None, host: str) -> str | None:
    """The HOST:PORT to listen on, as far as it is named; None: HTTP is not spoken.

    Args:
        said: HOST:PORT; PORT, on the host of gRPC; "off"; None: a free port of that host, if what
            HTTP needs is installed.
        host: of gRPC.
    """
    if said is None:
        said = "0" if all(map(find_spec, _NEEDED)) else OFF
    if said == OFF:
        return None
    return join_address(host, int(said)) if said.isascii() and said.isdigit() else said
