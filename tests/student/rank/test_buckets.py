"""Sums of gradients over ranks: dense ones, sparse ones, and those that a rank does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edl.student.rank.buckets import Buckets
from edl.teacher.backends.paddle_runtime import import_paddle

pytestmark = pytest.mark.system


class Ranks:
    """Two ranks in one process: each begins its sums, in the same order; the second ends them."""

    def __init__(self) -> None:
        self.begun: list[Any] = []

    def first(self, tensor: Any) -> Any:
        self.begun.append(tensor.clone())
        return lambda: None

    def second(self, tensor: Any) -> Any:
        tensor.add_(self.begun.pop(0))
        return lambda: None


def parameters() -> tuple[Any, Any, Any]:
    from paddle import nn

    table = nn.Embedding(6, 2, sparse=True)
    layer = nn.Linear(2, 1)
    return table, layer, [table.weight, *layer.parameters()]


def test_sparse_gradients_stay_sparse_and_move_only_their_rows() -> None:
    paddle = import_paddle()
    ranks = Ranks()
    table, layer, of_first = parameters()
    layer(table(paddle.to_tensor([1, 4, 4]))).sum().backward()
    sums = [one.grad for one in of_first]
    rows = sums[0].get_selected_rows()
    expected = np.zeros((6, 2), np.float32)
    np.add.at(expected, list(rows.rows()), np.asarray(rows.get_tensor()))
    Buckets(of_first).reduce(ranks.first)

    for own_rows in ([], [1, 2]):  # the second rank may have no rows at all
        table, layer, of_second = parameters()
        own = np.zeros((6, 2), np.float32)
        if own_rows:
            layer(table(paddle.to_tensor(own_rows))).sum().backward()
            own[own_rows] = layer.weight.numpy()[:, 0]
        begun, ranks.begun = ranks.begun, list(ranks.begun)
        Buckets(of_second).reduce(ranks.second)
        ranks.begun = begun
        gradient = of_second[0].grad
        assert gradient.is_selected_rows()
        held = gradient.get_selected_rows()
        assert sorted(held.rows()) == sorted({1, 4, *own_rows})
        total = np.zeros((6, 2), np.float32)
        total[list(held.rows())] = np.asarray(held.get_tensor())
        assert np.allclose(total, expected + own)
        before = table.weight.numpy().copy()
        adam = paddle.optimizer.Adam(0.1, parameters=of_second, lazy_mode=True)
        for _ in range(2):
            adam.step()
        moved = (table.weight.numpy() != before).any(axis=1)
        assert moved.tolist() == [row in {1, 4, *own_rows} for row in range(6)]
        adam.clear_grad()
        layer(table(paddle.to_tensor([5]))).sum().backward()
        assert list(of_second[0].grad.get_selected_rows().rows()) == [5]


def test_a_gradient_that_no_rank_has_stays_none() -> None:
    paddle = import_paddle()
    ranks = Ranks()
    for begin in (ranks.first, ranks.second):
        layer, unused = paddle.nn.Linear(2, 1), paddle.nn.Linear(2, 1)
        layer.weight.set_value(paddle.ones([2, 1]))
        layer(paddle.to_tensor([[1.0, 2.0]])).sum().backward()
        Buckets([*layer.parameters(), *unused.parameters()]).reduce(begin)
    assert unused.weight.grad is None
    assert layer.weight.grad.numpy().flatten().tolist() == [2.0, 4.0]
