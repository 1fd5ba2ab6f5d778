"""Keeps a predictor process going and gives it the server's requests.

A crash costs the requests that it had, as errors to be tried again; the process is started anew
with growing pauses, and the sockets never notice. Crashes without an answer in between end it for
good.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import EdlError, ModelError, PredictorCrashed, ProcessFailed, RetryableError
from ..proto.arena import Arena
from ..scheduler.backoff import delay_s
from ..supervise.process import describe_exit
from .config import PredictorConfig
from .predictor_session import Answer, PredictorSession, Ready, Results
from .request import Request

log = logging.getLogger(__name__)

#: So many crashes within so long a time, and no answer in between, are not bad luck.
CRASHES_AT_MOST = 5
CRASH_WINDOW_S = 60.0
#: After KILL: until its end is noticed and its last words are read.
_STOP_S = 5.0
#: A process whose channel has ended gets this long to end too.
_LAST_WORDS_S = 1.0


class PredictorClient:
    """The predictor as the server uses it; any thread may.

    Attributes:
        ready: it takes requests now.
        loaded: what the first start found; None before.
        failure: why it ended for good; None while it did not.
        restarts: how often it was started again.
        micro_batch_reductions: how often its micro-batch was halved, for want of memory.

    Args:
        config: what to run.
        inputs: memory of requests; None: its own.
        name: in what is told of it, where it is not the only one.
        on_progress: told in words how far a start is.
        on_change: called when `ready` or `failure` changes, from a thread of this client.
    """

    def __init__(
        self,
        config: PredictorConfig,
        inputs: Arena | None = None,
        *,
        name: str = "",
        on_progress: Callable[[str], None] = log.info,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.ready = False
        self.loaded: Ready | None = None
        self.failure: EdlError | None = None
        self.restarts = 0
        self.micro_batch_reductions = 0
        self._config = config
        self._owns_inputs = inputs is None
        self._inputs = inputs or Arena.create()
        self._name = name or "the predictor"
        self._on_progress = on_progress if not name else lambda text: on_progress(f"{name}: {text}")
        self._on_change = on_change
        self._session: PredictorSession | None = None
        self._answered = False
        self._crashes: deque[float] = deque()
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="predictor", daemon=True)

    def start(self, micro_batch: int | None = None) -> None:
        """Begin to start the process; `settled` tells how it went.

        Args:
            micro_batch: what was measured for an equal device, so that it need not be again.
        """
        if micro_batch is not None:
            self._config = replace(self._config, micro_batch=micro_batch)
        self._thread.start()

    def settled(self, timeout_s: float) -> bool:
        """Wait for the end of the first start.

        Returns:
            True when the predictor takes requests, False when it does not yet.

        Raises:
            ModelError: it refused the model.
            ProcessFailed: it died, or nobody could listen to it.
        """
        self._settled.wait(timeout_s)
        if self.failure is not None:
            raise self.failure
        return self.loaded is not None

    def submit(self, requests: Sequence[Request]) -> Results:
        """Have requests of one shape labelled in one go; does not wait for the labels.

        Returns:
            For each request its labels, which the caller has to release, or the error that it ends
            with; RetryableError where the predictor ends before.

        Raises:
            RetryableError: the predictor is not ready.
        """
        session = self._session
        if session is None or not self.ready:
            raise RetryableError("the predictor is restarting")
        results = session.submit(requests)
        results.add_done_callback(self._settled_one)
        return results

    def stop(self) -> None:
        """End the process; requests that it has end by RetryableError."""
        self._stopping.set()
        if self._session is not None:
            # It has nothing to put in order, and while a framework is being imported a gentler
            # signal may meet the framework's own handler, which can hang.
            self._session.process.kill()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        if self._owns_inputs:
            self._inputs.close()

    def _settled_one(self, results: Results) -> None:
        if results.exception() is None:
            self._answered |= any(isinstance(one, Answer) for one in results.result())

    def _keep(self) -> None:
        try:
            while not self._stopping.is_set():
                how = self._live_once()
                if not self._stopping.is_set():
                    self._pause_after(how)
        except EdlError as error:
            self.failure = error
        except Exception as error:  # whoever waits for this thread has to hear of its end
            self.failure = ProcessFailed(f"{self._name} was given up: {error!r}")
        finally:
            self._settled.set()
            self._on_change()

    def _live_once(self) -> str:
        """Start the process and serve until it ends; how that came, in words."""
        try:
            self._session = session = PredictorSession(self._config, self._inputs)
        except (ProcessFailed, OSError) as error:
            return f"did not start ({error})"
        try:
            if not self._stopping.is_set():
                session.listen(self._on_progress, self._became_ready)
        finally:
            self.ready = False
            ended = RetryableError("the predictor ended before it computed the request: try again")
            crashed = PredictorCrashed("the predictor ended in mid-request")
            session.fail_all(ended, running=ended if self._stopping.is_set() else crashed)
            session.process.wait(_LAST_WORDS_S)  # it is on its way out, unless it refused the model
            returncode = session.process.stop(grace_s=_LAST_WORDS_S)
            session.close()
        return "; its last line: ".join([describe_exit(returncode), *session.process.tail(1)])

    def _became_ready(self, ready: Ready) -> None:
        before = self.loaded
        rows = ready.micro_batch
        if before is not None and before.spec.in_micro_batches(rows) != ready.spec:
            raise ModelError(
                f"{self._config.model} changed while it was served: start a new teacher for it"
            )
        if before is not None and rows < before.micro_batch:
            self.micro_batch_reductions += 1
            log.warning(
                "%s ran out of memory: it runs %d samples at a time from now on, not %d",
                self._name,
                rows,
                before.micro_batch,
            )
        self._config = replace(self._config, micro_batch=rows)  # measured once
        self.loaded = ready
        self.ready = True
        self._settled.set()
        self._on_change()

    def _pause_after(self, how: str) -> None:
        """Wait before the next start; raise ProcessFailed where another makes no sense."""
        if self.loaded is None:
            raise ProcessFailed(f"{self._name} {how}; it was loading {self._config.model}")
        now = time.monotonic()
        if self._answered:
            self._crashes.clear()
        self._answered = False
        self._crashes.append(now)
        while now - self._crashes[0] > CRASH_WINDOW_S:
            self._crashes.popleft()
        if len(self._crashes) >= CRASHES_AT_MOST:
            raise ProcessFailed(
                f"{self._name} died {len(self._crashes)} times within {CRASH_WINDOW_S:g} s "
                f"without an answer in between; the last {how}"
            )
        self.restarts += 1
        self._on_change()
        log.warning("%s %s; it is started again", self._name, how)
        self._stopping.wait(delay_s(len(self._crashes) - 1, random.Random()))
