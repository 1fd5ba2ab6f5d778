"""A reader over the source of a rank: labels, samples and positions belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.runtime.errors import UsageError
from edl.runtime.supervise import python_command, start
from edl.student.feeding import DirectReader, make_reader
from edl.student.job.distill import Distill
from edl.student.settings import TrainSettings
from edl.tests.scripted_teacher import logits_of
from edl.tests.student.feeding.ranks import Numbers, batched, positions_of, settings_of, source_of
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

SAMPLES, BATCH = 37, 8
#: What teachers get is named x, and is the first field.
DISTILL = Distill(service="s", fetches=["logits"], feeds=[0])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A teacher in a process of its own: loaders fork this one, which gRPC must not see."""
    teacher = start(python_command("teacher", "edl.tests.scripted_teacher"))
    yield teacher.expect(r"ready on (\S+)", timeout_s=DEADLINE_S).group(1)
    teacher.stop()


def feed_of(kind: str, workers: int) -> Any:
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
    if kind == "batched":
        return batched(SAMPLES, BATCH)
    if kind == "paddle":
        import paddle

        class Rows(Numbers, paddle.io.Dataset):  # type: ignore[misc]  # Paddle is not typed
            pass

        return paddle.io.DataLoader(Rows(SAMPLES), **options)
    import torch

    kept = workers > 0
    return torch.utils.data.DataLoader(Numbers(SAMPLES), persistent_workers=kept, **options)


@pytest.fixture
def settings(address: str) -> TrainSettings:
    return settings_of(teachers=(address,), seed=5)


def as_arrays(batch: Any) -> list[Any]:
    return [np.asarray(field) for field in batch]


@pytest.mark.parametrize(
    ("kind", "workers"), [("batched", 0), ("paddle", 0), ("paddle", 2), ("torch", 0), ("torch", 2)]
)
def test_labels_samples_and_positions_match(
    settings: TrainSettings, kind: str, workers: int
) -> None:
    source, direct = (source_of(feed_of(kind, workers), settings) for _ in range(2))
    reader = make_reader(source, DISTILL, settings, rank=0, epoch=4)
    assert isinstance(reader, DistilReader)
    alone = iter(DirectReader(direct, 4))
    with reader:
        for epoch in (4, 5):
            order: dict[int, int] = {}
            for batch in reader:
                x, squares, positions, soft = as_arrays(batch)
                np.testing.assert_array_equal(soft, logits_of(x))
                np.testing.assert_array_equal(x[:, 0] ** 2, squares)
                order.update(zip(positions.tolist(), x[:, 0].astype(int).tolist(), strict=True))
                source.trained(epoch, positions)
                if epoch == 4:  # the same without a reader, to the last bit
                    plain = next(alone)
                    for mine, its in zip(as_arrays(plain), (x, squares, positions), strict=True):
                        assert mine.dtype == its.dtype
                        np.testing.assert_array_equal(mine, its)
                    direct.trained(4, positions_of(as_arrays(plain)))
            assert sorted(order) == sorted(order.values()) == list(range(SAMPLES))
    assert next(alone, None) is None
    direct.close()


def test_jobs_that_ask_no_teacher_have_no_reader(settings: TrainSettings) -> None:
    source = source_of(batched(9, 4), settings)
    for distill in (None, Distill(service="s", alpha=1.0, beta=0.0)):
        assert isinstance(make_reader(source, distill, settings, rank=0), DirectReader)
    with pytest.raises(UsageError, match=r"asks the service 's' .* --redis .* --teachers"):
        make_reader(source, DISTILL, settings_of(), rank=0)
    source.close()
