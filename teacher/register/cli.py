"""The command `edl teacher register`, and its options: help, limits, environment variables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...coordinator.options import DEFAULT_LISTEN, LISTEN, ListenAddress, Verbose
from ...proto.security import options as credentials
from ...runtime import supervise
from ...runtime.lifecycle import stop_on_signals
from ...runtime.logs import configure_logging, tell
from ..options import option

if TYPE_CHECKING:
    from ...proto.security import ServerSecurity, TlsFiles


# One line for each paragraph: the command wraps them to the width of the terminal.
REGISTER = (
    "Register a foreign server as a teacher: Triton, KServe, MLServer, Paddle Serving."
    "\n\nIt is probed, tested, measured, registered, and watched: removed from the registry when "
    "it stops answering, or answers wrongly, and registered again when it is well. Students send "
    "their batches to the server itself. SIGTERM, or 'edl drain', removes it and ends; the server "
    "keeps running. Settings come from the flag, else from the environment variable named beside "
    "it, else from the default."
)

_server = partial(option, "The server")
_trust = partial(option, "Trust")
_mesh = partial(option, "The mesh")
_socket = partial(option, "The sidecar's own server")

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
        "Seconds between two probes; two probes without an answer remove it from the registry.",
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
    str, _mesh("EDL_COORDINATOR", "Redis URL of the mesh, as of 'edl teacher serve'.", "--redis")
]
TeacherId = Annotated[
    str, _mesh("EDL_TEACHER_ID", "Unique within the service. Default: the endpoint.")
]
Ttl = Annotated[
    float, _mesh("EDL_TTL", "Seconds without a heartbeat after which it counts as gone.", min=0.5)
]
Listen = Annotated[
    ListenAddress,
    typer.Option(
        "--listen",
        rich_help_panel="The sidecar's own server",
        help="Address of the sidecar. Addresses beyond loopback need credentials (--tokens, "
        "or ca= of --tls), or --insecure. On loopback ca= alone only says how to check the server.",
        **LISTEN,
    ),
]
Advertise = Annotated[
    str | None,
    _socket(
        "EDL_ADVERTISE",
        "HOST, or HOST:PORT, at which managers reach it. Default: that of --listen, or this "
        "machine's name where that is a wildcard, and the port that was bound.",
    ),
]
Insecure = Annotated[
    bool,
    _socket(
        "EDL_INSECURE",
        "Allow --listen beyond loopback without --tokens or ca= of --tls, and a token over "
        "connections that are not encrypted.",
        "--insecure",
    ),
]


def register(
    service: Service,
    endpoint: Endpoint,
    model: Model,
    coordinator: Coordinator,
    content: Content = "",
    protocol: Protocol = "oip",
    inputs: Inputs = None,
    slots: Slots = 4,
    device: Device = "foreign",
    canary: Canary = None,
    rows: Rows = 8,
    timeout: Timeout = 30.0,
    every: Every = 1.0,
    test_every: TestEvery = 15.0,
    teacher_id: TeacherId = "",
    ttl: Ttl = 6.0,
    listen: Listen = DEFAULT_LISTEN,
    advertise: Advertise = None,
    insecure: Insecure = False,
    tls: credentials.Tls = None,
    tokens: credentials.Tokens = None,
    token_file: credentials.TokenFile = None,
    verbose: Verbose = False,
) -> None:
    """The command; its help is `REGISTER`."""
    supervise.end_with_parent()
    configure_logging(verbose)
    from ...proto.datatypes import TensorSpec
    from ...scheduler.admission import HealthCheckSettings
    from .config import RegisterConfig
    from .sidecar import register as keep_registered

    files = credentials.tls_files(tls)
    config = RegisterConfig(
        service,
        endpoint,
        model,
        content,
        coordinator,
        protocol=protocol,
        canary=canary,
        inputs=tuple(map(TensorSpec.parse, inputs or ())),
        rows=rows,
        slots=slots,
        device=device,
        teacher_id=teacher_id,
        ttl_s=ttl,
        timeout_s=timeout,
        health_check=HealthCheckSettings(every, test_every),
        host=listen.host,
        port=listen.port,
        advertise=advertise,
        client=credentials.client_security(files, token_file, insecure=insecure),
        server=security_at(listen.host, files, tokens, insecure=insecure),
    )
    with stop_on_signals(exits_after=True) as stop:
        keep_registered(config, stop, on_ready=typer.echo, on_progress=tell)


def security_at(
    host: str, tls: TlsFiles, tokens: Path | None, *, insecure: bool = False
) -> ServerSecurity | None:
    """Return the security of the sidecar's own server.

    On loopback without a certificate, `--tls ca=FILE` is only for checking the foreign server.

    Raises:
        UsageError: the options do not fit together, or the sidecar would be open to everybody.
    """
    from ...proto.security import TlsFiles, check_exposure, is_loopback

    asks_only = is_loopback(host) and tls.certificate is None
    security = credentials.server_security(TlsFiles() if asks_only else tls, tokens)
    check_exposure(host, security, insecure, "the sidecar of a foreign server")
    return security
