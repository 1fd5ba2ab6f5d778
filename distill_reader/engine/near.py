"""Asks a teacher of this host in the engine's own thread, where that takes no waiting.

A request whose rows stay in place is a few hundred bytes, and its answer is read once it is here:
no thread of its own has to be woken for either. That is the way of what goes well. Whatever does
not, from a door that is shut to an answer that is an error, is asked again by a thread, which has
the time to find out what is the matter.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...errors import DeadlineExceeded, EdlError, RateLimited
from ...proto.clients import Answer, Request
from ...proto.clients.near_line import NearLine
from ...proto.clients.oip_grpc import answer_of
from ...proto.clients.same_host import SameHostClient
from ...proto.stream_answers import AT_ONCE, read
from .alike import Alike
from .asking import Wording
from .inbox import Inbox
from .outcomes import Broke, Done, Job, Outcome


class Asked(NamedTuple):
    """A request that is on its way.

    Attributes:
        job: what was asked.
        request: as it was sent.
        at: when, by the monotonic clock.
        until: when nobody waits for the answer any more.
        beside: how many were on their way to the teacher then, this one included.
    """

    job: Job
    request: Request
    at: float
    until: float
    beside: int


class Near:
    """What is asked of one teacher by lines that are kept. But for `add`, of the engine's thread.

    Args:
        client: knows whether and how.
        inbox: waits for the answers.
        checked: what comes of an answer.
        post: given each outcome.
        again: given each job that has to be asked by a thread.

    Attributes:
        wants_line: there was no line with room for a request; any thread may `add` one.
    """

    def __init__(
        self,
        client: SameHostClient,
        inbox: Inbox,
        checked: Callable[[Asked, Answer], Outcome],
        post: Callable[[Outcome], None],
        again: Callable[[Job], None],
    ) -> None:
        self.wants_line = False
        self._client = client
        self._inbox = inbox
        self._checked = checked
        self._post = post
        self._again = again
        self._alike = Alike()
        self._lines: dict[NearLine, deque[Asked]] = {}
        self._lock = threading.Lock()
        self._added: deque[NearLine] = deque()  # and not used yet
        self._closed = False

    def ask(self, job: Job, wording: Wording, timeout_s: float) -> bool:
        """Send a request before anything is waited for; False: it takes a thread.

        All that are asked by one line until then go out by one system call, and wake the teacher
        once.
        """
        line = self._free()
        self.wants_line = line is None
        if line is None:
            return False
        request = wording.request(job)
        if (message := self._client.near_message(request, timeout_s, job.lent)) is None:
            return False
        if line.put(message):
            self._inbox.put_off(partial(self._send, line))
        now = time.monotonic()
        beside = 1 + sum(map(len, self._lines.values()))
        self._lines[line].append(Asked(job, request, now, now + timeout_s, beside))
        return True

    def add(self, line: NearLine) -> None:
        """Use a line that was opened; any thread may add one."""
        with self._lock:
            if not self._closed:
                self._added.append(line)
                return
        line.close()

    def met(self) -> None:
        """The teacher has answered a probe: it may say other things from now on."""
        self._alike.forget()

    def look(self, now: float) -> None:
        """Time goes by: an answer that is late may not come any more."""
        for line, asked in list(self._lines.items()):
            if asked and asked[0].until <= now:
                late = asked.popleft()
                self._drop(line)
                error = DeadlineExceeded("no answer within the time that there was for one")
                self._post(Broke(late.job, error))

    def close(self) -> None:
        """Ask nothing more; what is on its way is heard by nobody."""
        with self._lock:
            self._closed = True
        for line in self._lines:
            self._inbox.unwatch(line)
            line.close()
        for line in self._added:
            line.close()
        self._added.clear()
        self._lines.clear()

    def _free(self) -> NearLine | None:
        while self._added:
            line = self._added.popleft()
            self._lines[line] = deque()
            self._inbox.watch(line, partial(self._hear, line))
        for line, asked in self._lines.items():
            if len(asked) < AT_ONCE:
                return line
        return None

    def _send(self, line: NearLine) -> None:
        if line not in self._lines:  # it was dropped meanwhile, and its requests asked again
            return
        try:
            line.send()
        except OSError:
            self._drop(line)

    def _hear(self, line: NearLine) -> None:
        try:
            answers = line.hear()
        except OSError:
            self._drop(line)
            return
        asked = self._lines[line]
        for answer in answers:
            if not asked:  # it says what nobody has asked for
                self._drop(line)
                return
            self._read(asked.popleft(), answer)

    def _read(self, asked: Asked, answer: memoryview) -> None:
        job, _, at, _, beside = asked
        if (done := self._alike.done(job, answer, at, beside)) is not None:
            self._post(done)
            return
        try:
            said = answer_of(read(answer))
        except RateLimited as error:
            self._post(Broke(job, error))
        except EdlError:
            self._again(job)
        else:
            outcome = self._checked(asked, said)
            if isinstance(outcome, Done):
                self._alike.learn(answer, said, outcome)
            self._post(outcome)

    def _drop(self, line: NearLine) -> None:
        """A line is over: what was asked by it is asked again."""
        lost = self._lines.pop(line)
        self._inbox.unwatch(line)
        line.close()
        for asked in lost:
            self._again(asked.job)
