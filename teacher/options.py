"""The options of `edl-teacher serve`: their help, their limits, their environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from ..coordinator.options import LISTEN, ListenAddress
from ..runtime.errors import UsageError
from ..runtime.structured_option import Given, Key, StructuredOption

# One line for each paragraph: the command wraps them to the width of the terminal.
SERVE = (
    "Load a model, warm it up, measure it, and label what students send."
    "\n\nOne line on stdout says when it is ready; the steps before go to stderr. SIGTERM, "
    "or 'edl drain teacher NAME', drains: accept no new students, answer running requests, "
    "leave the mesh, exit 0. Settings come from the flag, else from "
    "the environment variable named beside it, else from the default."
)


def option(panel: str, variable: str | None, help_text: str, *flags: str, **limits: Any) -> Any:
    """Return a command-line option with a help panel and an environment variable."""
    return typer.Option(*flags, envvar=variable, help=help_text, rich_help_panel=panel, **limits)


_MODEL: Final = "The model"
_SOCKET: Final = "The socket"
_model = partial(option, _MODEL)
_mesh = partial(option, "The mesh")
_socket = partial(option, _SOCKET)

Model = Annotated[
    str,
    _model(
        "EDL_MODEL",
        "A folder that holds a model, its file, or the file's name without the suffix: Paddle "
        "(.json or .pdmodel, with .pdiparams beside it), ONNX (.onnx), PyTorch (.pt2 of "
        "torch.export, .pt of TorchScript). Or a model by its name: timm/NAME, torchvision/NAME, "
        "hf/NAME (transformers), with a folder in place of a NAME of timm or hf. Or a factory "
        "module:function that returns a paddle.nn.Layer, a torch.nn.Module or a function on dicts "
        "of numpy arrays, alone or as (model, \\[inputs]); a function that takes an argument is "
        "itself the model.",
    ),
]
Devices = Annotated[
    str,
    _model(
        "EDL_DEVICES",
        "Where the model runs, a process on each: cpu, gpu:N, or cpu:CORES, which is bound to "
        "these cores and runs a thread on each. Several with commas: cpu:0-1,cpu:2-3+6,gpu:0.",
    ),
]
Threads = Annotated[
    int, _model("EDL_THREADS", "CPU threads of one run, where --devices names no cores.", min=1)
]
MicroBatch = Annotated[
    str,
    _model(
        "EDL_MICRO_BATCH",
        "Samples of one run; requests are cut to it. 4 to 8 is fastest on most CPUs; 'auto' "
        "measures at the start, and chooses.",
    ),
]
Deterministic = Annotated[
    bool,
    _model(
        "EDL_DETERMINISTIC",
        "Equal requests get labels with equal bits, whatever other requests there are: no "
        "measured settings, no merging.",
        "--deterministic",
    ),
]


@dataclass(frozen=True, slots=True)
class BatchingKeys:
    """Keys of `--batch`."""

    max: Annotated[
        int, Key("most samples of a batch; 0: do not merge.", "EDL_BATCH_MAX", at_least=0)
    ] = 0
    delay: Annotated[
        float,
        Key(
            "seconds that a request waits at most for others while the device has room.",
            "EDL_BATCH_DELAY",
            at_least=0,
            metavar="SECONDS",
        ),
    ] = 0.005
    preferred: Annotated[
        str,
        Key(
            "batch sizes in samples that are sent without waiting for more requests: 8,16.",
            "EDL_BATCH_PREFERRED",
            "N,N,...",
        ),
    ] = ""


BATCH: Final = StructuredOption("--batch", BatchingKeys)
Batch = Annotated[
    list[Given] | None,
    BATCH.option("Merge requests of equal shape, as in max=32.", panel="Batching across requests"),
]
Canary = Annotated[
    str | None,
    _model(
        "EDL_CANARY",
        "What the model answered when it was known to be good, as 'edl teacher fingerprint "
        "--canary FILE' writes it: a model that answers otherwise does not serve.",
        metavar="FILE",
    ),
]
NoSelfTest = Annotated[
    bool,
    _model(
        "EDL_NO_SELF_TEST",
        "Serve without looking at what the model answers: finite, not the same for every "
        "input, not the same for every class, like its canary.",
        "--no-self-test",
    ),
]
Inputs = Annotated[
    list[str] | None,
    _model(
        None,
        "An input as NAME:DATATYPE:DIMS (image:FP32:-1,3,224,224; -1 is free): for "
        "TorchScript and for a factory that declares none, or to fix dimensions that a model "
        "leaves free. With --preprocess, what comes over the wire. Repeat it for each input.",
        "--input",
    ),
]
Outputs = Annotated[
    list[str] | None,
    _model(
        None,
        "An output as NAME:DATATYPE:DIMS, for a factory or TorchScript: only what is named "
        "so is served, and it is not looked for by a trial run. Or NAME=KIND, or both: what its "
        "numbers are, logits, probabilities, log-probabilities or other (as of a sigmoid). "
        "Default: what the self-test finds. Repeat it for each output.",
        "--output",
        metavar="NAME[:DATATYPE:DIMS][=KIND]",
    ),
]


@dataclass(frozen=True, slots=True)
class BackendKeys:
    """Keys of `--backend`."""

    name: Annotated[
        str,
        Key(
            "auto (by its files, or by what the factory returns), paddle, onnx, torch, callable; "
            "or paced, an emulated accelerator: the model's answers, at a stated speed. A paced "
            "teacher describes itself as emulated.",
            "EDL_BACKEND",
        ),
    ] = "auto"
    rate: Annotated[
        float | None, Key("samples per second of the device that paced emulates.", "EDL_RATE")
    ] = None


BACKEND: Final = StructuredOption("--backend", BackendKeys, first="name")
Backend = Annotated[
    list[Given] | None,
    BACKEND.option("What runs the model, as in onnx or paced,rate=1600.", panel=_MODEL),
]


@dataclass(frozen=True, slots=True)
class EngineKeys:
    """Keys of `--engine`."""

    name: Annotated[
        str,
        Key(
            "edl (this teacher itself), or paddle-serving: a pipeline server of Paddle Serving, "
            "which this configures, starts, registers and keeps. It takes models of Paddle 2 "
            "(.pdmodel), and few of these options.",
            "EDL_ENGINE",
        ),
    ] = "edl"
    python: Annotated[
        str | None,
        Key(
            "the interpreter of the environment in which paddle-serving runs, as 'make "
            "serving-env' makes one: ENV/bin/python.",
            "EDL_SERVING_PYTHON",
            "FILE",
        ),
    ] = None


ENGINE: Final = StructuredOption("--engine", EngineKeys, first="name")
Engine = Annotated[list[Given] | None, ENGINE.option("What serves.", panel=_MODEL)]
Precision = Annotated[
    str,
    _model(
        "EDL_PRECISION",
        "fp32, or bf16: for exported Paddle models on CPUs with avx512_bf16; how far its "
        "answers are from those of fp32 is printed at the start.",
    ),
]
Preprocess = Annotated[
    list[str] | None,
    _model(
        "EDL_PREPROCESS",
        "Done to each batch before the model, in the process of the model: unit (bytes to "
        "0..1), symmetric (to -1..1), imagenet (bytes, normalised as for ImageNet), nhwc (images "
        "come channels last), or module:function of yours, from a dict of arrays to one. What "
        "comes over the wire changes with it. Repeat it for further steps.",
    ),
]
Download = Annotated[
    bool,
    _model(
        "EDL_DOWNLOAD",
        "Fetch the weights of a named model from the network if they are not in the local cache.",
        "--download",
    ),
]
Service = Annotated[
    str | None,
    _mesh(
        "EDL_SERVICE",
        "The name that students ask for, and the model's name on the wire. Default: the "
        "model's own name.",
    ),
]
Coordinator = Annotated[
    str | None,
    _mesh(
        "EDL_COORDINATOR",
        "Redis URL of the mesh: redis://head:6379, rediss:// (TLS), unix:///path, or "
        "redis+sentinel://host:port,host:port/MASTER (rediss+sentinel:// with TLS). Passwords "
        "come from a file: ?password_file=PATH, and sentinel_password_file=; a CA by "
        "ssl_ca_certs=PATH. Without it the teacher serves alone, for readers that name its "
        "address.",
        "--redis",
        "--coordinator",
    ),
]
TeacherId = Annotated[
    str | None,
    _mesh("EDL_TEACHER_ID", "Unique within the service. Default: the advertised address."),
]
Ttl = Annotated[
    float,
    _mesh(
        "EDL_TTL", "Seconds without a heartbeat after which this teacher counts as gone.", min=0.5
    ),
]
Grace = Annotated[
    float,
    _mesh(
        "EDL_GRACE", "Seconds that draining may take, after SIGTERM, Ctrl-C or 'edl drain'.", min=0
    ),
]
Listen = Annotated[
    ListenAddress,
    typer.Option(
        "--listen",
        rich_help_panel=_SOCKET,
        help="Address of the gRPC server. Addresses beyond loopback need credentials "
        "(--tokens, or ca= of --tls), or --insecure.",
        **LISTEN,
    ),
]
Advertise = Annotated[
    str | None,
    _socket(
        "EDL_ADVERTISE",
        "HOST, or HOST:PORT where a proxy or an address translation stands in front, at which "
        "students reach this teacher. Default: that of --listen, or this machine's name where that "
        "is a wildcard, and the port that was bound. *.NAME: our own address, with dashes, stands "
        "for the star, as Kubernetes names pods.",
    ),
]
Insecure = Annotated[
    bool,
    _socket(
        "EDL_INSECURE",
        "Allow --listen, or --metrics-listen, beyond loopback without --tokens or ca= of --tls: "
        "whoever reaches it may use the model.",
        "--insecure",
    ),
]
Slots = Annotated[
    int | None,
    _socket(
        "EDL_SLOTS",
        "Requests that wait for the model or run in it at once; one more is answered "
        "RESOURCE_EXHAUSTED, with the time after which to try again. Default: 4 for each device.",
        min=1,
    ),
]


@dataclass(frozen=True, slots=True)
class LimitKeys:
    """Keys of `--limit`."""

    message_mib: Annotated[
        int, Key("largest request or answer, in MiB.", "EDL_MAX_MESSAGE_MIB", at_least=1)
    ] = 256
    calls: Annotated[
        int,
        Key(
            "calls open at once, including those that have not sent their request yet. At the "
            "limit, the oldest call without a request is ended for a new one.",
            "EDL_MAX_CALLS",
            at_least=1,
        ),
    ] = 256
    calls_per_peer: Annotated[
        int, Key("the same for one caller at one address.", "EDL_MAX_CALLS_PER_PEER", at_least=1)
    ] = 64
    memory_mib: Annotated[
        int,
        Key(
            "memory for requests that are being received or answered, in MiB; one caller at one "
            "address gets a quarter. A call of gRPC counts with message-mib until its request is "
            "there.",
            "EDL_REQUEST_MEMORY_MIB",
            at_least=1,
        ),
    ] = 16384
    receive_timeout: Annotated[
        float,
        Key(
            "seconds that a request may take to arrive. Raise it for big batches over slow links. "
            "If memory-mib is used up, a request that takes more than a second may be ended.",
            "EDL_RECEIVE_TIMEOUT",
            at_least=0.1,
            metavar="SECONDS",
        ),
    ] = 10.0

    def __post_init__(self) -> None:
        if self.message_mib > 2047:
            raise UsageError(f"--limit message-mib={self.message_mib}: at most 2047")


LIMIT: Final = StructuredOption("--limit", LimitKeys)
Limit = Annotated[
    list[Given] | None, LIMIT.option("Limits of callers, as in calls=512.", panel=_SOCKET)
]
AllowSystemShm = Annotated[
    bool,
    _socket(
        "EDL_ALLOW_SYSTEM_SHM",
        "Let callers on this host register named shared memory (/dev/shm/edl-*), as clients "
        "of Triton do. Readers do not need it.",
        "--allow-system-shm",
    ),
]
Http = Annotated[
    str | None,
    _socket(
        "EDL_HTTP",
        "PORT (on the host of --listen) or HOST:PORT at which the protocol is spoken over HTTP "
        "too, with equal limits and credentials; 0 takes a free port; 'off': none. Default: 0 if "
        "the extra 'http' is installed, else off.",
    ),
]
TransportPort = Annotated[
    int,
    _socket(
        "EDL_TRANSPORT_PORT",
        "Port on the host of --listen where our own readers send batches, as frames over TCP; 0 "
        "takes a free one. Readers that cannot reach it send batches by gRPC.",
        min=0,
        max=65535,
    ),
]
MetricsListen = Annotated[
    str | None,
    _socket(
        "EDL_METRICS_LISTEN",
        "PORT or HOST:PORT at which Prometheus reads /metrics; 0 takes a free port. With "
        "--tokens, Prometheus needs the token of a viewer or an admin.",
    ),
]
