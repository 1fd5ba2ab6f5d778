"""Several predictor processes, one on each device: all of one model, each with a life of its own.

A predictor that crashes is started again while the others serve. One that keeps crashing is given
up, and the teacher goes on with what it has; the last one takes the teacher with it, and so does a
model that is refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..errors import EdlError, ModelError, RetryableError
from ..proto.arena import Arena
from ..scheduler.rates import RecentMedian, pooled_t_t
from .config import PredictorConfig
from .predictor_client import PredictorClient
from .predictor_session import Answer, Ready, Results
from .request import Request

log = logging.getLogger(__name__)

#: Of a time that the clock cannot tell from none.
_LEAST_S = 1e-9


class PredictorPool:
    """The predictors of one teacher; any thread may use them.

    Args:
        configs: what to run, one for each device.
        on_progress: told in words how far a start is.
        on_change: called when a predictor becomes ready, crashes, or is given up, from a thread of
            this pool.

    Attributes:
        inputs: memory in which every predictor reads its requests.
    """

    def __init__(
        self,
        configs: Sequence[PredictorConfig],
        *,
        on_progress: Callable[[str], None] = log.info,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.inputs = Arena.create()
        self._on_change = on_change
        self._lock = threading.Lock()
        self._medians = [RecentMedian() for _ in configs]
        self._begun = [False] * len(configs)
        self._told = [False] * len(configs)
        #: For each device the first of its like: what that one measures counts for both.
        self._model = [_first_alike(configs, index) for index in range(len(configs))]
        self._clients = [
            PredictorClient(
                config,
                self.inputs,
                name=_name(config, index, len(configs)),
                on_progress=on_progress,
                on_change=self._changed,
            )
            for index, config in enumerate(configs)
        ]

    def start(self) -> None:
        """Begin to start every process; `settled` tells how it went.

        Where micro-batches are measured, devices of one kind wait for the first of them and take
        over what it chose: equal devices label with equal bits.
        """
        for index, (client, model) in enumerate(zip(self._clients, self._model, strict=True)):
            first = self._clients[model]
            with self._lock:
                can_begin = not self._begun[index] and (first is client or first.loaded is not None)
                self._begun[index] |= can_begin
            if can_begin:
                client.start(first.loaded.micro_batch if first.loaded else None)

    def settled(self, timeout_s: float) -> bool:
        """Wait for the end of every first start.

        Returns:
            True when all predictors take requests, False when one does not yet.

        Raises:
            ModelError: one refused the model, or they have loaded different ones.
            ProcessFailed: one died, or nobody could listen to it.
        """
        deadline = time.monotonic() + timeout_s
        settled = [
            client.settled(max(0.0, deadline - time.monotonic())) for client in self._clients
        ]
        if all(settled) and len({c.loaded.spec.content_id for c in self._clients if c.loaded}) > 1:
            raise ModelError("the model changed while it was loaded: start this teacher anew")
        return all(settled)

    @property
    def ready(self) -> bool:
        """At least one predictor takes requests now."""
        return any(client.ready for client in self._clients)

    @property
    def loaded(self) -> Ready | None:
        """What the first starts found; None before all have come to an end.

        Its numerics are those of the devices together, where they differ.
        """
        every = [client.loaded for client in self._clients]
        known = [one for one in every if one is not None]
        return _together(known) if len(known) == len(every) else None

    def require_loaded(self) -> Ready:
        """What is served; raises RetryableError before the first starts have come to an end."""
        if (loaded := self.loaded) is None:
            raise RetryableError("the model is loading")
        return loaded

    @property
    def failure(self) -> EdlError | None:
        """Why nothing can be served any more; None while something can."""
        failures = [client.failure for client in self._clients if client.failure is not None]
        refused = next((one for one in failures if isinstance(one, ModelError)), None)
        return refused or (failures[-1] if len(failures) == len(self._clients) else None)

    @property
    def restarts(self) -> int:
        """How often predictors were started again."""
        return sum(client.restarts for client in self._clients)

    @property
    def micro_batch_reductions(self) -> int:
        """How often a micro-batch was halved because a device ran out of memory."""
        return sum(client.micro_batch_reductions for client in self._clients)

    @property
    def lanes(self) -> int:
        """Devices that serve, or will when their predictor is back."""
        return sum(client.failure is None for client in self._clients)

    @property
    def t_t_s(self) -> float:
        """Seconds per sample of one lane, the average of those that serve."""
        return pooled_t_t(
            [
                self.lane_t_t_s(index)
                for index, client in enumerate(self._clients)
                if client.failure is None
            ]
            or [self.lane_t_t_s(0)]
        )

    def lane_t_t_s(self, index: int) -> float:
        """Seconds per sample of one device: the median of its last answers, else as measured."""
        with self._lock:
            recent = self._medians[index].value
        loaded = self._clients[index].loaded
        return max(recent or (loaded.t_t_s if loaded else 0.0), _LEAST_S)

    def ready_lanes(self) -> list[bool]:
        """For each device, whether it takes requests now."""
        return [client.ready for client in self._clients]

    def submit(self, index: int, requests: Sequence[Request]) -> Results:
        """Have requests of one shape labelled in one go, on the device at `index`.

        Returns and raises what `PredictorClient.submit` does.
        """
        results = self._clients[index].submit(requests)
        results.add_done_callback(partial(self._measure, index, [r.samples for r in requests]))
        return results

    def stop(self) -> None:
        """End the processes; requests that they have end by RetryableError."""
        for client in self._clients:
            client.stop()
        self.inputs.close()

    def _measure(self, index: int, samples: Sequence[int], results: Results) -> None:
        if results.exception() is not None:
            return
        with self._lock:
            for count, result in zip(samples, results.result(), strict=True):
                if isinstance(result, Answer):
                    self._medians[index].add(result.device_seconds / count)

    def _changed(self) -> None:
        self.start()  # those that have waited for this one
        for index, client in enumerate(self._clients):
            if client.failure is not None and not self._told[index]:
                self._told[index] = True
                if self.failure is None:
                    log.error("%s", client.failure)
        self._on_change()


def _first_alike(configs: Sequence[PredictorConfig], index: int) -> int:
    """The first device whose micro-batch is right for this one too; itself where none is asked."""
    mine = configs[index]
    if mine.micro_batch is not None:
        return index
    return next(
        i
        for i, other in enumerate(configs)
        if (other.device.partition(":")[0], other.threads)
        == (mine.device.partition(":")[0], mine.threads)
    )


def _together(every: Sequence[Ready]) -> Ready:
    """What predictors of one model are as one."""
    first = every[0]
    numerics = sorted({one.spec.numerics for one in every})
    if len(numerics) == 1:
        spec = first.spec
    else:
        words = [word for one in numerics for word in one]
        spec = replace(first.spec, numerics=("mixed", *words))
    t_t_s = pooled_t_t([max(one.t_t_s, _LEAST_S) for one in every])
    return Ready(spec, t_t_s, max(one.micro_batch for one in every))


def _name(config: PredictorConfig, index: int, among: int) -> str:
    """By it an operator tells one predictor from the others; nothing where there are none."""
    return "" if among == 1 else f"predictor {index + 1} of {among}, on {config.device_label}"
