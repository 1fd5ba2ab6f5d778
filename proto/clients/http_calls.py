"""Requests of HTTP to one server, over as many lines as ask at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...errors import DeadlineExceeded, TeacherLost
from ..security.certificates import handshake_hint
from ..security.http_dial import HttpDial
from ..wire import Buffer
from .http_line import HttpLine
from .http_messages import HttpRequest, Reply
from .lines import Lines, left_s


class HttpCalls:
    """Asks one server. Any thread may.

    Args:
        dial: opens connections.
    """

    def __init__(self, dial: HttpDial) -> None:
        self._dial = dial
        self._wire = threading.Lock()
        self._lines: Lines[HttpRequest, Reply] = Lines(self.open_line, 1)

    def call(
        self,
        method: str,
        path: str,
        until_s: float,
        body: Sequence[Buffer] = (),
        headers: Mapping[str, str] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Reply:
        """Ask, and wait for the answer until then, on the monotonic clock.

        `check` is called once the body is sent, and raises InputsOverwritten if that has changed.

        Raises:
            DeadlineExceeded: it did not come in time.
            TeacherLost: nobody answers, the connection broke, or this was closed.
            BadAnswer: what came is no HTTP, or too much.
            UsageError: the token can be read no more.
        """
        said = {**self._dial.headers(), **(headers or {})}
        request = HttpRequest(method, self._dial.path + path, said, body)
        if check is not None:
            request = replace(request, check=check)
        return self._lines.call(request, until_s)

    def prepare(self, until_s: float) -> None:
        """Have a line open; raises as `call` does."""
        self._lines.prepare(until_s)

    def close(self) -> None:
        """End all connections; calls that wait end as TeacherLost. Idempotent."""
        self._lines.close()

    def open_line(self, until_s: float) -> HttpLine:
        """One more, by then; raises DeadlineExceeded, TeacherLost."""
        try:
            connection = self._dial.connect(left_s(until_s))
        except TimeoutError:
            raise DeadlineExceeded("nobody answers within the time that there was") from None
        except OSError as error:
            hint = handshake_hint(str(error))
            raise TeacherLost(f"nobody answers: {error}" + (f"; {hint}" if hint else "")) from None
        return HttpLine(connection, self._dial.host, self._wire)
