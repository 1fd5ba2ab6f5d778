"""The commands `edl student train`, `evaluate` and `export`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import warnings
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from ..runtime.lifecycle import stop_on_signals
from ..runtime.logs import add_log_fields, configure_logging, is_json
from ..runtime.structured_option import Given, Key, StructuredOption
from ..runtime.supervise import end_with_parent
from ..scheduler.students.saving import DEFAULT_KEEP, OVERHEAD
from ..scheduler.students.weights import LearningRateScaling
from .settings import DEFAULT_HANG_S, Amp, Deal, TrainSettings

if TYPE_CHECKING:
    from .launch import LaunchInfo
    from .supervisor.agent import NodeOutcome

_world = partial(typer.Option, rich_help_panel="Nodes and ranks")
_length = partial(typer.Option, rich_help_panel="How long")
_batch = partial(typer.Option, rich_help_panel="Batches")
_saving = partial(typer.Option, rich_help_panel="Checkpoints")
_monitoring = partial(typer.Option, rich_help_panel="Monitoring")

JobFile = Annotated[
    Path,
    typer.Argument(
        metavar="JOB.py",
        help="The job file: Python with model(), loss(), optimizer() and feed(); see "
        "docs/reference/job-file.md.",
    ),
]


@dataclass(frozen=True, slots=True)
class DealKeys:
    """Keys of `--deal`."""

    how: Annotated[
        Deal,
        Key(
            "dynamic: ranks lease shards and get rows in proportion to their speed; static: equal "
            "parts, the same whatever the timing."
        ),
    ] = "dynamic"
    shard_rows: Annotated[
        int | None,
        Key(
            "samples per shard. Default: computed from the length of an epoch and the number of "
            "ranks.",
            at_least=1,
        ),
    ] = None


DEAL: Final = StructuredOption("--deal", DealKeys, first="how")


@dataclass(frozen=True, slots=True)
class SaveKeys:
    """Keys of `--save`."""

    steps: Annotated[int | None, Key("steps between two checkpoints.", at_least=1)] = None
    seconds: Annotated[float | None, Key("seconds between two checkpoints.", metavar="SECONDS")] = (
        None
    )
    overhead: Annotated[
        float,
        Key(
            "without steps= and seconds=: save after the first step, then as often as this share "
            "of the time allows; 0: only when the world changes and at the end."
        ),
    ] = OVERHEAD
    keep: Annotated[int, Key("checkpoints that are kept.", at_least=1)] = DEFAULT_KEEP


SAVE: Final = StructuredOption("--save", SaveKeys)
CheckpointLocation = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="PLACE",
        help="A checkpoint, or a folder or URL of several, of which the newest valid one is used.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Rows of a batch, if the feed is a data set.")
]

#: Paddle's module that warns at import that it cannot compile extensions, which EDL does not use.
_NOISY_MODULE = "paddle.utils.cpp_extension.extension_utils"
#: Variables of ranks that reduce Paddle's log and suppress that warning.
_RANK_VARIABLES = {
    "GLOG_minloglevel": "2",
    "PYTHONWARNINGS": f"ignore::UserWarning:{_NOISY_MODULE}",
}

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def student() -> None:
    """Train students that survive failures, on one node or on several that come and go."""
    warnings.filterwarnings("ignore", category=UserWarning, module=_NOISY_MODULE)


@app.command()
def train(
    job_file: JobFile,
    job: Annotated[
        str | None,
        typer.Option(help="Name of the training in the mesh. Default: that of the job file."),
    ] = None,
    nodes: Annotated[
        str,
        _world(
            envvar="EDL_NODES",
            metavar="N|MIN:MAX",
            help="How many nodes train together: exactly N, or MIN to MAX, as in 1:4; this command "
            "is one of them. Default: as many as the launcher started, else 1.",
        ),
    ] = "",
    ranks_per_node: Annotated[int, _world(min=1, help="Student processes of this node.")] = 1,
    coordinator: Annotated[
        str | None,
        _world(
            "--redis",
            envvar="EDL_COORDINATOR",
            help="Redis URL of the mesh: nodes meet there, and teachers are found there. Without "
            "it this node trains alone.",
        ),
    ] = None,
    teachers: Annotated[
        str, _world(metavar="HOST:PORT,...", help="Teachers to use without --redis.")
    ] = "",
    host: Annotated[
        str | None,
        _world(
            "--advertise",
            envvar="EDL_ADVERTISE",
            help="Host name or address at which other nodes reach the ranks of this one. Default: "
            "POD_IP, else the local address of connections to --redis.",
        ),
    ] = None,
    hang: Annotated[
        float,
        _world(
            metavar="SECONDS",
            help="Seconds without a step after which a rank is killed and a new generation begins.",
        ),
    ] = DEFAULT_HANG_S,
    epochs: Annotated[
        int | None,
        _length(min=1, help="End after this many epochs. Give this limit, --steps, or both."),
    ] = None,
    steps: Annotated[
        int | None,
        _length(
            min=1,
            help="End after this many steps. Of --epochs and --steps, the lower limit applies.",
        ),
    ] = None,
    total_batch: Annotated[
        int | None,
        _batch(min=1, help="Rows of a step, of all ranks together. Default: the feed's own."),
    ] = None,
    micro_batch: Annotated[
        int | None,
        _batch(
            min=1,
            help="Limit of the rows of one forward pass; the gradients of several passes are "
            "summed.",
        ),
    ] = None,
    deal: Annotated[
        list[Given] | None, DEAL.option("How ranks share samples.", panel="Batches")
    ] = None,
    seed: Annotated[int, _batch(min=0, help="Seed of parameters and of the order of samples.")] = 0,
    amp: Annotated[Amp, _batch(help="Mixed precision.")] = "off",
    lr_policy: Annotated[
        LearningRateScaling, _batch(help="How the learning rate changes with the number of ranks.")
    ] = "keep",
    checkpoint: Annotated[
        str | None,
        _saving(
            metavar="PLACE",
            help="Folder or URL (s3://, gs://, hdfs://) that all nodes reach; training continues "
            "from the newest valid checkpoint there. Default, for one node only: a temporary "
            "folder, which is deleted at the end.",
        ),
    ] = None,
    accept_change: Annotated[
        list[str] | None,
        _saving(
            metavar="FIELD",
            help="Continue from a checkpoint although this setting, such as `seed` or "
            "`total_batch`, has changed since; may be given several times.",
        ),
    ] = None,
    save: Annotated[
        list[Given] | None,
        SAVE.option("When to save, as in seconds=600,keep=5.", panel="Checkpoints"),
    ] = None,
    events: Annotated[
        Path | None, _monitoring(metavar="FOLDER", help="Write event files of TensorBoard.")
    ] = None,
    id_log: Annotated[
        Path | None,
        _monitoring(
            metavar="FOLDER", help="Each rank writes which samples each of its steps trained."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done; no rank is started.")
    ] = False,
) -> None:
    """Train JOB.py. This command is one node; start it on other machines to add nodes.

    A rank that dies or hangs is started again from the newest checkpoint; nodes may come and go
    within --nodes. Ctrl-C leaves at the next step; with --checkpoint, the same command goes on from
    there. A second Ctrl-C ends at once. With --redis, `edl status` shows all nodes and ranks.

    Exits with 0 when the job is done, 2 when the job file or an option is wrong, 69 without
    teachers, without Redis at the start, or when a checkpoint cannot be read or written, 1 when the
    job failed; after a signal, with the code of the signal (130, 143).
    """
    end_with_parent()
    from .launch import nodes_of, read_launcher

    launch = read_launcher(os.environ, socket.gethostname())
    deal_keys, save_keys = DEAL.read(deal), SAVE.read(save)
    settings = TrainSettings(
        job_file=str(job_file.absolute()),
        job=job or job_file.stem,
        nodes=nodes_of(nodes, launch),
        ranks_per_node=ranks_per_node,
        coordinator=coordinator,
        teachers=tuple(address.strip() for address in teachers.split(",") if address.strip()),
        total_batch=total_batch,
        micro_batch=micro_batch,
        epochs=epochs,
        steps=steps,
        seed=seed,
        deal=deal_keys.how,
        shard_rows=deal_keys.shard_rows,
        checkpoint=_absolute(checkpoint),
        save_every_steps=save_keys.steps,
        save_every_s=save_keys.seconds,
        save_overhead=save_keys.overhead,
        keep=save_keys.keep,
        amp=amp,
        lr_policy=lr_policy,
        hang_s=hang,
        events=_absolute(events),
        id_log=_absolute(id_log),
        accept_changes=tuple(accept_change or ()),
    )
    if dry_run:
        from .dry_run import plan

        for line in plan(settings):
            typer.echo(line)
        return
    configure_logging()
    add_log_fields(job=settings.job)
    outcome = _supervise(settings, launch, host)
    figures = "".join(f"  {name} {value:.6g}" for name, value in outcome.metrics.items())
    typer.echo(f"{outcome.kind} at step {outcome.step}{figures}")


def _supervise(settings: TrainSettings, launch: LaunchInfo, host: str | None) -> NodeOutcome:
    """Run this node until the job ends or a signal asks it to leave."""
    from rich.console import Console

    from ..coordinator.jobs import open_job_board
    from .job.spec import load_job
    from .launch import own_address
    from .show.displays import open_display
    from .show.events import EventFiles
    from .supervisor.agent import NodeDependencies, Supervisor
    from .supervisor.ui import DisplayHandler, NodeReporter

    if not Path(settings.job_file).is_file():
        load_job(settings.job_file)  # raises an error that says what to do
    # Closing the display restores the terminal's cursor, even if the supervisor does not start.
    with closing(open_display(Console(), settings.job)) as display:
        if not is_json():
            handler = DisplayHandler(display)
            root = logging.getLogger()
            handler.setFormatter(root.handlers[0].formatter)
            root.handlers[:] = [handler]
        supervisor = Supervisor(
            settings,
            open_job_board(settings.coordinator),
            launch.node_id(),
            host or launch.host or own_address(settings.coordinator),
            NodeReporter(display, EventFiles(settings.events) if settings.events else None),
            NodeDependencies(environment=_rank_environment(launch.gpus)),
        )
        with stop_on_signals(reraise=(signal.SIGINT, signal.SIGTERM)) as stop:
            outcome = supervisor.run(stop)
            if outcome.kind == "left":
                next_run = "goes on from there" if settings.checkpoint else "begins anew"
                typer.echo(f"left at step {outcome.step}; the same command {next_run}")
            return outcome


def _rank_environment(gpus: str) -> dict[str, str]:
    """Return the variables to add to the environment of ranks.

    If `gpus` is given, ranks see only these GPUs. The other variables silence Paddle's own log,
    which helps only its developers. They are added only if the user has not set them.
    """
    from .launch import VISIBLE_GPUS

    added = {name: value for name, value in _RANK_VARIABLES.items() if name not in os.environ}
    return added | ({VISIBLE_GPUS: gpus} if gpus else {})


def _absolute(place: str | Path | None) -> str | None:
    """Make a path absolute, as ranks may have another working directory; keep a URL."""
    if place is None or "://" in str(place):
        return None if place is None else str(place)
    return str(Path(place).expanduser().absolute())


@app.command()
def evaluate(
    job_file: JobFile,
    checkpoint: CheckpointLocation,
    part: Annotated[
        Literal["eval", "train"], typer.Option(help="Which feed of the job file.")
    ] = "eval",
    batch_size: BatchSize = None,
) -> None:
    """Show the loss and the metrics of a checkpoint on a feed of the job."""
    from .evaluate import evaluate as run
    from .job.spec import load_job

    typer.echo(run(load_job(job_file), checkpoint, part=part, batch_size=batch_size).line())


@app.command()
def export(
    job_file: JobFile,
    checkpoint: CheckpointLocation,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Write the model to this folder.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX model, too.")] = False,
    batch_size: BatchSize = None,
) -> None:
    """Write the model of a checkpoint in its framework's inference format, for `edl-teacher serve`.

    The outputs of the written model are compared with the student's, on up to four rows of
    feed("eval").
    """
    from .export import export as run
    from .job.spec import load_job

    written = run(load_job(job_file), checkpoint, out, onnx=onnx, batch_size=batch_size)
    for file in written.files:
        typer.echo(file)
    for name, difference in written.max_difference.items():
        compared = "not compared" if difference is None else f"differs by {difference:.3g} at most"
        typer.echo(f"{name}: step {written.step}, {compared}")
