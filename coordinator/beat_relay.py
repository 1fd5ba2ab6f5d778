"""One heartbeat message for all teachers of a host: the relay, and the registry that uses it.

The teachers of a host send heartbeats at the same times, as they share its monotonic clock. They
send them to the relay over a Unix socket, which forwards them in one message. A teacher that gets
no reply in time sends its heartbeat itself, so no lease depends on the relay.
"""

from __future__ import annotations

import fcntl
import json
import logging
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from ..runtime.errors import EdlError
from .registry import Kind, Registry
from .registry.schema import check_member, check_service
from .store import Store
from .store.records import Beat, MemberBeat, check_ttl

log = logging.getLogger(__name__)

#: Seconds that the first heartbeat waits for those of other teachers.
_GATHER_S: Final = 0.05
#: Seconds between attempts to become the relay of the host.
_RETRY_S: Final = 1.0
#: Share of the TTL for which a teacher waits for the relay, and the most seconds.
_WAIT_TTLS, _MOST_WAIT_S = 0.1, 1.0
_LONGEST_PATH: Final = 100  # bytes; the limit of Linux for Unix sockets is 107


class RelayedRegistry(Registry):
    """A registry that sends heartbeats of teachers through the relay of this host, if it replies.

    Args:
        store: as for `Registry`.
        path: socket of the relay.
        wait_s: seconds to wait for a reply; None: a tenth of the TTL, at most a second.
    """

    gathers_beats = True

    def __init__(self, store: Store, path: Path, wait_s: float | None = None) -> None:
        super().__init__(store)
        self._path = path
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._relay: socket.socket | None = None

    def beat(self, kind: Kind, service: str, beat: MemberBeat, ttl_s: float) -> Beat:
        # News for managers is not delayed.
        routine = kind == "teachers" and not beat.noted
        answer = self._ask(service, beat, ttl_s) if routine else None
        return super().beat(kind, service, beat, ttl_s) if answer is None else answer

    def close(self) -> None:
        with self._lock:
            self._disconnect()
        super().close()

    def _ask(self, service: str, beat: MemberBeat, ttl_s: float) -> Beat | None:
        wait_s = min(_WAIT_TTLS * ttl_s, _MOST_WAIT_S) if self._wait_s is None else self._wait_s
        until_s = time.monotonic() + wait_s
        message = {"service": service, "ttl_s": ttl_s, "until_s": until_s, "beat": asdict(beat)}
        with self._lock:
            try:
                if self._relay is None:
                    self._relay = socket.socket(socket.AF_UNIX)
                    self._relay.settimeout(wait_s)
                    self._relay.connect(str(self._path))
                self._relay.settimeout(wait_s)
                self._relay.sendall(json.dumps(message).encode() + b"\n")
                answer = self._relay.recv(1)
                if answer.isdigit():
                    return Beat(int(answer))
            except (OSError, ValueError) as error:
                log.debug("the relay of this host does not answer: %s", error)
            self._disconnect()  # a late reply must not be taken for that of the next heartbeat
            return None

    def _disconnect(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    service: str
    ttl_s: float
    until_s: float  # by the host's monotonic clock; afterwards its teacher sends it
    beat: MemberBeat
    answer: queue.SimpleQueue[Beat | None] = field(default_factory=queue.SimpleQueue)


class BeatRelay:
    """Forwards heartbeats of a host's teachers. Of several with the same path, one is active.

    Args:
        registry: sends the heartbeats; the caller closes it.
        path: socket of the relay, in a private folder.
        pause: called with the seconds to wait for further heartbeats.
    """

    def __init__(
        self, registry: Registry, path: Path, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._registry = registry
        self._path = path
        self._pause = pause
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, name="edl-beat-listen", daemon=True),
            threading.Thread(target=self._send_all, name="edl-beat-relay", daemon=True),
        ]

    @property
    def waiting(self) -> int:
        """Number of heartbeats that wait to be sent."""
        return self._waiting.qsize()

    def start(self) -> None:
        """Start; call it once. Without a socket, teachers send heartbeats themselves."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, so that another relay takes over. Idempotent."""
        self._stopping.set()
        self._waiting.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2 * _RETRY_S)

    # -- the listening thread

    def _listen(self) -> None:
        try:
            self._serve()
        except OSError as error:
            log.warning("cannot start the relay of heartbeats at %s: %s", self._path, error)

    def _serve(self) -> None:
        if len(str(self._path).encode()) > _LONGEST_PATH:
            raise OSError("its path is too long for a socket")
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with ExitStack() as stack:
            lock = stack.enter_context(self._path.with_suffix(".lock").open("w"))
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if self._stopping.wait(_RETRY_S):
                        return
            new_path = self._path.with_suffix(".new")
            new_path.unlink(missing_ok=True)
            server = stack.enter_context(_Server(str(new_path), _TeacherConnection))
            server.reply_to = self._reply_to
            new_path.chmod(0o600)
            new_path.rename(self._path)  # the server accepts connections by now
            serving = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
            serving.start()
            self._stopping.wait()
            self._path.unlink(missing_ok=True)
            server.shutdown()

    def _reply_to(self, line: bytes) -> Beat | None:
        """Forward one heartbeat and return its reply; None: it could not be sent."""
        try:
            waiting = _parse(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, EdlError) as error:
            log.warning("an invalid heartbeat: %s", error)
            return None
        if self._stopping.is_set():
            return None
        self._waiting.put(waiting)
        with suppress(queue.Empty):
            return waiting.answer.get(timeout=waiting.ttl_s)
        return None

    # -- the sending thread

    def _send_all(self) -> None:
        while not self._stopping.is_set():
            if (first := self._waiting.get()) is None:
                break
            self._pause(_GATHER_S)
            gathered = [first]
            with suppress(queue.Empty):
                while (one := self._waiting.get_nowait()) is not None:
                    gathered.append(one)
            now = time.monotonic()  # a late heartbeat could overwrite newer facts of its teacher
            timely = [one for one in gathered if now < one.until_s]
            for ttl_s in dict.fromkeys(one.ttl_s for one in timely):
                self._send([one for one in timely if one.ttl_s == ttl_s], ttl_s)
        with suppress(queue.Empty):
            while (left := self._waiting.get_nowait()) is not None:
                left.answer.put(None)

    def _send(self, together: Sequence[_Waiting], ttl_s: float) -> None:
        answers: Sequence[Beat | None] = [None] * len(together)
        try:
            beats = [(one.service, one.beat) for one in together]
            answers = self._registry.beat_many("teachers", beats, ttl_s)
        except EdlError as error:
            log.debug("heartbeats of this host's teachers could not be sent: %s", error)
        except Exception:
            log.exception("a bug: heartbeats of this host's teachers were not sent")
        for one, answer in zip(together, answers, strict=True):
            one.answer.put(answer)


def _parse(line: bytes) -> _Waiting:
    """Parse a message. An invalid one raises here, as it would fail all that are sent with it."""
    message = json.loads(line)
    beat = MemberBeat(**message["beat"])
    check_member("teachers", beat.member)
    texts = [part for pair in beat.facts.items() for part in pair]
    typed = type(beat.incarnation) is int and type(beat.noted) is type(beat.volatile) is bool
    if not (typed and all(isinstance(text, str) for text in texts)):
        raise TypeError(f"a field of the heartbeat of {beat.member} has a wrong type")
    service, ttl_s = check_service(message["service"]), check_ttl(float(message["ttl_s"]))
    return _Waiting(service, ttl_s, float(message["until_s"]), beat)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = socket.SOMAXCONN  # a new relay gets the heartbeats of all teachers at once
    reply_to: Callable[[bytes], Beat | None]  # returns the reply to a heartbeat


class _TeacherConnection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(OSError):
            for line in self.rfile:
                answer = self.server.reply_to(line)
                self.wfile.write(b"-" if answer is None else str(answer.value).encode())
