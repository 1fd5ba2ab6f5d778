"""`edl student train|evaluate|export`: train a job file on nodes that come and go; what it made."""

from __future__ import annotations

import logging
import os
import signal
import socket
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..coordinator.options import LogFormat, Verbose
from ..lifecycle import stop_on_signals
from ..logs import configure_logging, is_json, log_as
from ..scheduler.students.saving import OVERHEAD
from ..supervise import end_with_parent
from . import options
from .launch import CARDS
from .settings import DEFAULT_HANG_S, DEFAULT_KEEP, TrainSettings

if TYPE_CHECKING:
    from .launch import LaunchInfo
    from .supervisor.agent import NodeOutcome

#: Paddle notes at its import that it could not compile extensions, which nobody here does.
_COMPILES = "paddle.utils.cpp_extension.extension_utils"
#: Of Paddle: warnings only; and not that note.
_NOTES = {"GLOG_minloglevel": "2", "PYTHONWARNINGS": f"ignore::UserWarning:{_COMPILES}"}

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def student() -> None:
    """Train students that survive: on one node or on several that come and go."""
    warnings.filterwarnings("ignore", category=UserWarning, module=_COMPILES)


@app.command()
def train(
    job_file: options.JobFile,
    job: options.Job = None,
    nodes: options.Nodes = "",
    ranks_per_node: options.RanksPerNode = 1,
    coordinator: options.Coordinator = None,
    teachers: options.Teachers = "",
    host: options.Host = None,
    hang: options.Hang = DEFAULT_HANG_S,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    total_batch: options.TotalBatch = None,
    micro_batch: options.MicroBatch = None,
    deal: options.DealOption = "dynamic",
    shard_rows: options.ShardRows = None,
    seed: options.Seed = 0,
    amp: options.AmpOption = "off",
    lr_policy: options.LrPolicyOption = "keep",
    checkpoint: options.Checkpoint = None,
    accept_change: options.AcceptChange = None,
    save_every_steps: options.SaveEverySteps = None,
    save_every: options.SaveEvery = None,
    save_overhead: options.SaveOverhead = OVERHEAD,
    keep: options.Keep = DEFAULT_KEEP,
    events: options.Events = None,
    id_log: options.IdLog = None,
    dry_run: options.DryRun = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Train JOB.py: this command is one node; start it on others for them to join.

    A rank that dies or hangs is started again from the newest checkpoint; nodes may come and go
    within --nodes. Ctrl-C leaves at the next step with a checkpoint, and the same command goes on
    from there; a second Ctrl-C ends at once. `edl status` shows all nodes and ranks.

    Exits with 0 when the job is done, 2 when the job file or an option cannot work, 69 when a
    checkpoint could not be written, 1 when the job failed; after a signal as that signal has it.
    """
    end_with_parent()
    from .launch import launched, nodes_of

    start = launched(os.environ, socket.gethostname())
    settings = TrainSettings(
        str(job_file.absolute()),
        job or job_file.stem,
        nodes_of(nodes, start),
        ranks_per_node,
        coordinator,
        tuple(one.strip() for one in teachers.split(",") if one.strip()),
        total_batch,
        micro_batch,
        epochs,
        steps,
        seed,
        deal,
        shard_rows,
        _absolute(checkpoint),
        save_every_steps,
        save_every or None,
        save_overhead,
        keep,
        amp,
        lr_policy,
        hang,
        _absolute(events),
        _absolute(id_log),
        tuple(accept_change or ()),
    )
    if dry_run:
        from .dry_run import plan

        for line in plan(settings):
            typer.echo(line)
        return
    configure_logging(verbose, log_format)
    log_as(job=settings.job)
    outcome = _supervise(settings, start, host)
    figures = "".join(f"  {name} {value:.6g}" for name, value in outcome.metrics.items())
    typer.echo(f"{outcome.kind} at step {outcome.step}{figures}")


def _supervise(settings: TrainSettings, start: LaunchInfo, host: str | None) -> NodeOutcome:
    """Be a node until the job ends, or a signal says to leave."""
    from rich.console import Console

    from ..coordinator.jobs import open_board
    from .job.spec import load_job
    from .launch import own_address
    from .show import open_display
    from .supervisor.agent import NodeDependencies, Supervisor
    from .supervisor.ui import DisplayHandler, NodeReporter

    if not Path(settings.spec).is_file():
        load_job(settings.spec)  # which says what is wrong
    # Closed whatever fails before the supervisor runs: a terminal gets its cursor back.
    with closing(open_display(Console(), settings.job, settings.events)) as display:
        if not is_json():
            handler = DisplayHandler(display)
            root = logging.getLogger()
            handler.setFormatter(root.handlers[0].formatter)
            root.handlers[:] = [handler]
        supervisor = Supervisor(
            settings,
            open_board(settings.coordinator),
            start.node_id(),
            host or start.host or own_address(settings.coordinator),
            NodeReporter(display),
            NodeDependencies(environment=_quiet(start.cards)),
        )
        with stop_on_signals(reraise=(signal.SIGINT, signal.SIGTERM)) as stop:
            outcome = supervisor.run(stop)
            if outcome.kind == "left":
                typer.echo(f"left at step {outcome.step}; the same command goes on from there")
            return outcome


def _quiet(cards: str) -> dict[str, str]:
    """What ranks find in their environment beside what this process has.

    Paddle's notes about its sockets and its build are for its developers, unless asked for.
    """
    given = {name: value for name, value in _NOTES.items() if name not in os.environ}
    return given | ({CARDS: cards} if cards else {})


def _absolute(place: str | Path | None) -> str | None:
    """A folder by its absolute path, as ranks may stand elsewhere; a URL as it is."""
    if place is None or "://" in str(place):
        return None if place is None else str(place)
    return str(Path(place).expanduser().absolute())


@app.command()
def evaluate(
    job_file: options.JobFile,
    checkpoint: options.From,
    part: Annotated[
        Literal["eval", "train"], typer.Option(help="Which feed of the job file.")
    ] = "eval",
    batch_size: options.BatchSize = None,
) -> None:
    """Show the loss and the metrics of a checkpoint over the job's feed."""
    from .evaluate import evaluate as run
    from .job.spec import load_job

    typer.echo(run(load_job(job_file), checkpoint, part=part, batch_size=batch_size).line())


@app.command()
def export(
    job_file: options.JobFile,
    checkpoint: options.From,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the model goes.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX model, too.")] = False,
    batch_size: options.BatchSize = None,
) -> None:
    """Write a checkpoint as an inference model of Paddle, for `edl-teacher serve` or Paddle itself.

    Its answers are held against the student's own on the first batch of feed("eval").
    """
    from .export import export as run
    from .job.spec import load_job

    formats: tuple[Literal["paddle", "onnx"], ...] = ("paddle", "onnx") if onnx else ("paddle",)
    written = run(load_job(job_file), checkpoint, out, formats=formats, batch_size=batch_size)
    for file in written.files:
        typer.echo(file)
    for name, worst in written.worst.items():
        told = "not run here" if worst is None else f"differs by {worst:.3g} at most"
        typer.echo(f"{name}: step {written.step}, {told}")
