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
_MESH = "The mesh"
_SOCKET = "The socket"

Model = Annotated[
    str,
    typer.Option(
        envvar="EDL_MODEL",
        rich_help_panel=_MODEL,
        help="An exported Paddle model (folder, prefix or file: .json or .pdmodel, with .pdiparams "
        "beside it), or a factory module:function that returns a paddle.nn.Layer, or one and a "
        "list of InputSpec.",
    ),
]
Device = Annotated[
    str, typer.Option(envvar="EDL_DEVICE", rich_help_panel=_MODEL, help="cpu or gpu:N.")
]
Threads = Annotated[
    int,
    typer.Option(
        min=1, envvar="EDL_THREADS", rich_help_panel=_MODEL, help="CPU threads of one run."
    ),
]
MicroBatch = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_MICRO_BATCH",
        rich_help_panel=_MODEL,
        help="Samples of one run; requests are cut to it. 4 to 8 is fastest on CPUs.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        rich_help_panel=_MODEL,
        help="An input as NAME:DATATYPE:DIMS (image:FP32:-1,3,224,224; -1 is free): for a factory "
        "without InputSpec, or to fix dimensions that an exported model leaves free. Repeat it for "
        "each input.",
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
        "wildcard, and the port that was bound.",
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
    int,
    typer.Option(
        min=1,
        envvar="EDL_SLOTS",
        rich_help_panel=_SOCKET,
        help="Requests that wait for the model or run in it at once; one more is answered "
        "RESOURCE_EXHAUSTED.",
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
ReceiveTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="EDL_RECEIVE_TIMEOUT",
        rich_help_panel=_SOCKET,
        help="Seconds that a request may take to arrive. Raise it for big batches over slow links.",
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
Verbose = Annotated[bool, typer.Option("--verbose", help="Log debug records, show tracebacks.")]
