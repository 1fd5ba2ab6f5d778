"""The way by HTTP to a teacher of ours, which is asked over gRPC for all else.

A teacher offers it. It is taken only if it leads to the very process that made the offer: the port
that gRPC was dialled at is the one that the teacher has bound, so that nothing between the two maps
ports, and the teacher's mark is heard over each connection before a credential or a batch goes
there. Where that fails, or a connection breaks, the way is shut for a while: what is asked
meanwhile goes by gRPC, which says what is the matter.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from ...errors import DeadlineExceeded, EdlError, TeacherLost
from ..http_offer import OFFER, HttpOffer
from ..security import ClientSecurity
from ..security.http_dial import HttpDial
from .client import Answer, Request
from .detour import Detour
from .http_calls import HttpCalls
from .http_infer import answer_of, body_of, path_of
from .http_line import HttpLine
from .http_messages import HttpRequest
from .lines import Ended

log = logging.getLogger(__name__)

#: From dialling to having heard the mark. Nobody who has a batch waits longer for that.
_OPEN_S: Final = 0.5
#: Answered to everybody, without a credential.
_LIVE: Final = HttpRequest("GET", "/v2/health/live")


class Shut(Exception):
    """The way does not lead to the teacher now."""


class HttpWay:
    """Asks one model of one teacher, as long as the way is open. Any thread may.

    Args:
        host: as gRPC has dialled it.
        offer: of the teacher.
        model: its name there.
        security: how to prove who calls, as over gRPC.

    Raises:
        UsageError: a file of `security` cannot be used.
    """

    def __init__(
        self, host: str, offer: HttpOffer, model: str, security: ClientSecurity | None
    ) -> None:
        encrypted = security is not None and security.tls is not None
        dial = HttpDial(f"http{'s' * encrypted}://{host}:{offer.http_port}", security)
        self.offer = offer
        self._path = f"{path_of(model)}/infer"
        self._calls = _Proved(dial, offer)
        self._lock = threading.Lock()
        self._open = False
        self._opening = False
        self._detour = Detour()

    def open(self, until_s: float) -> None:
        """Try to open it by then, on the monotonic clock, unless it is to be left alone."""
        with self._lock:
            if self._open or self._opening or not self._detour.is_over(time.monotonic()):
                return
            self._opening = True
        opened = False
        try:
            self._calls.prepare(until_s)
            opened = True
        except (EdlError, Shut) as error:
            with self._lock:
                self._failed(error)
        finally:
            with self._lock:
                self._open, self._opening = opened, False

    def infer(self, request: Request, until_s: float) -> Answer:
        """As of `Client`, until then.

        Raises:
            Shut: it has to be asked by another way, at once.
        """
        if not self._open:
            self._open_beside()
            raise Shut("it is not open")
        headers, body = body_of(request, binary=True)
        try:
            reply = self._calls.call("POST", self._path, until_s, body, headers, request.check)
        except DeadlineExceeded:
            raise
        except (TeacherLost, Shut) as error:
            with self._lock:
                if self._open:  # else another request has said so
                    self._failed(error)
            raise Shut(str(error)) from None
        if self._detour.failures:
            self._detour = self._detour.worked()
        return answer_of(reply)

    def close(self) -> None:
        """Nothing more is asked; what is on its way ends. Idempotent."""
        self._calls.close()

    def _open_beside(self) -> None:
        """Try to open it, if it is time to, while whoever asks takes another way."""
        if not self._opening and self._detour.is_over(time.monotonic()):
            until_s = time.monotonic() + _OPEN_S
            threading.Thread(
                target=self.open, args=(until_s,), name="edl-http-opener", daemon=True
            ).start()

    def _failed(self, error: Exception) -> None:
        """It leads nowhere; called with the lock."""
        log.info("batches go by gRPC for a while, as HTTP fails: %s", error)
        self._detour, self._open = self._detour.failed(time.monotonic()), False


class _Proved(HttpCalls):
    """Asks over no line at whose other end is not the teacher that has made `offer`."""

    def __init__(self, dial: HttpDial, offer: HttpOffer) -> None:
        super().__init__(dial)
        self._offer = offer

    def open_line(self, until_s: float) -> HttpLine:
        """As of `HttpCalls`, soon; raises Shut where there can be none."""
        until_s = min(until_s, time.monotonic() + _OPEN_S)
        try:
            line = super().open_line(until_s)
        except EdlError as error:
            raise Shut(f"port {self._offer.http_port}: {error}") from None
        try:
            self._hear_mark(line, until_s)
        except BaseException:
            line.end()
            raise
        return line

    def _hear_mark(self, line: HttpLine, until_s: float) -> None:
        try:
            mark = line.ask(_LIVE, until_s).headers.get(OFFER)
        except (EdlError, Ended) as error:
            raise Shut(f"no word of port {self._offer.http_port}: {error}") from None
        if mark != self._offer.mark:
            raise Shut(f"another server answers at port {self._offer.http_port}")
