"""Online training on all cores of the machine, in a child process.

Paddle reads its number of threads only at import, and the demo's process imported it with 1.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from ...proto.dataclass_json import from_plain
from ...runtime.supervise import end_with_parent, python_command, start
from ..cores import on_cores
from .cpu_cores import CoreAssignment
from .modes import Mode, ModeResult
from .settings import DemoSettings

MODE: Mode = "online_all_cores"
PROGRESS = re.compile(r"batch (\d+)")
RESULT = re.compile(r"result (\{.*\})")
#: Batches between two lines of progress of the child.
PRINT_EVERY_BATCHES = 10


def run_online_on_all_cores(
    settings: DemoSettings, teacher: Path, cores: CoreAssignment, on_progress: Callable[[int], None]
) -> ModeResult:
    """Train students on all cores, with the teacher in their process, to measure the throughput.

    Args:
        settings: settings of the training; its students are trained one after another.
        teacher: path of the exported model.
        cores: cores of the machine.
        on_progress: called ten times a second with the number of batches trained so far; an
            exception from it stops the child.

    Raises:
        ProcessFailed: the child exited without a result.
    """
    all_cores = cores.student | cores.others
    done = 0

    def read_progress(line: str) -> None:
        nonlocal done
        if progress := PROGRESS.fullmatch(line):
            done = int(progress[1])

    command = python_command(
        "online-all-cores",
        __name__,
        json.dumps(asdict(settings)),
        teacher,
        env={"OMP_NUM_THREADS": str(len(all_cores))},
    )
    with on_cores(all_cores):
        process = start(command, echo=read_progress)
    try:
        values = json.loads(process.expect(RESULT, math.inf, lambda: on_progress(done))[1])
    finally:
        process.stop()
    return from_plain(ModeResult, values)


def main(settings_json: str, teacher: str) -> None:
    """Run in the child: train, and print the progress and the result."""
    end_with_parent()
    from .digits import load_digits
    from .models import Predictor, load_paddle
    from .modes import online_training

    settings = DemoSettings(**json.loads(settings_json))
    load_paddle().set_device(settings.device)
    threads = int(os.environ["OMP_NUM_THREADS"])
    predictor = Predictor(
        Path(teacher), micro_batch=settings.micro_batch, device=settings.device, threads=threads
    )

    def on_batch(number: int) -> None:
        if number % PRINT_EVERY_BATCHES == 0:
            print(f"batch {number}", flush=True)

    training = online_training(load_digits(settings.size), settings, predictor)
    training.run(settings.students, on_batch)
    print(f"result {json.dumps(asdict(replace(training.result, mode=MODE)))}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
