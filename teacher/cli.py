"""The commands of `edl teacher` (also `edl-teacher`): serve, fingerprint, bench, register."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..coordinator.options import DEFAULT_LISTEN
from ..proto.security import options as credentials
from ..runtime import supervise
from ..runtime.errors import UsageError
from ..runtime.files import FORMATS, check_plot, check_writable
from ..runtime.lifecycle import raise_descriptor_limit, stop_on_signals
from ..runtime.logs import configure_logging, print_progress
from ..runtime.structured_option import AsJson, Given, Key, StructuredOption
from . import options
from .register.cli import REGISTER, register

if TYPE_CHECKING:
    from ..proto.security.credentials import ServerSecurity
    from . import config as configuration


#: Environment variable with the socket of this host's agent, which sends the heartbeats of its
#: teachers in one message.
RELAY_VARIABLE: Final = "EDL_BEAT_RELAY"
#: `bench` times each size once in a round. After this many seconds, and at least 3 rounds, it
#: starts no further round.
_BENCH_S: Final = 60.0
#: If a teacher outlives its parent, it is killed this many seconds after `--grace`.
_EXIT_MARGIN_S: Final = 5.0
#: Default tolerance, as a share of the largest value of an output. float32 results of other
#: machines and backends differ by less than this, those of another model by more.
_TOLERANCE = 1e-3

Device = Annotated[
    str, typer.Option(envvar="EDL_DEVICE", help="cpu, cpu:CORES (bound to these cores) or gpu:N.")
]


@dataclass(frozen=True, slots=True)
class CanaryKeys:
    """Keys of `--canary` of `edl teacher fingerprint`."""

    file: Annotated[
        Path | None,
        Key("write samples and the model's current answers to this file.", metavar="FILE"),
    ] = None
    samples: Annotated[
        Path | None,
        Key(
            "a few real samples of yours: an array for each input, by its name. Default: noise.",
            metavar="FILE.npz",
        ),
    ] = None
    tolerance: Annotated[
        float,
        Key(
            "greatest accepted difference of a teacher's answers, as a share of the greatest value "
            "of the output; for teachers with bf16: 0.02.",
            at_least=0,
        ),
    ] = _TOLERANCE


CANARY: Final = StructuredOption("--canary", CanaryKeys, first="file")
Canary = Annotated[
    list[Given] | None, CANARY.option("Write a canary, the file that --canary of 'serve' reads.")
]
BatchSizes = Annotated[
    str,
    typer.Option(
        metavar="N,N,...",
        help="Batch sizes to time; the model gets each batch whole. If it was exported for one"
        " batch size, only that is timed.",
    ),
]
Runs = Annotated[
    int,
    typer.Option(
        min=3, help="Runs of each size; the timing ends after 60 s, but not before 3 runs."
    ),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help=f"Draw a plot: {FORMATS}.")]


def fingerprint(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As --model of 'serve'.")],
    device: Device = "cpu",
    micro_batch: options.MicroBatch = "8",
    backend: options.Backend = None,
    precision: options.Precision = "fp32",
    preprocess: options.Preprocess = None,
    download: options.Download = False,
    declared: options.Inputs = None,
    declared_outputs: options.Outputs = None,
    canary: Canary = None,
    as_json: AsJson = False,
) -> None:
    """Print a model's content_id, numerics_id, inputs and outputs; --canary writes a canary."""
    from .config import PredictorConfig
    from .offline import run_offline

    canary_keys, backend_keys = CANARY.read(canary), options.BACKEND.read(backend)
    if canary_keys.samples is not None and canary_keys.file is None:
        raise UsageError("samples= is for a canary: name its file, as in --canary FILE,samples=...")
    if canary_keys.file is not None:
        check_writable(canary_keys.file)
    config = PredictorConfig.of_options(
        model,
        micro_batch=micro_batch,
        backend=backend_keys.name,
        rate=backend_keys.rate,
        precision=precision,
        preprocess=preprocess,
        download=download,
        inputs=declared,
        outputs=declared_outputs,
        self_test=canary_keys.samples is None,  # the user's samples test more
    )
    facts = run_offline(
        "fingerprint",
        config.on(_parse_device(device)),
        print_progress,
        canary=None if canary_keys.file is None else str(canary_keys.file),
        samples=None if canary_keys.samples is None else str(canary_keys.samples),
        tolerance=canary_keys.tolerance,
    )
    typer.echo(json.dumps(facts, indent=2) if as_json else _format_fingerprint(facts))


