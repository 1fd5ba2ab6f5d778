"""The options of `edl teacher register`: their help, their limits, their environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Paragraphs of one line each: a terminal's width is not ours to know.
REGISTER = (
    "Make a teacher of a server that knows nothing of us: Triton, KServe, MLServer, Paddle Serving."
    "\n\nIt is asked and tested, measured, registered, and watched: taken out when it stops "
    "answering, or answers wrongly, and registered again when it is well. Students send their "
    "batches to the server itself. SIGTERM, or 'edl drain', takes it out and ends; the server "
    "goes on. Settings come from the flag, else from the environment variable named beside it, "
    "else from the default."
)

_SERVER = "The server"
_TRUST = "Trust"
_MESH = "The mesh"
_SOCKET = "Where managers ask who has registered it"

Endpoint = Annotated[
    str,
    typer.Option(
        envvar="EDL_ENDPOINT",
        rich_help_panel=_SERVER,
        help="Where students dial it: grpc://host:port for gRPC; http://host:port or "
        "https://host:port for HTTP, with tensors as bytes, or as JSON where it refuses these; "
        "host:port for the first of these that answers.",
    ),
]
Model = Annotated[
    str, typer.Option(envvar="EDL_MODEL", rich_help_panel=_SERVER, help="The model's name there.")
]
Protocol = Annotated[
    str,
    typer.Option(
        envvar="EDL_PROTOCOL",
        rich_help_panel=_SERVER,
        help="oip (the Open Inference Protocol), paddle-serving (its pipeline server), or "
        "paddle-serving-cpp.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        rich_help_panel=_SERVER,
        help="An input as NAME:DATATYPE:DIMS (image:FP32:-1,3,224,224; -1 is free), where the "
        "server does not describe its model, or leaves dimensions free. Repeat it for each input.",
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_SLOTS",
        rich_help_panel=_SERVER,
        help="Requests that it takes at once, as its operator knows.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        envvar="EDL_DEVICE", rich_help_panel=_SERVER, help="What it runs on, in words for people."
    ),
]
Content = Annotated[
    str,
    typer.Option(
        envvar="EDL_CONTENT",
        rich_help_panel=_TRUST,
        help="Content id of the model: what its teachers of ours have, as 'edl teacher "
        "fingerprint' prints it, or a name of yours in a service of foreign ones alone. Default: "
        "that of the canary.",
    ),
]
Canary = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="EDL_CANARY",
        rich_help_panel=_TRUST,
        help="What the model answered when it was known to be good, as 'edl teacher fingerprint "
        "--canary FILE' writes it: a server that answers otherwise is not registered. Without it "
        "the content is what you declare, and nobody checks.",
    ),
]
Rows = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_ROWS",
        rich_help_panel=_TRUST,
        help="Samples of a batch of noise, by which it is tested and measured without a canary.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="EDL_TIMEOUT",
        rich_help_panel=_TRUST,
        help="Seconds that it has to label a batch of a test, behind those of students.",
    ),
]
Every = Annotated[
    float,
    typer.Option(
        min=0.05,
        envvar="EDL_EVERY",
        rich_help_panel=_TRUST,
        help="Seconds between two questions whether it is ready; two without an answer put it out.",
    ),
]
TestEvery = Annotated[
    float,
    typer.Option(
        min=0.05,
        envvar="EDL_TEST_EVERY",
        rich_help_panel=_TRUST,
        help="Seconds between two batches of a test, which find a server that is ready and hangs, "
        "or answers nonsense.",
    ),
]
Service = Annotated[
    str,
    typer.Option(
        envvar="EDL_SERVICE", rich_help_panel=_MESH, help="The name that students ask for."
    ),
]
Coordinator = Annotated[
    str,
    typer.Option(
        envvar="EDL_COORDINATOR",
        rich_help_panel=_MESH,
        help="Redis URL of the mesh, as of 'edl teacher serve'.",
    ),
]
TeacherId = Annotated[
    str,
    typer.Option(
        envvar="EDL_TEACHER_ID",
        rich_help_panel=_MESH,
        help="Unique within the service. Default: the endpoint.",
    ),
]
Ttl = Annotated[
    float,
    typer.Option(
        min=0.5,
        envvar="EDL_TTL",
        rich_help_panel=_MESH,
        help="Seconds without a heartbeat after which it counts as gone.",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        envvar="EDL_HOST",
        rich_help_panel=_SOCKET,
        help="Address to bind. Beyond loopback it wants credentials (--tokens, --tls-ca), or "
        "--insecure. On loopback --tls-ca alone only tells how to check the server.",
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
        help="HOST, or HOST:PORT, at which managers reach it. Default: --host, or this machine's "
        "name where that is a wildcard, and the port that was bound.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="EDL_INSECURE",
        rich_help_panel=_SOCKET,
        help="Allow a --host beyond loopback without --tokens or --tls-ca, and a token over "
        "connections that are not encrypted.",
    ),
]
