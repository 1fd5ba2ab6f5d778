"""A batch that a foreign server fails on: named if the server never took such, else sent again."""

from __future__ import annotations

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.errors import PoisonBatch
from edl.proto.arena import Array
from edl.tests.foreign_server import MODEL, ForeignGrpc
from edl.tests.scripted_teacher import logits_of

FEATURES = 6  # as the server declares


def test_one_that_the_model_is_not_for_is_poison() -> None:
    batches = [np.ones((4, FEATURES), np.float32), np.ones((4, FEATURES + 1), np.float32)]

    def model(x: Array) -> Array:
        assert x.shape[1] == FEATURES
        return logits_of(x)

    server = ForeignGrpc(model)  # which makes an answer UNKNOWN of whatever the model raises
    try:
        with DistilReader(batches, service=MODEL, teachers=[server.address]) as reader:
            epoch = iter(reader)
            next(epoch)
            with pytest.raises(PoisonBatch, match=r"'x' is declared as \[-1, 6\].*\[4, 7\]"):
                next(epoch)
    finally:
        server.stop()


def test_one_that_fits_is_sent_again() -> None:
    failures = iter([True, True, False])

    def model(x: Array) -> Array:
        if next(failures):
            raise MemoryError("out of device memory")
        return logits_of(x)

    server = ForeignGrpc(model)
    x = np.ones((4, FEATURES), np.float32)
    try:
        with DistilReader([x], service=MODEL, teachers=[server.address]) as reader:
            ((_, soft),) = list(reader)
    finally:
        server.stop()
    np.testing.assert_array_equal(soft, logits_of(x))
    assert server.requests == 3
