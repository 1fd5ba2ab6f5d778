"""The small job trained by Paddle alone, in a process of its own: `python plain.py EPOCHS`."""

from __future__ import annotations

import sys

import paddle

from edl.distill_reader.sources import source_of
from edl.scheduler.shard_plan import Shard
from edl.tests.student.rank import small_job


def main(epochs: int) -> None:
    source = source_of(small_job.feed("train"), Shard(), 0)
    paddle.seed(0)
    model = small_job.model()
    optimizer = small_job.optimizer(model.parameters())
    model.train()
    for epoch in range(epochs):
        reading = source.begin(epoch, 0, None)
        while True:
            try:
                points, labels = next(reading)
            except StopIteration:
                break
            outputs = model(paddle.to_tensor(points))
            loss = small_job.loss(outputs, paddle.to_tensor(labels))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            optimizer._learning_rate.step()


main(int(sys.argv[1]))
