"""The command `edl teacher register`, and its options: help, limits, environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ...coordinator.options import BEYOND_LOOPBACK, DEFAULT_LISTEN, LISTEN, ListenAddress
from ...proto.security import options as credentials
from ...runtime import supervise
from ...runtime.lifecycle import stop_on_signals
from ...runtime.logs import configure_logging, print_progress
from ...runtime.structured_option import Given, Key, StructuredOption
from ..options import option

if TYPE_CHECKING:
    from ...proto.security.credentials import ServerSecurity, TlsFiles


# One line for each paragraph: the command wraps them to the width of the terminal.
REGISTER = (
    "Register a foreign server as a teacher: Triton, KServe, MLServer, Paddle Serving."
    "\n\nIt is probed, tested, measured, registered, and watched: removed from the registry when "
    "it stops answering, or answers wrongly, and registered again when it answers well. Students "
    "send their batches to the server itself. After SIGTERM or 'edl drain', this command removes "
    "it from the registry and ends; the server keeps running. Settings come from the flag, else "
    "from the environment variable named beside it, else from the default."
)

_server = partial(option, "The server")
_trust = partial(option, "Trust")
_mesh = partial(option, "The mesh")
_socket = partial(option, "The sidecar's own server")

Endpoint = Annotated[
    str,
    _server(
        "EDL_ENDPOINT",
        "Address at which students reach it: grpc://host:port for gRPC; http://host:port or "
        "https://host:port for HTTP, with tensors as bytes, or as JSON if it refuses bytes; "
        "host:port: gRPC, or HTTP if gRPC does not answer.",
    ),
]
Model = Annotated[str, _server("EDL_MODEL", "The model's name at the server.")]
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
        "An input as NAME:DATATYPE:DIMS (image:FP32:-1,3,224,224; -1 is free), if the "
        "server does not describe its model, or leaves dimensions free. Repeat it for each input.",
        "--input",
    ),
]
Slots = Annotated[
    int, _server("EDL_SLOTS", "Requests that students may have in flight at the server.", min=1)
]
Device = Annotated[str, _server("EDL_DEVICE", "Description of the server's device, for people.")]
Content = Annotated[
    str,
    _trust(
        "EDL_CONTENT",
        "content_id of the model, as 'edl teacher fingerprint' prints it; if all teachers of the "
        "service are foreign servers, any name. Default: the canary's.",
    ),
]
Canary = Annotated[
    Path | None,
    _trust(
        "EDL_CANARY",
        "Samples and known good answers, which 'edl teacher fingerprint --canary FILE' writes: "
        "a server that answers differently is not registered. Without it nobody checks whether "
        "--content is true.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True, slots=True)
class ProbeKeys:
    """Keys of `--probe`."""

    every: Annotated[
        float,
        Key(
            "seconds between two probes; two probes without an answer remove the server from the "
            "registry.",
            "EDL_EVERY",
            at_least=0.05,
            metavar="SECONDS",
        ),
    ] = 1.0
    test_every: Annotated[
        float,
        Key(
            "seconds between two test batches, which find a server that is ready but hangs or "
            "answers nonsense.",
            "EDL_TEST_EVERY",
            at_least=0.05,
            metavar="SECONDS",
        ),
    ] = 15.0
    timeout: Annotated[
        float,
        Key(
            "seconds within which it must label a test batch, behind the batches of students.",
            "EDL_TIMEOUT",
            at_least=0.1,
            metavar="SECONDS",
        ),
    ] = 30.0
    rows: Annotated[
        int,
        Key(
            "samples of a test batch of noise, if there is no canary.",
            "EDL_ROWS",
            at_least=1,
        ),
    ] = 8


PROBE: Final = StructuredOption("--probe", ProbeKeys)
Probe = Annotated[
    list[Given] | None, PROBE.option("How it is watched, as in timeout=60,rows=4.", panel="Trust")
]
Service = Annotated[str, _mesh("EDL_SERVICE", "The name that students ask for.")]
Coordinator = Annotated[
    str, _mesh("EDL_COORDINATOR", "Redis URL of the mesh, as of 'edl teacher serve'.", "--redis")
]
TeacherId = Annotated[
    str, _mesh("EDL_TEACHER_ID", "Unique within the service. Default: the endpoint.")
]
Ttl = Annotated[
    float, _mesh("EDL_TTL", "Seconds without a heartbeat after which it counts as lost.", min=0.5)
]
Listen = Annotated[
    ListenAddress,
    typer.Option(
        "--listen",
        rich_help_panel="The sidecar's own server",
        help=f"Address of the sidecar. {BEYOND_LOOPBACK} On loopback, ca= alone only verifies "
        "the foreign server.",
        **LISTEN,
    ),
]
Advertise = Annotated[
    str | None,
    _socket(
        "EDL_ADVERTISE",
        "Host name or address at which managers reach the sidecar; HOST:PORT behind a proxy or an "
        "address translation. Default: the host of --listen, or this machine's name if that host "
        "is a wildcard.",
    ),
]
Insecure = Annotated[
    bool,
    _socket(
        "EDL_INSECURE",
        "Allow --listen beyond loopback without credentials, and --token-file over "
        "unencrypted connections.",
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
    probe: Probe = None,
    teacher_id: TeacherId = "",
    ttl: Ttl = 6.0,
    listen: Listen = DEFAULT_LISTEN,
    advertise: Advertise = None,
    insecure: Insecure = False,
    tls: credentials.Tls = None,
    tokens: credentials.Tokens = None,
    token_file: credentials.TokenFile = None,
) -> None:
    """The command; its help is `REGISTER`."""
    supervise.end_with_parent()
    configure_logging()
    from ...proto.datatypes import TensorSpec
    from ...scheduler.admission import HealthCheckSettings
    from .config import RegisterConfig
    from .sidecar import register as keep_registered

    files, probe_keys = credentials.tls_files(tls), PROBE.read(probe)
    config = RegisterConfig(
        service,
        endpoint,
        model,
        content,
        coordinator,
        protocol=protocol,
        canary=canary,
        inputs=tuple(map(TensorSpec.parse, inputs or ())),
        rows=probe_keys.rows,
        slots=slots,
        device=device,
        teacher_id=teacher_id,
        ttl_s=ttl,
        timeout_s=probe_keys.timeout,
        health_check=HealthCheckSettings(probe_keys.every, probe_keys.test_every),
        host=listen.host,
        port=listen.port,
        advertise=advertise,
        client=credentials.client_security(files, token_file, insecure=insecure),
        server=security_at(listen.host, files, tokens, insecure=insecure),
    )
    with stop_on_signals(ignore_sigterm_after=True) as stop:
        keep_registered(config, stop, on_ready=typer.echo, on_progress=print_progress)


def security_at(
    host: str, tls: TlsFiles, tokens: Path | None, *, insecure: bool = False
) -> ServerSecurity | None:
    """Return the security of the sidecar's own server.

    On loopback without a certificate, `--tls ca=FILE` is only for checking the foreign server.

    Raises:
        UsageError: the options do not fit together, or the sidecar would be open to everybody.
    """
    from ...proto.security.credentials import TlsFiles, check_exposure
    from ...runtime.addresses import is_loopback

    only_verifies = is_loopback(host) and tls.certificate is None
    security = credentials.server_security(TlsFiles() if only_verifies else tls, tokens)
    check_exposure(host, security, insecure, "the sidecar of a foreign server")
    return security
