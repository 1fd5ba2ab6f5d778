"""The command line of the demo: `edl demo`."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ...supervise import end_with_parent

#: For Paddle here and in every child: one thread, so that all label alike, and no notes.
QUIET_AND_ALIKE = {"OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2"}
TERMINATED = 128 + signal.SIGTERM

PicturePath = Annotated[Path, typer.Option(help="Where the picture goes (PNG).")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]
Seeds = Annotated[
    int | None, typer.Option(min=1, show_default="5, quick: 2", help="Students per mode.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train the teacher even if it is cached.")]
Quick = Annotated[bool, typer.Option("--quick", help="A few short trainings, to see it work.")]


def demo(
    picture: PicturePath = Path("edl-demo.png"),
    json: JsonPath = None,
    seeds: Seeds = None,
    fresh: Fresh = False,
    quick: Quick = False,
) -> None:
    """Train one student three ways, kill a teacher on the way, show what happened.

    N-training has no teacher, Online runs it in the training process, EDL-Dist asks a mesh of three
    teacher processes on this machine. The trained teacher is kept in the user's cache folder.
    """
    end_with_parent()
    os.environ.update(QUIET_AND_ALIKE)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells of its font cache
    from rich.console import Console

    from ...lifecycle import stop_on_signals
    from .run import Outputs, run_demo
    from .settings import DemoSettings

    settings = DemoSettings.quick() if quick else DemoSettings()
    if seeds is not None:
        settings = replace(settings, seeds=seeds)
    with stop_on_signals(reraise=(signal.SIGINT, signal.SIGTERM)) as stop:

        def check() -> None:
            if stop.requested:
                raise KeyboardInterrupt if stop.signal == signal.SIGINT else SystemExit(TERMINATED)

        run_demo(
            settings,
            Outputs(picture, json),
            cache_folder(),
            Console(),
            fresh=fresh,
            check=check,
        )


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "edl-dist" / "demo"
