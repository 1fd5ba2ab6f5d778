"""A static-graph program of Paddle that a reader feeds: `static_graph_program HOW TEACHER`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import paddle

from edl.distill_reader import DistilReader
from edl.distill_reader.adapters.paddle import PaddleLoader
from edl.runtime.supervise import end_with_parent
from edl.tests.distill_reader.readers import Batches, Samples
from edl.tests.scripted_teacher import CLASSES, logits_of


def main(how: str, teacher: str) -> None:
    paddle.enable_static()
    x = paddle.static.data("x", [-1, 3])
    label = paddle.static.data("label", [-1], "int64")
    soft = paddle.static.data("soft", [-1, CLASSES])
    output = soft * 2.0 + x.sum() * 0.0 + label.sum().astype("float32") * 0.0
    executor = paddle.static.Executor(paddle.CPUPlace())
    fed, classes = 0, 0
    with DistilReader(source(how, x, label), service="s", teachers=[teacher]) as reader:
        named = PaddleLoader(reader, feed_list=[x, label, soft], return_list=False)
        for batch in reader if how == "stock" else named:
            feed: Any = dict(zip(NAMES, batch, strict=True)) if how == "stock" else batch
            doubled = executor.run(feed=feed, fetch_list=[output])[0]
            values = np.array((feed[0] if isinstance(feed, list) else feed)["x"])
            np.testing.assert_array_equal(doubled, 2 * logits_of(values))
            fed, classes = fed + 1, doubled.shape[1]
    print(f"fed {fed} batches, the last of {classes} classes", flush=True)


NAMES = ("x", "label", "soft")
#: Enough for a thread of the executor's to free some while the next are made.
BATCHES = 200


def source(how: str, *feeds: Any) -> Any:
    """Batches of arrays, or what Paddle's own loader makes of them."""
    if how == "arrays by name":
        return Batches(BATCHES)
    rows = type("Rows", (Samples, paddle.io.Dataset), {})(4 * BATCHES - 3)
    places = paddle.CPUPlace()
    return paddle.io.DataLoader(
        rows, feed_list=list(feeds), places=places, batch_size=4, return_list=True
    )


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
