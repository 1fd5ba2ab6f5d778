"""A real student on its own cores that trains in any of several ways: a child process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from ....distill_reader import DistilReader
from ....mesh.cores import on_cores, pin_process
from ....proto.channel import Channel
from ....student.frameworks import FrameworkName
from ...paced import FOR_EVER, SERVICE, Repeated
from .models import CLASSES, StudentAndTeacher

#: Ways. N-training: no teacher. Online: the teacher in the same process, on the same cores.
#: EDL-Dist: with a reader. Also each model alone: a step with given labels, and labelling.
N_TRAINING: Final = "N-training"
ONLINE: Final = "Online"
EDL_DIST: Final = "EDL-Dist"
STEP_ALONE: Final = "student's step alone"
LABELLING_ALONE: Final = "teacher's step alone"
#: Batches in the reader's buffer.
AHEAD: Final = 4
#: Steps of EDL-Dist that use up the batches that were labelled during other ways.
SETTLING: Final = 6
WAYS: Final = (N_TRAINING, ONLINE, EDL_DIST, STEP_ALONE, LABELLING_ALONE)


def train(
    channel: Channel,
    framework: FrameworkName,
    layers: int,
    rows: int,
    cores: list[int],
    others: list[int],
    address: str,
) -> None:
    """Train on request, until the channel ends.

    Each message has a way and a number of steps; the answer has the wall seconds of these steps.

    Args:
        channel: its first message to the benchmark means that training can begin.
        framework: "paddle" or "torch".
        layers: layers of the teacher in this process: 18 or 50.
        rows: rows of a batch.
        cores: cores of the training.
        others: cores of the reader's engine.
        address: address of the teacher of EDL-Dist.
    """
    rng = np.random.default_rng(0)
    image = rng.standard_normal((rows, 3, 224, 224), np.float32)
    label = rng.integers(0, CLASSES, (rows, 1))
    soft = rng.standard_normal((rows, CLASSES), np.float32)
    with on_cores(others):
        models = StudentAndTeacher(framework, len(cores), layers)
        source = Repeated(image, label, count=FOR_EVER)
        reader = DistilReader(
            source,
            service=SERVICE,
            teachers=[address],
            feeds=[0],
            upper_bytes=AHEAD * (image.nbytes + label.nbytes + soft.nbytes),
        )
    with reader:
        pin_process(cores)
        # One endless epoch: starting an epoch is not part of a step.
        labelled = (models.train(*batch) for batch in reader)
        step: dict[str, Callable[[], object]] = {
            N_TRAINING: lambda: models.train(image, label, None),
            ONLINE: lambda: models.train(image, label, models.label(image)),
            EDL_DIST: lambda: next(labelled),
            STEP_ALONE: lambda: models.train(image, label, soft),
            LABELLING_ALONE: lambda: models.label(image),
        }
        channel.send("ready")
        for message in channel:
            began_s = time.perf_counter()
            for _ in itertools.repeat(None, message["steps"]):
                step[message["way"]]()
            channel.send("ran", wall_s=time.perf_counter() - began_s)
