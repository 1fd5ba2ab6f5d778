"""The settings of a teacher: devices, predictors, sockets. `cli.py` creates them from options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from ..proto.datatypes import TensorSpec
from ..proto.forms import OUTPUT_KINDS, OutputKind
from ..proto.security.credentials import ServerSecurity
from ..runtime.addresses import join_address
from ..runtime.errors import UsageError
from ..scheduler.batching import BatchRule
from .backends import paced
from .microbatch import parse_micro_batch

#: Environment variables for the number of threads of numerical libraries.
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: More cores than any machine has.
_MAX_CORES = 1 << 16


@dataclass(frozen=True, slots=True)
class Device:
    """A device with its own predictor process.

    Attributes:
        name: as backends call it: "cpu" or "gpu:N".
        cores: the CPUs that the process is bound to; a run has as many threads. Empty: any CPUs,
            and the number of threads is a separate setting.
    """

    name: str = "cpu"
    cores: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "cpu", "cpu:0-3", "cpu:0-1+4-5" or "gpu:N"; raises UsageError."""
        kind, colon, numbers = text.strip().partition(":")
        try:
            if kind == "cpu":
                return cls("cpu", _parse_cores(numbers) if colon else ())
            if kind == "gpu":
                return cls(f"gpu:{_parse_number(numbers) if colon else 0}")
        except ValueError:
            pass
        raise UsageError(
            f"unknown device {text.strip()!r}: write cpu, cpu:FIRST-LAST (cores; join ranges "
            "with +, as cpu:0-1+4-5) or gpu:N"
        )

    def __str__(self) -> str:
        if not self.cores:
            return self.name
        return f"{self.name}:{'+'.join(_ranges(self.cores))}"


def parse_devices(text: str) -> tuple[Device, ...]:
    """Parse a list such as "cpu:0-1,cpu:2-3,gpu:0".

    Raises:
        UsageError: it is not such a list, or two devices use the same core.
    """
    devices = tuple(Device.parse(part) for part in text.split(","))
    cores = [core for device in devices for core in device.cores]
    if twice := sorted({core for core in cores if cores.count(core) > 1}):
        raise UsageError(f"devices {text!r}: core {twice[0]} is named twice")
    return devices


def check_cores(devices: Sequence[Device]) -> None:
    """Raise UsageError for cores that this process may not use."""
    cores = {core for device in devices for core in device.cores}
    if not cores:
        return
    usable = sorted(os.sched_getaffinity(0))
    if missing := sorted(cores - set(usable)):
        raise UsageError(
            f"core {missing[0]} cannot be used: this process has cores {', '.join(_ranges(usable))}"
        )


def _parse_cores(text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        span = range(_parse_number(first), _parse_number(last if dash else first) + 1)
        if not span or len(span) > _MAX_CORES:
            raise ValueError(part)
        cores.extend(span)
    return tuple(cores)


def _parse_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _ranges(cores: Sequence[int]) -> list[str]:
    """Return consecutive cores as ranges, such as "0-1"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


#: Values of `--precision`.
PRECISIONS: Final = ("fp32", "bf16")
#: The default of `ServerConfig.slots` for each device.
SLOTS_PER_DEVICE: Final = 4


def parse_output(text: str) -> tuple[TensorSpec | None, tuple[str, OutputKind] | None]:
    """Parse NAME:DATATYPE:DIMS, NAME=KIND ("probs=probabilities") or NAME:DATATYPE:DIMS=KIND.

    Returns:
        The declared output, and (name, kind) of the output; None for a part that is not given.

    Raises:
        UsageError: it is none of these.
    """
    head, equals, value = text.rpartition("=")
    if not equals or ":" in value:
        return TensorSpec.parse(text), None
    kind = next((known for known in OUTPUT_KINDS if known == value), None)
    if not head or kind is None:
        raise UsageError(
            f"--output {text!r}: write NAME=KIND, with KIND one of {', '.join(OUTPUT_KINDS)}"
        )
    spec = TensorSpec.parse(head) if ":" in head else None
    return spec, (spec.name if spec else head, kind)


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """How a predictor process runs the model.

    Attributes:
        model: path of an exported model, a name such as `timm/NAME`, or `module:function`.
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        micro_batch: samples per run; larger requests are split. On CPUs, Paddle is fastest with 4
            to 8 samples. None: measured at the start.
        inputs: specs that the user declares, because the model does not state its inputs, or to
            narrow shapes.
        outputs: specs that the user declares, for models that do not state their outputs.
        backend: one of `backends.selection.NAMES`; "auto" decides by the model.
        precision: "fp32" or "bf16".
        preprocess: steps before the model, in order.
        rate: samples per second of the device that backend "paced" emulates.
        download: allow fetching the weights of a named model from the network.
        cores: the CPUs that the process is bound to; empty for any.
        self_test: check the model's answers (`self_test.py`) before serving.
        canary: file with known good answers for the self-test; None for none.
        output_kinds: pairs (output, kind) that override the self-test's findings.
        keep_micro_batch: keep it even if memory runs out.
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
    download: bool = False
    cores: tuple[int, ...] = ()
    self_test: bool = True
    canary: str | None = None
    output_kinds: tuple[tuple[str, OutputKind], ...] = ()
    keep_micro_batch: bool = False

    def __post_init__(self) -> None:
        if self.canary is not None and not self.self_test:
            raise UsageError("a canary is compared by the self-test: leave --no-self-test out")
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}"
            )
        paced.check_rate(self.backend, self.rate)

    @property
    def device_label(self) -> str:
        """The device, for people; an emulated device is named as emulated."""
        if self.rate is not None:
            return paced.device_label(self.rate)
        return str(Device(self.device, self.cores))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a process that runs a model; libraries read them at import."""
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        # Keep fp32 exact: on GPUs, TF32 would round factors to a mantissa of ten bits.
        return {**threads, "GLOG_minloglevel": "2", "NVIDIA_TF32_OVERRIDE": "0"}

    def on(self, device: Device) -> Self:
        """Return the settings for `device`: one thread for each of its cores, if it names any."""
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
        **others: Any,
    ) -> Self:
        """Create settings from a command's options; `others` set attributes. Raises UsageError."""
        declared = [parse_output(text) for text in outputs or ()]
        return cls(
            model,
            micro_batch=parse_micro_batch(micro_batch),
            inputs=tuple(map(TensorSpec.parse, inputs or ())),
            outputs=tuple(spec for spec, _ in declared if spec is not None),
            preprocess=tuple(preprocess or ()),
            output_kinds=tuple(kind for _, kind in declared if kind is not None),
            **others,
        )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Sockets and limits of a teacher.

    `max_calls`, `max_calls_per_peer` and `request_bytes` apply twice: to calls with batches, and to
    all other calls.

    Attributes:
        host: address to bind.
        port: of the gRPC server; 0 takes a free one.
        slots: limit of requests that wait for the model, run in it, or have labels that are not
            encoded yet; further ones are refused.
        max_message_bytes: largest request or answer.
        max_calls: limit of open calls, including those without a request yet.
        max_calls_per_peer: limit of open calls for each pair of caller and address.
        request_bytes: limit of the bytes of all requests that are being received or answered.
        receive_s: seconds within which a request must arrive, from the start of its call. Over HTTP
            and our own transport, the caller must also read a part of its answer within this time.
        security: certificates and accepted tokens; None for no authentication.
        allow_system_shm: callers on this host may register named shared memory.
        http: "HOST:PORT", or "PORT" on loopback, for HTTP; None for no HTTP.
        transport_port: TCP port for batches of our own readers; 0 takes a free one.
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
        if self.request_bytes < self.max_message_bytes:
            raise UsageError(
                f"the memory for all requests, {self.request_bytes >> 20} MiB, is less than the "
                f"limit of one request, {self.max_message_bytes >> 20} MiB"
            )
        if not 0.1 <= self.receive_s <= 3600:
            raise UsageError(
                f"a request may take 0.1 to 3600 seconds to arrive, not {self.receive_s:g}"
            )


