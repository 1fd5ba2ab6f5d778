"""A process with a real training step, pinned to a core, with and without a reader.

    python -m edl.benchmarks.paced.step CHANNEL CORE OTHERS ROWS ADDRESS

It trains Paddle's MobileNetV3-small on images of 3 x 224 x 224. The message "run" has a number of
batches, and whether a reader provides the soft labels; the answer has the CPU time of this process.
The reader's engine runs on the core OTHERS.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from ...distill_reader import DistilReader
from ...proto.channel import Channel
from ...runtime.supervise import end_with_parent
from ...student.losses import DistillLoss
from ...student.trainer import Trainer
from ...teacher.backends.paddle import import_paddle
from ..children import ANY_CORE, pin_threads
from . import SERVICE, Repeated

CLASSES: Final = 1000
_SIDE: Final = 224


def main(channel_fd: int, core: int, others: int, rows: int, address: str) -> None:
    """Train on request, until the channel ends."""
    end_with_parent(at_once=True)
    os.environ.update({"OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2"})
    if others != ANY_CORE:
        os.sched_setaffinity(0, {others})  # the engine inherits it
    channel, trainer = Channel.attach(channel_fd), _trainer()
    image = np.random.default_rng(0).standard_normal((rows, 3, _SIDE, _SIDE), np.float32)
    label = np.zeros((rows, 1), np.int64)
    fed = Repeated(image, label)
    labelled = Repeated(image, label, np.zeros((rows, CLASSES), np.float32))
    with DistilReader(fed, service=SERVICE, teachers=[address], feeds=[0]) as reader:
        pin_threads(os.getpid(), core)
        loaders: dict[bool, Iterable[Any]] = {True: reader, False: labelled}
        channel.send("ready")
        for message in channel:
            fed.count = labelled.count = message["batches"]
            used_s = time.process_time()
            trainer.fit(loaders[message["with_reader"]], epochs=1)
            channel.send("ran", cpu_s=time.process_time() - used_s)


def _trainer() -> Trainer:
    paddle = import_paddle()
    from paddle.vision import models

    paddle.seed(0)
    network = models.mobilenet_v3_small(num_classes=CLASSES)
    optimizer = paddle.optimizer.SGD(1e-3, parameters=network.parameters())
    return Trainer(network, DistillLoss(0.5, 0.5), optimizer)


if __name__ == "__main__":
    fd, on, beside, samples, teacher = sys.argv[1:]
    main(int(fd), int(on), int(beside), int(samples), teacher)
