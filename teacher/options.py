"""The options of `edl-teacher serve`: their help, their limits, their environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from ..coordinator.options import BEYOND_LOOPBACK, LISTEN, ListenAddress
from ..runtime.errors import UsageError
from ..runtime.structured_option import Given, Key, StructuredOption

# One line for each paragraph: the command wraps them to the width of the terminal.
SERVE = (
    "Load a model, warm it up, measure it, and label what students send."
    "\n\nOne line on stdout says when it is ready; progress before that goes to stderr. SIGTERM, "
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
        "hf/NAME (transformers); for timm and hf, NAME may be a folder. Or a factory "
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
        "Samples of one run; larger requests are split. Paddle on CPUs is fastest with 4 to 8; "
        "'auto': the fastest of 1 to 64, measured at the start.",
    ),
]
Deterministic = Annotated[
    bool,
    _model(
        "EDL_DETERMINISTIC",
        "Equal requests get bit-identical labels, whatever else is requested: no settings are "
        "measured, no requests are merged, and the micro-batch stays even if memory runs out.",
        "--deterministic",
    ),
]


@dataclass(frozen=True, slots=True)
class BatchingKeys:
    """Keys of `--batch`."""

    max: Annotated[
        int, Key("largest batch, in samples; 0: merge nothing.", "EDL_BATCH_MAX", at_least=0)
    ] = 0
    delay: Annotated[
        float,
        Key(
            "longest wait in seconds for other requests while the device has room.",
            "EDL_BATCH_DELAY",
            at_least=0,
            metavar="SECONDS",
        ),
    ] = 0.005
    preferred: Annotated[
        str,
        Key(
            "batch sizes, in samples, that are sent without waiting for more requests: 8,16.",
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
        "Samples and known good answers, which 'edl teacher fingerprint --canary FILE' writes: "
        "a model that answers differently does not serve.",
        metavar="FILE",
    ),
]
NoSelfTest = Annotated[
    bool,
    _model(
        "EDL_NO_SELF_TEST",
        "Skip the self-test, which checks that answers are finite and differ between inputs and "
        "between classes. Not with --canary.",
        "--no-self-test",
    ),
]
Inputs = Annotated[
    list[str] | None,
    _model(
        None,
        "An input as NAME:DATATYPE:DIMS (image:FP32:-1,3,224,224; -1 is free): for "
        "TorchScript and for a factory that declares none, or to fix dimensions that a model "
        "leaves free. With --preprocess, an input as students send it. Repeat it for each input.",
        "--input",
    ),
]
Outputs = Annotated[
    list[str] | None,
    _model(
        None,
        "An output as NAME:DATATYPE:DIMS, for a factory or TorchScript: only declared outputs are "
        "served, and no trial run looks for others. Or NAME=KIND, or both, where KIND says what "
        "its numbers are: logits, probabilities, log-probabilities or other (as of a sigmoid). "
        "Default kind: what the self-test finds. Repeat it for each output.",
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
            "auto (by its files, or by the object of the factory), paddle, onnx, torch, callable; "
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
            "which this command configures, starts, registers and restarts. It takes models of "
            "Paddle 2 (.pdmodel), and few of these options.",
            "EDL_ENGINE",
        ),
    ] = "edl"
    python: Annotated[
        str | None,
        Key(
            "the Python interpreter for paddle-serving: ENV/bin/python of an environment that "
            "'make serving-env' has made.",
            "EDL_SERVING_PYTHON",
            "FILE",
        ),
    ] = None


ENGINE: Final = StructuredOption("--engine", EngineKeys, first="name")
Engine = Annotated[list[Given] | None, ENGINE.option("The serving software.", panel=_MODEL)]
Precision = Annotated[
    str,
    _model(
        "EDL_PRECISION",
        "fp32, or bf16: for exported Paddle models on CPUs with avx512_bf16. With bf16, a teacher "
        "prints at its start how much the answers differ from those of fp32.",
    ),
]
Preprocess = Annotated[
    list[str] | None,
    _model(
        "EDL_PREPROCESS",
        "A step on each batch before the model: unit (bytes to 0..1), symmetric (bytes to "
        "-1..1), imagenet (bytes, normalised as for ImageNet), nhwc (images arrive channels last), "
        "or a module:function of yours, which maps a dict of arrays to another. Students then send "
        "the input of the first step. Repeat it for further steps.",
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
        "EDL_TTL", "Seconds without a heartbeat after which this teacher counts as lost.", min=0.5
    ),
]
Grace = Annotated[
    float,
    _mesh(
        "EDL_GRACE",
        "Seconds that draining may take, after SIGTERM, Ctrl-C or 'edl drain'.",
        min=0,
    ),
]
Listen = Annotated[
    ListenAddress,
    typer.Option(
        "--listen",
        rich_help_panel=_SOCKET,
        help=f"Address of the gRPC server. {BEYOND_LOOPBACK}",
        **LISTEN,
    ),
]
Advertise = Annotated[
    str | None,
    _socket(
        "EDL_ADVERTISE",
        "Host name or address at which students reach this teacher; HOST:PORT behind a proxy or an "
        "address translation. In *.NAME, this machine's IP address replaces the star, as in "
        "10-0-0-5.NAME, the form for Kubernetes pods. Default: the host of --listen, or this "
        "machine's name if that host is a wildcard.",
    ),
]
Insecure = Annotated[
    bool,
    _socket(
        "EDL_INSECURE",
        "Allow --listen and --http beyond loopback without credentials, and --metrics-listen "
        "beyond loopback without --tokens. Everybody who reaches them may use the model or read "
        "the metrics.",
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
            "limit, an idle call is ended for a new one.",
            "EDL_MAX_CALLS",
            at_least=1,
        ),
    ] = 256
    calls_per_peer: Annotated[
        int, Key("open calls of one caller at one address.", "EDL_MAX_CALLS_PER_PEER", at_least=1)
    ] = 64
    memory_mib: Annotated[
        int,
        Key(
            "memory for requests that are being received or answered, in MiB; one caller at one "
            "address gets a quarter, but at least message-mib. A gRPC call counts with message-mib "
            "until its request has arrived; a gRPC stream, until it ends.",
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
        "Serve the protocol over HTTP, too, with equal limits and credentials, at HOST:PORT or "
        "at PORT on the host of --listen; port 0: any free port; 'off': no HTTP. Default: 0 if the "
        "extra 'http' is installed, else off.",
    ),
]
TransportPort = Annotated[
    int,
    _socket(
        "EDL_TRANSPORT_PORT",
        "Port on the host of --listen to which readers of EDL-Dist send batches, as frames over "
        "TCP; 0: any free port. Readers that cannot reach it send batches by gRPC.",
        min=0,
        max=65535,
    ),
]
MetricsListen = Annotated[
    str | None,
    _socket(
        "EDL_METRICS_LISTEN",
        "Serve Prometheus metrics on this address; PORT alone: on loopback; port 0: any free port. "
        "With --tokens, Prometheus needs the token of a viewer or an admin. Default: none.",
        metavar="[HOST:]PORT",
    ),
]
