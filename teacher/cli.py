"""The command line of a teacher: `edl-teacher serve`, which is also `edl teacher serve`."""

from __future__ import annotations

import contextlib
from pathlib import PurePath

import typer

from .. import supervise
from ..lifecycle import configure_logging, run_cli, stop_on_signals
from ..proto.security import options as credentials
from . import options

app = typer.Typer(
    name="edl-teacher",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def teacher() -> None:
    """Serve a model as a teacher: batches in, soft labels out."""


@app.command(help=options.SERVE)
def serve(
    model: options.Model,
    device: options.Device = "cpu",
    threads: options.Threads = 1,
    micro_batch: options.MicroBatch = 8,
    declared: options.Inputs = None,
    service: options.Service = None,
    coordinator: options.Coordinator = None,
    teacher_id: options.TeacherId = None,
    ttl: options.Ttl = 6.0,
    grace: options.Grace = 30.0,
    host: options.Host = "127.0.0.1",
    port: options.Port = 0,
    advertise: options.Advertise = None,
    insecure: options.Insecure = False,
    slots: options.Slots = 4,
    max_message_mib: options.MaxMessageMib = 256,
    max_calls: options.MaxCalls = 256,
    max_calls_per_peer: options.MaxCallsPerPeer = 64,
    receive_timeout: options.ReceiveTimeout = 10.0,
    metrics_listen: options.MetricsListen = None,
    tls_cert: credentials.TlsCert = None,
    tls_key: credentials.TlsKey = None,
    tls_ca: credentials.TlsCa = None,
    tokens: credentials.Tokens = None,
    verbose: options.Verbose = False,
) -> None:
    """The command; `options.SERVE` says what it does."""
    supervise.end_with_parent()
    configure_logging(verbose)
    from ..proto.allocator import tune_allocator
    from ..proto.security import check_exposure, is_loopback
    from .config import PredictorConfig, ServerConfig, TeacherConfig
    from .model import TensorSpec
    from .serving import serve as serve_teacher

    tune_allocator()
    security = credentials.server_security(tls_cert, tls_key, tls_ca, tokens)
    check_exposure(host, security, insecure, "the teacher")
    if not is_loopback(host) and (security is None or not security.authenticates):
        _say(f"warning: {host} takes requests from whoever reaches it")
    inputs = tuple(TensorSpec.parse(text) for text in declared or ())
    config = TeacherConfig(
        service=service or model_name(model),
        predictor=PredictorConfig(model, device, threads, micro_batch, inputs),
        server=ServerConfig(
            host,
            port,
            slots,
            max_message_mib << 20,
            max_calls,
            max_calls_per_peer,
            receive_timeout,
            security,
        ),
        coordinator=coordinator,
        teacher_id=teacher_id,
        advertise=advertise,
        ttl_s=ttl,
        grace_s=grace,
        metrics_listen=metrics_listen,
        insecure=insecure,
    )
    with stop_on_signals() as stop:
        serve_teacher(config, stop, on_ready=typer.echo, on_progress=_say)


def model_name(model: str) -> str:
    """What a model is called where nobody has named it: its folder or file, or its factory."""
    factory = model.rpartition(":")[2]
    return PurePath(factory).stem or "model"


def main() -> None:
    """Run the command line; the console script calls it."""
    run_cli(app, name="edl-teacher")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more, which ends no teacher
        typer.echo(text, err=True)
