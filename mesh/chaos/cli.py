"""The command line of chaos runs: `edl chaos`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...runtime.supervise import end_with_parent
from ..output import ReportFile

if TYPE_CHECKING:
    from ...runtime.lifecycle import Stop
    from .fault_plan import ChaosSettings
    from .report import ChaosReport

EXIT_BROKEN = 1

Minutes = Annotated[float, typer.Option(help="Minutes during which faults are injected.")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0, show_default="random", help="Seed of the fault plan; equal seeds give equal plans."
    ),
]
Logs = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        show_default="a temporary folder, kept if the run fails",
        help="New folder for the output of every process and the records of received samples.",
    ),
]
Deceive = Annotated[
    bool,
    typer.Option(
        "--deceive",
        help="Also answer with labels of other samples, which only a comparison of teachers "
        "reveals. Starts six teachers: each student compares three to find the wrong one.",
    ),
]


def chaos(
    minutes: Minutes = 5.0,
    seed: Seed = None,
    json: ReportFile = None,
    logs: Logs = None,
    deceive: Deceive = False,
) -> None:
    """Inject faults into a real mesh on this machine and check its invariants.

    Starts four teachers, four misconfigured teachers, two students, a manager and
    Redis, each as a process. If Paddle is installed, an elastic training runs, too.
    About every two seconds a process is killed, suspended, partitioned, delayed,
    drained or made to answer wrongly.

    Exit code 0: every sample arrived once, in order, with its labels; the streams
    kept moving, memory did not grow, and nothing is left behind.

    Exit code 1: an invariant is broken; the report names it and the first example.
    """
    end_with_parent()
    from ...runtime.files import check_writable, replacing
    from ...runtime.lifecycle import stop_on_signals
    from .fault_plan import ChaosSettings
    from .report import as_json, report_lines

    settings = ChaosSettings(
        seed=random.SystemRandom().randrange(1 << 32) if seed is None else seed,
        seconds=60 * minutes,
        teachers=6 if deceive else 4,
        deceive=deceive,
    )
    if json is not None:
        check_writable(json)
    typer.echo(f"seed {settings.seed}")
    with stop_on_signals(reraise=(signal.SIGINT, signal.SIGTERM)) as stop:
        report = _run(settings, logs, stop)
        for line in report_lines(report):
            typer.echo(line)
        if json is not None:
            with replacing(json) as part:
                part.write_text(dumps(as_json(report), indent=2) + "\n")
    if not report.held:
        raise typer.Exit(EXIT_BROKEN)


def _run(settings: ChaosSettings, logs: Path | None, stop: Stop) -> ChaosReport:
    """Run chaos; return its report.

    Remove a temporary folder of logs if all invariants held, or if a signal came while the mesh
    started.
    """
    from .monitoring import RUN_ID_VARIABLE, LeftoverCheck
    from .run import run_chaos

    def say(text: str) -> None:
        typer.echo(text, err=True)

    folder = _log_folder(logs)
    os.environ[RUN_ID_VARIABLE] = run_id = f"{os.getpid()}-{settings.seed}"
    leftover_check = LeftoverCheck.before(run_id)
    keep = True
    try:
        report = run_chaos(settings, folder, leftover_check, say=say, stop=stop)
        keep = not report.held
        return report
    except (KeyboardInterrupt, SystemExit):
        keep = False
        raise
    finally:
        if logs is None and not keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"logs: {folder}")


def _log_folder(logs: Path | None) -> Path:
    if logs is None:
        return Path(tempfile.mkdtemp(prefix="edl-chaos-"))
    from ...runtime.errors import UsageError

    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {logs}: {error.strerror}") from error
    if any(logs.iterdir()):
        raise UsageError(f"{logs} is not empty: name a new folder by --logs")
    return logs.absolute()
