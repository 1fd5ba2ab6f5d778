"""The reader over `paddle.io.DataLoader`: its tensors, its forked workers, three epochs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.supervise import Process, python_command, start
from edl.tests.scripted_teacher import logits_of

SAMPLES, BATCH = 37, 8


@pytest.fixture(scope="module")
def paddle() -> Any:
    import paddle

    return paddle


@pytest.fixture
def address() -> Iterator[str]:
    """A teacher in a process of its own: DataLoader forks this one, which gRPC must not see."""
    teacher = start(python_command("teacher", "edl.tests.scripted_teacher"))
    yield listening(teacher)
    teacher.stop()


def listening(teacher: Process) -> str:
    return teacher.expect(r"ready on (\S+)", timeout_s=30).group(1)


def dataset(paddle: Any) -> Any:
    class Rows(paddle.io.Dataset):  # type: ignore[misc]  # Paddle is not typed
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            return np.full((2, 3), index, np.float32), np.int64(index)

    return Rows()


@pytest.mark.parametrize("workers", [0, 2])
def test_three_epochs_of_paddle_tensors(paddle: Any, address: str, workers: int) -> None:
    loader = paddle.io.DataLoader(
        dataset(paddle), batch_size=BATCH, num_workers=workers, shuffle=True
    )
    with DistilReader(loader, service="s", teachers=[address]) as reader:
        assert len(reader) == len(loader) == 5
        for _ in range(3):
            seen: list[int] = []
            for x, ids, soft in reader:
                assert all(isinstance(tensor, paddle.Tensor) for tensor in (x, ids, soft))
                np.testing.assert_array_equal(soft.numpy(), logits_of(x.numpy()))
                np.testing.assert_array_equal(x.numpy()[:, 0, 0], ids.numpy())
                seen += ids.numpy().tolist()
            assert sorted(seen) == list(range(SAMPLES))


def test_a_batch_of_tensors_can_be_trained_on(paddle: Any, address: str) -> None:
    layer = paddle.nn.Linear(6, 10)
    loader = paddle.io.DataLoader(dataset(paddle), batch_size=BATCH)
    with DistilReader(loader, service="s", teachers=[address]) as reader:
        for x, _, soft in reader:
            loss = paddle.nn.functional.mse_loss(layer(x.reshape([len(x), 6])), soft)
            loss.backward()
            assert layer.weight.grad is not None
            assert x.stop_gradient
            assert soft.stop_gradient


def test_no_thread_ends_between_epochs(paddle: Any, address: str) -> None:
    """An ending thread that has used Paddle holds a lock that forked workers would wait for."""
    loader = paddle.io.DataLoader(dataset(paddle), batch_size=BATCH, num_workers=2)
    with DistilReader(loader, service="s", teachers=[address]) as reader:
        pullers = set()
        for epoch in range(10):
            for _ in reader:
                if epoch % 2:
                    break
            pullers |= {t.ident for t in threading.enumerate() if t.name == "edl-reader-puller"}
        assert len(pullers) == 1
