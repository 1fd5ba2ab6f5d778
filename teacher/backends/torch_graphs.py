"""PyTorch networks as CUDA graphs: one launch per run instead of one per kernel.

A network of many short kernels is limited by the thread that launches them, not by the device.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .framework import first_line
from .tensor_specs import outputs_by_name

log = logging.getLogger(__name__)

#: Runs of a shape before it is captured; a capture does not pay for rare shapes.
_RUNS_BEFORE_CAPTURE: Final = 2
#: Limit of graphs, as each keeps its inputs and outputs; further shapes run kernel by kernel.
_MOST_GRAPHS: Final = 16
#: Limit of the shapes that are counted; beyond it, counting starts anew.
_MOST_SHAPES: Final = 256

#: The dtypes and shapes of a network's inputs.
_Key = tuple[tuple[Any, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured run: copies its inputs to `inputs`, replays `graph`, and returns `outputs`."""

    graph: Any
    inputs: tuple[Any, ...]
    outputs: dict[str, Any]

    def __call__(self, tensors: tuple[Any, ...]) -> dict[str, Any]:
        for graph_input, tensor in zip(self.inputs, tensors, strict=True):
            graph_input.copy_(tensor)
        self.graph.replay()
        return self.outputs


class GraphedCalls:
    """A network on the current CUDA device that captures each frequent shape as a graph.

    A graph is used only if it gave the same values as the network when it was captured. A network
    that waits for the device between its kernels, because it reads values, cannot be captured and
    runs without graphs. Graphs keep memory, so none are used after the device ran out of memory.

    All calls are queued on one stream. The next call of a shape overwrites the outputs of the
    previous one, so the caller queues a copy of them before another call.

    Args:
        torch: the module.
        call: the network, from tensors on the device to its outputs, in inference mode.
    """

    def __init__(self, torch: Any, call: Callable[..., Any]) -> None:
        self._torch = torch
        self._call = call
        self._runs: Counter[_Key] = Counter()
        self._graphs: dict[_Key, _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()  # shared: graphs never run concurrently
        self._capturing = True

    def __call__(self, *tensors: Any) -> dict[str, Any]:
        key = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
        if (graph := self._graphs.get(key)) is not None:
            return graph(tensors)
        try:
            if self._is_due(key):
                return self._run_and_capture(key, tensors)
            return outputs_by_name(self._call(*tensors))
        except self._torch.OutOfMemoryError:
            self._stop_capturing("the device is short of memory")
            raise

    def _is_due(self, key: _Key) -> bool:
        """Count a run of this shape; return whether to capture it now."""
        if not self._capturing or len(self._graphs) == _MOST_GRAPHS:
            return False
        if len(self._runs) > _MOST_SHAPES:
            self._runs.clear()
        self._runs[key] += 1
        return self._runs[key] > _RUNS_BEFORE_CAPTURE

    def _run_and_capture(self, key: _Key, tensors: tuple[Any, ...]) -> dict[str, Any]:
        """Run the network, and capture it if that is possible and gives the same result."""

        def copies() -> list[Any]:  # the network may overwrite its inputs
            return [tensor.clone() for tensor in tensors]

        if self._waits_for_device(copies()):
            self._stop_capturing("it waits for the device between its kernels")
            return outputs_by_name(self._call(*tensors))
        expected = outputs_by_name(self._call(*copies()))
        try:
            graph = self._captured(copies())
            same = self._are_equal(graph(tensors), expected)
        except Exception as error:  # the network's code may raise anything while it is captured
            self._stop_capturing(first_line(error))
            return expected
        if same:
            self._graphs[key] = graph
        else:
            self._stop_capturing("its graph gives other bits")
        return expected

    def _waits_for_device(self, tensors: list[Any]) -> bool:
        """Whether the network waits for the device, so that a capture would fail.

        A failed capture leaves PyTorch's allocator in a bad state, so such a network is never
        captured.
        """
        cuda = self._torch.cuda
        mode = cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that this mode is a prototype
                cuda.set_sync_debug_mode("error")
            self._call(*tensors)
        except RuntimeError as error:
            if "synchronizing CUDA operation" not in str(error):
                raise
            return True
        finally:
            cuda.set_sync_debug_mode(mode)
        return False

    def _captured(self, inputs: list[Any]) -> _Graph:
        cuda = self._torch.cuda
        graph = cuda.CUDAGraph()
        # Another thread may wait for earlier runs meanwhile.
        with cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = outputs_by_name(self._call(*inputs))
        return _Graph(graph, tuple(inputs), outputs)

    def _are_equal(self, outputs: dict[str, Any], expected: dict[str, Any]) -> bool:
        equal = self._torch.equal
        return outputs.keys() == expected.keys() and all(
            equal(outputs[name], tensor) for name, tensor in expected.items()
        )

    def _stop_capturing(self, why: str) -> None:
        if self._capturing:
            log.info("the network runs without CUDA graphs from here on: %s", why)
        self._capturing = False
        self._graphs.clear()
