"""The options of `edl-teacher serve`: their help, their limits, their environment variables."""

from __future__ import annotations

from typing import Annotated

import typer

# Paragraphs of one line each: a terminal's width is not ours to know.
SERVE = (
    "Load a model, warm it up, measure it, and label what students send."
    "\n\nOne line on stdout says when it is ready; the steps before go to stderr. SIGTERM, "
    "or an administrator by 'edl drain', drains: no new students, finish what is there, leave, "
    "exit 0. Settings come from the flag, else from "
    "the environment variable named beside it, else from the default."
)

_MODEL = "The model"
_BATCHING = "Batching across requests"
_MESH = "The mesh"
_SOCKET = "The socket"

Model = Annotated[
    str,
    typer.Option(
        envvar="EDL_MODEL",
        rich_help_panel=_MODEL,
        help="A folder that holds a model, its file, or the file's name without the suffix: Paddle "
        "(.json or .pdmodel, with .pdiparams beside it), ONNX (.onnx), PyTorch (.pt2 of "
        "torch.export, .pt of TorchScript). Or a factory module:function that returns a "
        "paddle.nn.Layer, a torch.nn.Module or a function on dicts of numpy arrays, alone or as "
        "(model, \\[inputs]); a function that takes an argument is itself the model.",
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        envvar="EDL_DEVICES",
        rich_help_panel=_MODEL,
        help="Where the model runs, a process on each: cpu, gpu:N, or cpu:CORES, which is bound to "
        "these cores and runs a thread on each. Several with commas: cpu:0-1,cpu:2-3+6,gpu:0.",
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_THREADS",
        rich_help_panel=_MODEL,
        help="CPU threads of one run, where --devices names no cores.",
    ),
]
MicroBatch = Annotated[
    str,
    typer.Option(
        envvar="EDL_MICRO_BATCH",
        rich_help_panel=_MODEL,
        help="Samples of one run; requests are cut to it. 4 to 8 is fastest on most CPUs; 'auto' "
        "measures at the start, and chooses.",
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        envvar="EDL_DETERMINISTIC",
        rich_help_panel=_MODEL,
        help="Equal requests get equal bits, whatever else is asked: nothing is tuned by the "
        "teacher itself, nothing merged.",
    ),
]
BatchMax = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="EDL_BATCH_MAX",
        rich_help_panel=_BATCHING,
        help="Merge requests of equal shape up to so many samples; 0: merge none.",
    ),
]
BatchDelay = Annotated[
    float,
    typer.Option(
        min=0,
        envvar="EDL_BATCH_DELAY",
        rich_help_panel=_BATCHING,
        help="Seconds that a request waits at most for others while the device has room.",
    ),
]
BatchPreferred = Annotated[
    str,
    typer.Option(
        envvar="EDL_BATCH_PREFERRED",
        rich_help_panel=_BATCHING,
        help="Sizes in samples that go without waiting for more, with commas: 8,16.",
    ),
]
Canary = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        envvar="EDL_CANARY",
        rich_help_panel=_MODEL,
        help="What the model answered when it was known to be good, as 'edl teacher fingerprint "
        "--canary FILE' writes it: a model that answers otherwise does not serve.",
    ),
]
NoSelfTest = Annotated[
    bool,
    typer.Option(
        "--no-self-test",
        envvar="EDL_NO_SELF_TEST",
        rich_help_panel=_MODEL,
        help="Serve without looking at what the model answers: finite, not the same for every "
        "input, not the same for every class, like its canary.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        rich_help_panel=_MODEL,
        help="An input as NAME:DATATYPE:DIMS (image:FP32:-1,3,224,224; -1 is free): for "
        "TorchScript and for a factory that declares none, or to fix dimensions that a model "
        "leaves free. With --preprocess, what comes over the wire. Repeat it for each input.",
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        rich_help_panel=_MODEL,
        help="An output as NAME:DATATYPE:DIMS, for a factory or TorchScript: only what is named "
        "here is served, and it is not looked for by a trial run. Repeat it for each output.",
    ),
]
OutputKinds = Annotated[
    list[str] | None,
    typer.Option(
        "--output-kind",
        metavar="NAME=KIND",
        rich_help_panel=_MODEL,
        help="What the numbers of an output are: logits, probabilities, log-probabilities or other "
        "(as of a sigmoid). Default: what the self-test finds. Repeat it for each output.",
    ),
]
Backend = Annotated[
    str,
    typer.Option(
        envvar="EDL_BACKEND",
        rich_help_panel=_MODEL,
        help="What runs the model: auto (by its files, or by what the factory returns), paddle, "
        "onnx, torch, callable; or paced, an emulated accelerator: the model's answers, at the "
        "speed that --rate states. Whatever a paced teacher says of itself says 'emulated'.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        envvar="EDL_ENGINE",
        rich_help_panel=_MODEL,
        help="What serves: edl (this teacher itself), or paddle-serving: a pipeline server of "
        "Paddle Serving, which this configures, starts, registers and keeps. It takes models of "
        "Paddle 2 (.pdmodel), and few of these options.",
    ),
]
ServingPython = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        envvar="EDL_SERVING_PYTHON",
        rich_help_panel=_MODEL,
        help="The interpreter of the environment in which --engine paddle-serving runs, as 'make "
        "serving-env' makes one: ENV/bin/python.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        envvar="EDL_RATE",
        rich_help_panel=_MODEL,
        help="Samples per second of the device that --backend paced emulates.",
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        envvar="EDL_PRECISION",
        rich_help_panel=_MODEL,
        help="fp32, or bf16: for exported Paddle models on CPUs with avx512_bf16; how far its "
        "answers are from those of fp32 is printed at the start.",
    ),
]
Preprocess = Annotated[
    list[str] | None,
    typer.Option(
        envvar="EDL_PREPROCESS",
        rich_help_panel=_MODEL,
        help="Done to each batch before the model, in the process of the model: unit (bytes to "
        "0..1), symmetric (to -1..1), imagenet (bytes, normalised as for ImageNet), nhwc (images "
        "come channels last), or module:function of yours, from a dict of arrays to one. What "
        "comes over the wire changes with it. Repeat it for further steps.",
    ),
]
Service = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_SERVICE",
        rich_help_panel=_MESH,
        help="The name that students ask for, and the model's name on the wire. Default: the "
        "model's own name.",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_COORDINATOR",
        rich_help_panel=_MESH,
        help="Redis URL of the mesh: redis://head:6379, rediss:// (TLS), unix:///path, or "
        "redis+sentinel://host:port,host:port/MASTER (rediss+sentinel:// with TLS). Passwords "
        "come from a file: ?password_file=PATH, and sentinel_password_file=; a CA by "
        "ssl_ca_certs=PATH. Without it the teacher serves alone, for readers that name its "
        "address.",
    ),
]
TeacherId = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_TEACHER_ID",
        rich_help_panel=_MESH,
        help="Unique within the service. Default: the advertised address.",
    ),
]
Ttl = Annotated[
    float,
    typer.Option(
        min=0.5,
        envvar="EDL_TTL",
        rich_help_panel=_MESH,
        help="Seconds without a heartbeat after which this teacher counts as gone.",
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        min=0,
        envvar="EDL_GRACE",
        rich_help_panel=_MESH,
        help="Seconds that draining may take, after SIGTERM, Ctrl-C or 'edl drain'.",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        envvar="EDL_HOST",
        rich_help_panel=_SOCKET,
        help="Address to bind. Beyond loopback it wants credentials (--tokens, --tls-ca), or "
        "--insecure.",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        envvar="EDL_PORT",
        rich_help_panel=_SOCKET,
        help="Port to bind; 0 takes a free one.",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_ADVERTISE",
        rich_help_panel=_SOCKET,
        help="HOST, or HOST:PORT where a proxy or an address translation stands in front, at which "
        "students reach this teacher. Default: --host, or this machine's name where that is a "
        "wildcard, and the port that was bound. *.NAME: our own address, with dashes, stands for "
        "the star, as Kubernetes names pods.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="EDL_INSECURE",
        rich_help_panel=_SOCKET,
        help="Allow a --host, or a --metrics-listen, beyond loopback without --tokens or --tls-ca: "
        "whoever reaches it may use the model.",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="EDL_SLOTS",
        rich_help_panel=_SOCKET,
        help="Requests that wait for the model or run in it at once; one more is answered "
        "RESOURCE_EXHAUSTED, with the time after which to try again. Default: 4 for each device.",
    ),
]
MaxMessageMib = Annotated[
    int,
    typer.Option(
        min=1,
        max=2047,
        envvar="EDL_MAX_MESSAGE_MIB",
        rich_help_panel=_SOCKET,
        help="Largest request or answer, in MiB.",
    ),
]
MaxCalls = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_MAX_CALLS",
        rich_help_panel=_SOCKET,
        help="Calls open at once, those included that have not sent their request yet. Where there "
        "is no room, the oldest of these is ended for a new one.",
    ),
]
MaxCallsPerPeer = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_MAX_CALLS_PER_PEER",
        rich_help_panel=_SOCKET,
        help="The same for one caller at one address.",
    ),
]
RequestMemoryMib = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_REQUEST_MEMORY_MIB",
        rich_help_panel=_SOCKET,
        help="Memory for requests that are being received or answered, in MiB; one caller at one "
        "address gets a quarter. A call of gRPC counts with --max-message-mib until its request "
        "is there.",
    ),
]
AllowSystemShm = Annotated[
    bool,
    typer.Option(
        "--allow-system-shm",
        envvar="EDL_ALLOW_SYSTEM_SHM",
        rich_help_panel=_SOCKET,
        help="Let callers on this host register named shared memory (/dev/shm/edl-*), as clients "
        "of Triton do. Readers do not need it.",
    ),
]
ReceiveTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="EDL_RECEIVE_TIMEOUT",
        rich_help_panel=_SOCKET,
        help="Seconds that a request may take to arrive. Raise it for big batches over slow links.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_HTTP",
        rich_help_panel=_SOCKET,
        help="PORT (on --host) or HOST:PORT at which the protocol is spoken over HTTP too, with "
        "equal limits and credentials; 0 takes a free port; 'off': nowhere. Without it: 0 where "
        "the extra 'http' is installed, else off.",
    ),
]
TransportPort = Annotated[
    int,
    typer.Option(
        envvar="EDL_TRANSPORT_PORT",
        min=0,
        max=65535,
        rich_help_panel=_SOCKET,
        help="Port on --host where our own readers send batches, as frames over TCP; 0 takes a "
        "free one. Readers that cannot reach it send batches by gRPC.",
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_METRICS_LISTEN",
        rich_help_panel=_SOCKET,
        help="PORT or HOST:PORT at which Prometheus reads /metrics; 0 takes a free port. With "
        "--tokens it wants one of a viewer or an admin.",
    ),
]