@dataclass(frozen=True, slots=True)
class TeacherConfig:
    """The settings of one teacher.

    Attributes:
        service: the name that students ask for; also the model's name on the wire.
        predictor: how the model is run on each device.
        server: sockets and limits.
        coordinator: Redis URL of the mesh; None to serve without one.
        teacher_id: unique within the service; None for the address.
        advertise: HOST or HOST:PORT at which others reach this teacher; None for the bound address,
            or for this machine's name if that address is a wildcard.
        ttl_s: seconds without a heartbeat after which the teacher counts as gone.
        grace_s: the longest drain, in seconds.
        metrics_listen: "PORT" or "HOST:PORT" for Prometheus; None for no metrics.
        insecure: allow metrics, and Paddle Serving, beyond loopback without authentication.
        devices: each has its own predictor; at least 1.
        batching: how requests of different callers are merged.
        deterministic: equal requests get equal bits, whatever other requests there are. So nothing
            is chosen by measurements, and no requests are merged.
        beat_relay: socket of this host's relay of heartbeats; None: send them to Redis directly.
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
    beat_relay: Path | None = None

    def __post_init__(self) -> None:
        if not 0.1 <= self.ttl_s <= 3600:
            raise UsageError(f"a TTL is between 0.1 and 3600 seconds, not {self.ttl_s:g}")
        if not 0 <= self.grace_s <= 86_400:
            raise UsageError(f"a grace period is 0 to 86,400 seconds, not {self.grace_s:g}")
        if self.deterministic:
            self._check_deterministic()

    @property
    def device_label(self) -> str:
        """The devices of all predictors."""
        return ",".join(predictor.device_label for predictor in self.predictors)

    @property
    def predictors(self) -> tuple[PredictorConfig, ...]:
        """The settings of the predictor of each device."""
        predictor = replace(self.predictor, keep_micro_batch=self.deterministic)
        return tuple(predictor.on(device) for device in self.devices)

    def _check_deterministic(self) -> None:
        if self.predictor.micro_batch is None:
            raise UsageError(
                "a deterministic teacher does not measure its micro-batch: name a number"
            )
        if self.batching.max_samples:
            raise UsageError("a deterministic teacher merges no requests: leave --batch out")
        if len({(p.device.partition(":")[0], p.threads) for p in self.predictors}) > 1:
            raise UsageError(
                "the devices of a deterministic teacher must be of one kind and have equally many "
                f"cores, not {','.join(map(str, self.devices))}"
            )


OFF: Final = "off"
#: The packages of the extra "http".
_HTTP_PACKAGES: Final = ("starlette", "uvicorn")


def http_listen(value: str | None, host: str) -> str | None:
    """Return the HOST:PORT for HTTP; None for no HTTP.

    Args:
        value: value of --http: HOST:PORT, PORT (on `host`) or "off". None: a free port on `host` if
            the needed packages are installed, else no HTTP.
        host: address of the gRPC server.
    """
    if value is None:
        value = "0" if all(map(find_spec, _HTTP_PACKAGES)) else OFF
    if value == OFF:
        return None
    return join_address(host, int(value)) if value.isascii() and value.isdigit() else value
