"""The options of `edl teacher register`: their help, their limits, their environment variables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from ..options import option

# Paragraphs of one line each: a terminal's width is not ours to know.
REGISTER = (
    "Make a teacher of a server that knows nothing of us: Triton, KServe, MLServer, Paddle Serving."
    "\n\nIt is asked and tested, measured, registered, and watched: taken out when it stops "
    "answering, or answers wrongly, and registered again when it is well. Students send their "
    "batches to the server itself. SIGTERM, or 'edl drain', takes it out and ends; the server "
    "goes on. Settings come from the flag, else from the environment variable named beside it, "
    "else from the default."
)

_server = partial(option, "The server")
_trust = partial(option, "Trust")
_mesh = partial(option, "The mesh")
_socket = partial(option, "Where managers ask who has registered it")

Endpoint = Annotated[
    str,
    _server(
        "EDL_ENDPOINT",
        "Where students dial it: grpc://host:port for gRPC; http://host:port or "
        "https://host:port for HTTP, with tensors as bytes, or as JSON where it refuses these; "
        "host:port for the first of these that answers.",
    ),
]
Model = Annotated[str, _server("EDL_MODEL", "The model's name there.")]
Protocol = Annotated[
    str,
    _server(
        "EDL_PROTOCOL",
        "oip (the Open Inference Protocol), paddle-serving (its pipeline server), or "
        "paddle-serving-cpp.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    _server(
        None,
        "An input as NAME:DATATYPE:DIMS (image:FP32:-1,3,224,224; -1 is free), where the "
        "server does not describe its model, or leaves dimensions free. Repeat it for each input.",
        "--input",
    ),
]
Slots = Annotated[
    int, _server("EDL_SLOTS", "Requests that it takes at once, as its operator knows.", min=1)
]
Device = Annotated[str, _server("EDL_DEVICE", "What it runs on, in words for people.")]
Content = Annotated[
    str,
    _trust(
        "EDL_CONTENT",
        "Content id of the model: what its teachers of ours have, as 'edl teacher "
        "fingerprint' prints it, or a name of yours in a service of foreign ones alone. Default: "
        "that of the canary.",
    ),
]
Canary = Annotated[
    Path | None,
    _trust(
        "EDL_CANARY",
        "What the model answered when it was known to be good, as 'edl teacher fingerprint "
        "--canary FILE' writes it: a server that answers otherwise is not registered. Without it "
        "the content is what you declare, and nobody checks.",
        metavar="FILE",
    ),
]
Rows = Annotated[
    int,
    _trust(
        "EDL_ROWS",
        "Samples of a batch of noise, by which it is tested and measured without a canary.",
        min=1,
    ),
]
Timeout = Annotated[
    float,
    _trust(
        "EDL_TIMEOUT",
        "Seconds that it has to label a batch of a test, behind those of students.",
        min=0.1,
    ),
]
Every = Annotated[
    float,
    _trust(
        "EDL_EVERY",
        "Seconds between two questions whether it is ready; two without an answer put it out.",
        min=0.05,
    ),
]
TestEvery = Annotated[
    float,
    _trust(
        "EDL_TEST_EVERY",
        "Seconds between two batches of a test, which find a server that is ready and hangs, "
        "or answers nonsense.",
        min=0.05,
    ),
]
Service = Annotated[str, _mesh("EDL_SERVICE", "The name that students ask for.")]
Coordinator = Annotated[
    str, _mesh("EDL_COORDINATOR", "Redis URL of the mesh, as of 'edl teacher serve'.")
]
TeacherId = Annotated[
    str, _mesh("EDL_TEACHER_ID", "Unique within the service. Default: the endpoint.")
]
Ttl = Annotated[
    float, _mesh("EDL_TTL", "Seconds without a heartbeat after which it counts as gone.", min=0.5)
]
Host = Annotated[
    str,
    _socket(
        "EDL_HOST",
        "Address to bind. Beyond loopback it wants credentials (--tokens, --tls-ca), or "
        "--insecure. On loopback --tls-ca alone only tells how to check the server.",
    ),
]
Port = Annotated[int, _socket("EDL_PORT", "Port to bind; 0 takes a free one.", min=0, max=65535)]
Advertise = Annotated[
    str | None,
    _socket(
        "EDL_ADVERTISE",
        "HOST, or HOST:PORT, at which managers reach it. Default: --host, or this machine's "
        "name where that is a wildcard, and the port that was bound.",
    ),
]
Insecure = Annotated[
    bool,
    _socket(
        "EDL_INSECURE",
        "Allow a --host beyond loopback without --tokens or --tls-ca, and a token over "
        "connections that are not encrypted.",
        "--insecure",
    ),
]
