"""The command `edl demo`."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ...coordinator.embedded import server_program
from ...runtime.errors import UsageError
from ...runtime.extras import install_command
from ...runtime.supervise import end_with_parent
from ..output import ReportFile, cache_folder

#: Variables for Paddle in all processes: one thread, so that all compute bit-identical labels, and
#: no messages below errors.
PADDLE_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2"}
PACKAGES = ("paddle", "psutil", "sklearn", "matplotlib")

PicturePath = Annotated[Path, typer.Option(help="Write the picture to this file (PNG).")]
Students = Annotated[
    int | None,
    typer.Option(min=1, show_default="3, quick: 2", help="Students per mode, each with a seed."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train the teacher even if it is cached.")]
Quick = Annotated[bool, typer.Option("--quick", help="Train for a few steps only.")]


def demo(
    picture: PicturePath = Path("edl-demo.png"),
    json: ReportFile = None,
    students: Students = None,
    fresh: Fresh = False,
    quick: Quick = False,
) -> None:
    """Train one student in four modes, kill a teacher meanwhile, and compare the results.

    The modes: N-training has no teacher; online runs the teacher in the training process, on one
    core or on all; EDL-Dist uses a mesh of two teacher processes on this machine. The trained
    teacher is kept in the user's cache folder.
    """
    end_with_parent()
    check_installed()
    os.environ.update(PADDLE_ENVIRONMENT)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it logs its font cache
    from rich.console import Console

    from ...runtime.lifecycle import stop_on_signals
    from .run import run_demo
    from .settings import DemoSettings

    settings = DemoSettings.quick() if quick else DemoSettings()
    if students is not None:
        settings = replace(settings, students=students)
    with stop_on_signals(reraise=(signal.SIGINT, signal.SIGTERM)) as stop:
        run_demo(
            settings,
            picture,
            json,
            cache_folder("demo"),
            Console(),
            fresh=fresh,
            check=stop.check,
        )


def check_installed() -> None:
    """Raise UsageError if a package of the demo, or a Redis server, is not installed."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UsageError(f"the demo needs {', '.join(missing)}: {install_command('demo')}")
    server_program()  # fail now instead of after a minute of training
