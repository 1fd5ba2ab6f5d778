"""Commands for models that are not served: `edl teacher fingerprint` and `edl teacher bench`."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from . import config as configuration

_canary = partial(options.option, "The canary", None)
#: Tolerance as a share of the largest value of an output: float32 on other machines or backends
#: stays below it, another model does not.
_TOLERANCE = 1e-3

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[
    str, typer.Option(envvar="EDL_DEVICE", help="cpu, cpu:CORES (bound to these) or gpu:N.")
]
Canary = Annotated[
    Path | None,
    _canary("Write a canary there: samples, and what the model answers now.", metavar="FILE"),
]
Samples = Annotated[
    Path | None,
    _canary(
        "Samples of your own for it, an array for each input by its name; few and real. Without "
        "it they are noise.",
        metavar="FILE.npz",
    ),
]
Tolerance = Annotated[
    float,
    _canary(
        "How far from it a teacher may be: a share of the greatest value of an output. For "
        "teachers at bf16 take 0.02.",
        min=0,
    ),
]
BatchSizes = Annotated[
    str, typer.Option(metavar="N,N,...", help="Samples of a batch, all in one run.")
]
Runs = Annotated[int, typer.Option(min=3, help="Runs of each size.")]
Seconds = Annotated[
    float, typer.Option(min=0, help="After so long no further round of all sizes begins.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
]


def fingerprint(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="As --model of 'serve'.")],
    device: Device = "cpu",
    threads: options.Threads = 1,
    micro_batch: options.MicroBatch = "8",
    backend: options.Backend = "auto",
    rate: options.Rate = None,
    precision: options.Precision = "fp32",
    preprocess: options.Preprocess = None,
    declared: options.Inputs = None,
    declared_outputs: options.Outputs = None,
    output_kind: options.OutputKinds = None,
    canary: Canary = None,
    samples: Samples = None,
    tolerance: Tolerance = _TOLERANCE,
    as_json: AsJson = False,
) -> None:
    """Say who a model is: content_id, numerics_id, inputs, outputs; and write its canary."""
    from ..errors import UsageError
    from .config import PredictorConfig
    from .offline import run_offline

    if samples is not None and canary is None:
        raise UsageError("--samples are for a canary: name its file by --canary")
    _check_folder(canary)
    config = PredictorConfig.of_options(
        model,
        threads=threads,
        micro_batch=micro_batch,
        backend=backend,
        rate=rate,
        precision=precision,
        preprocess=preprocess,
        inputs=declared,
        outputs=declared_outputs,
        output_kind=output_kind,
        self_test=samples is None,  # the user's samples test more
    )
    facts = run_offline(
        "fingerprint",
        config.on(_on(device)),
        _say,
        canary=None if canary is None else str(canary),
        samples=None if samples is None else str(samples),
        tolerance=tolerance,
    )
    typer.echo(json.dumps(facts, indent=2) if as_json else _lines(facts))


def bench(
    model: options.Model,
    batch_sizes: BatchSizes = "1,2,4,8,16,32",
    runs: Runs = 30,
    seconds: Seconds = 60.0,
    device: Device = "cpu",
    threads: options.Threads = 1,
    backend: options.Backend = "auto",
    rate: options.Rate = None,
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

    sizes = parse_sizes(batch_sizes, "--batch-sizes")
    _check_folder(plot)
    if plot is not None:
        import matplotlib  # noqa: F401  # fail before the measurement if it is missing
    config = PredictorConfig.of_options(
        model,
        threads=threads,
        backend=backend,
        rate=rate,
        precision=precision,
        preprocess=preprocess,
        inputs=declared,
        outputs=declared_outputs,
    )
    found = run_offline(
        "bench", config.on(_on(device)), _say, sizes=sizes, runs=runs, seconds=seconds
    )
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _table(found)
    if plot is not None:  # last, so that the measurements are printed even if the picture fails
        sys.stdout.flush()
        draw(found["rows"], f"{found['model']} on {found['device']}", plot)
        _say(f"picture written: {plot}")


def _on(device: str) -> configuration.Device:
    """The device of an option; raises UsageError if it cannot be used."""
    from .config import Device, check_cores

    where = Device.parse(device)
    check_cores([where])
    return where


def _check_folder(file: Path | None) -> None:
    """Raise UsageError before minutes of work if `file` could not be written."""
    from ..errors import UsageError

    if file is not None and not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent} to write {file.name} to")


def _lines(facts: dict[str, Any]) -> str:
    rows = [(name, facts[name]) for name in ("content_id", "numerics_id", "platform")]
    rows += [("input", text) for text in facts["inputs"]]
    kinds = facts["output_kinds"].items()
    rows += [("output", text) for text in facts["outputs"]]
    rows += [("output_kind", f"{name}={kind}") for name, kind in kinds]
    t_t = (
        f"{1000 * facts['t_t_s']:.3g} ms/sample at micro-batch {facts['micro_batch']} on "
        f"{facts['device']}"
    )
    return "\n".join(f"{name:12} {value}" for name, value in [*rows, ("t_t", t_t)])


def _table(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{found['model']} on {found['device']}", markup=False, highlight=False)
    table = Table("batch", "p50 ms", "p99 ms", "samples/s", "")
    for row in found["rows"]:
        figures = (1000 * row["p50_s"], 1000 * row["p99_s"], row["samples_per_s"])
        shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in figures]
        table.add_row(str(row["batch"]), *shown, "best" if row["best"] else "")
    console.print(table)


def _say(text: str) -> None:
    typer.echo(text, err=True)