def bench(
    model: options.Model,
    batch_sizes: BatchSizes = "1,2,4,8,16,32",
    runs: Runs = 30,
    device: Device = "cpu",
    backend: options.Backend = None,
    precision: options.Precision = "fp32",
    preprocess: options.Preprocess = None,
    declared: options.Inputs = None,
    declared_outputs: options.Outputs = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Time a model at several batch sizes, and mark the one to choose."""
    from .config import PredictorConfig
    from .microbatch import parse_sizes
    from .offline import draw, run_offline

    sizes, backend_keys = parse_sizes(batch_sizes, "--batch-sizes"), options.BACKEND.read(backend)
    if plot is not None:
        check_plot(plot)
    config = PredictorConfig.of_options(
        model,
        backend=backend_keys.name,
        rate=backend_keys.rate,
        precision=precision,
        preprocess=preprocess,
        inputs=declared,
        outputs=declared_outputs,
    )
    results = run_offline(
        "bench",
        config.on(_parse_device(device)),
        print_progress,
        sizes=sizes,
        runs=runs,
        seconds=_BENCH_S,
    )
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print_table(results)
    if plot is not None:  # last, so that the measurements are printed even if the picture fails
        sys.stdout.flush()
        draw(results["rows"], f"{results['model']} on {results['device']}", plot)
        print_progress(f"picture written: {plot}")


def _parse_device(device: str) -> configuration.Device:
    """Parse the value of --device; raise UsageError for unknown devices and unusable cores."""
    from .config import Device, check_cores

    parsed = Device.parse(device)
    check_cores([parsed])
    return parsed


def _format_fingerprint(facts: dict[str, Any]) -> str:
    rows = [(name, facts[name]) for name in ("content_id", "numerics_id", "platform")]
    rows += [("input", text) for text in facts["inputs"]]
    rows += [("preprocess", text) for text in facts["preprocessing"]]
    kinds = facts["output_kinds"].items()
    rows += [("output", text) for text in facts["outputs"]]
    rows += [("output_kind", f"{name}={kind}") for name, kind in kinds]
    t_t = (
        f"{1000 * facts['t_t_s']:.3g} ms/sample at micro-batch {facts['micro_batch']} on "
        f"{facts['device']}"
    )
    return "\n".join(f"{name:12} {value}" for name, value in [*rows, ("t_t", t_t)])


def _print_table(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    console.print(f"{results['model']} on {results['device']}")
    table = Table("batch", "p50 ms", "p99 ms", "samples/s", "")
    for row in results["rows"]:
        values = (1000 * row["p50_s"], 1000 * row["p99_s"], row["samples_per_s"])
        cells = [f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in values]
        table.add_row(str(row["batch"]), *cells, "best" if row["best"] else "")
    console.print(table)


app = typer.Typer(name="edl-teacher", no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def teacher() -> None:
    """Serve a model as a teacher: batches in, soft labels out."""


@app.command(help=options.SERVE)
def serve(
    model: options.Model,
    devices: options.Devices = "cpu",
    threads: options.Threads = 1,
    micro_batch: options.MicroBatch = "8",
    deterministic: options.Deterministic = False,
    batch: options.Batch = None,
    declared: options.Inputs = None,
    outputs: options.Outputs = None,
    backend: options.Backend = None,
    engine: options.Engine = None,
    precision: options.Precision = "fp32",
    preprocess: options.Preprocess = None,
    download: options.Download = False,
    canary: options.Canary = None,
    no_self_test: options.NoSelfTest = False,
    service: options.Service = None,
    coordinator: options.Coordinator = None,
    teacher_id: options.TeacherId = None,
    ttl: options.Ttl = 6.0,
    grace: options.Grace = 30.0,
    listen: options.Listen = DEFAULT_LISTEN,
    advertise: options.Advertise = None,
    insecure: options.Insecure = False,
    slots: options.Slots = None,
    limit: options.Limit = None,
    allow_system_shm: options.AllowSystemShm = False,
    http: options.Http = None,
    transport_port: options.TransportPort = 0,
    metrics_listen: options.MetricsListen = None,
    tls: credentials.Tls = None,
    tokens: credentials.Tokens = None,
) -> None:
    """The command; its help is `options.SERVE`."""
    supervise.end_with_parent(grace + _EXIT_MARGIN_S)
    configure_logging()
    raise_descriptor_limit()
    from ..proto.arena import tune_allocator
    from .config import (
        SLOTS_PER_DEVICE,
        PredictorConfig,
        ServerConfig,
        TeacherConfig,
        http_listen,
        parse_devices,
    )
    from .microbatch import parse_batching

    tune_allocator()
    engine_keys, backend_keys = options.ENGINE.read(engine), options.BACKEND.read(backend)
    limit_keys, batch_keys = options.LIMIT.read(limit), options.BATCH.read(batch)
    serve_teacher = _serve_function(engine_keys.name, engine_keys.python)
    security = credentials.server_security(credentials.tls_files(tls), tokens)
    # Paddle Serving refuses --http, so it gets no default.
    if engine_keys.name == "edl" or http is not None:
        http = http_listen(http, listen.host)
    _check_reach(listen.host, http, security, insecure=insecure)
    if no_self_test:
        print_progress("warning: no self-test: wrong answers of the model are not noticed")
    parsed_devices = parse_devices(devices)
    config = TeacherConfig(
        service=service or model_name(model),
        predictor=PredictorConfig.of_options(
            model,
            threads=threads,
            micro_batch=micro_batch,
            inputs=declared,
            outputs=outputs,
            backend=backend_keys.name,
            precision=precision,
            preprocess=preprocess,
            download=download,
            rate=backend_keys.rate,
            self_test=not no_self_test,
            canary=canary,
        ),
        server=ServerConfig(
            listen.host,
            listen.port,
            slots or SLOTS_PER_DEVICE * len(parsed_devices),
            limit_keys.message_mib << 20,
            limit_keys.calls,
            limit_keys.calls_per_peer,
            limit_keys.memory_mib << 20,
            limit_keys.receive_timeout,
            security,
            allow_system_shm,
            http,
            transport_port,
        ),
        coordinator=coordinator,
        teacher_id=teacher_id,
        advertise=advertise,
        ttl_s=ttl,
        grace_s=grace,
        metrics_listen=metrics_listen,
        insecure=insecure,
        devices=parsed_devices,
        batching=parse_batching(batch_keys.max, batch_keys.delay, batch_keys.preferred),
        deterministic=deterministic,
        beat_relay=Path(relay) if (relay := os.environ.get(RELAY_VARIABLE)) else None,
    )
    with stop_on_signals(ignore_sigterm_after=True) as stop:
        serve_teacher(config, stop, on_ready=typer.echo, on_progress=print_progress)


app.command("fingerprint")(fingerprint)
app.command("bench")(bench)
app.command("register", help=REGISTER)(register)


def model_name(model: str) -> str:
    """Return the default service name: the last part of the model's name, path or factory."""
    from .backends.model_source import is_named

    if is_named(model):
        return PurePath(model).name
    factory = model.rpartition(":")[2]
    return PurePath(factory).stem or "model"


def _serve_function(name: str, serving_python: str | None) -> Callable[..., None]:
    """Return the `serve` function of an engine; raise UsageError if the options do not fit."""
    if name == "paddle-serving":
        from .paddle_serving import engine

        if serving_python is None:
            raise UsageError(
                "--engine paddle-serving needs an interpreter: add python=ENV/bin/python, of an "
                "environment that 'make serving-env' has made"
            )
        return partial(engine.serve, python=Path(serving_python).expanduser().absolute())
    if name != "edl":
        raise UsageError(f"unknown engine {name!r}: expected edl or paddle-serving")
    if serving_python is not None:
        raise UsageError("python= is for --engine paddle-serving")
    from . import serving

    return serving.serve


def _check_reach(
    host: str, http: str | None, security: ServerSecurity | None, *, insecure: bool
) -> None:
    """Refuse to open gRPC or HTTP to everybody by mistake; warn if one is opened on purpose.

    Raises:
        UsageError: other machines reach the teacher without credentials, and `insecure` is False.
    """
    from ..proto.security.credentials import check_exposure
    from ..runtime.addresses import is_loopback, split_listen

    servers = {host: "the teacher"}
    if http is not None:
        servers.setdefault(split_listen(http)[0], "the teacher's HTTP")
    authenticates = security is not None and security.authenticates
    for address, server in servers.items():
        check_exposure(address, security, insecure, server)
        if not authenticates and not is_loopback(address):
            print_progress(
                f"warning: {address} accepts requests from every machine that can reach it"
            )
