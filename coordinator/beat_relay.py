"""Sends the heartbeats of all teachers of a host in one message: the relay, and its client.

Teachers of a host send their heartbeats at the same moments of its monotonic clock, to the relay,
over a Unix socket. The relay forwards them to Redis in one message. A teacher that gets no reply in
time sends its heartbeat itself, so no lease depends on the relay.
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
from .store.records import BeatAnswer, MemberBeat, check_ttl

log = logging.getLogger(__name__)

#: Seconds that the first heartbeat waits for those of other teachers.
_GATHER_S: Final = 0.05
#: Seconds between attempts to become the relay of the host.
_RETRY_S: Final = 1.0
#: A teacher waits for the relay's reply for this share of its TTL, at most this many seconds.
_WAIT_TTLS, _MAX_WAIT_S = 0.1, 1.0
#: Name of `MemberBeat.notify` in messages.
_NOTIFY: Final = "noted"
_MAX_PATH_BYTES: Final = 100  # the limit of Linux for Unix sockets is 107


class RelayedRegistry(Registry):
    """A registry that sends heartbeats of teachers through the relay of this host.

    It sends a heartbeat directly if the relay does not reply, or if the heartbeat contains a change
    that managers have to see.

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

    def beat(self, kind: Kind, service: str, beat: MemberBeat, ttl_s: float) -> BeatAnswer:
        # A change that managers have to see is sent directly: the relay would delay it.
        relayed = kind == "teachers" and not beat.notify
        answer = self._beat_by_relay(service, beat, ttl_s) if relayed else None
        return super().beat(kind, service, beat, ttl_s) if answer is None else answer

    def close(self) -> None:
        with self._lock:
            self._disconnect()
        super().close()

    def _beat_by_relay(self, service: str, beat: MemberBeat, ttl_s: float) -> BeatAnswer | None:
        """Return Redis's reply through the relay; None: none came in time, or the relay failed."""
        wait_s = min(_WAIT_TTLS * ttl_s, _MAX_WAIT_S) if self._wait_s is None else self._wait_s
        until_s = time.monotonic() + wait_s
        fields = asdict(beat)
        fields[_NOTIFY] = fields.pop("notify")
        message = {"service": service, "ttl_s": ttl_s, "until_s": until_s, "beat": fields}
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
                    return BeatAnswer(int(answer))
            except (OSError, ValueError) as error:
                log.debug("the relay of this host does not answer: %s", error)
            self._disconnect()  # else a late reply would count as the reply to the next heartbeat
            return None

    def _disconnect(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None


@dataclass(frozen=True, slots=True)
class _PendingBeat:
    """A heartbeat that a teacher has sent to the relay.

    Attributes:
        service: service of the teacher.
        ttl_s: TTL of its lease, in seconds.
        until_s: time of the host's monotonic clock until which the teacher waits for the reply.
        beat: the heartbeat.
        answer: gets the reply of Redis; None: the relay could not send the heartbeat. After
            `until_s` it gets nothing.
    """

    service: str
    ttl_s: float
    until_s: float
    beat: MemberBeat
    answer: queue.SimpleQueue[BeatAnswer | None] = field(default_factory=queue.SimpleQueue)


class BeatRelay:
    """Forwards the heartbeats of a host's teachers. Of several relays with one path, one is active.

    Args:
        registry: sends the heartbeats; the caller closes it.
        path: socket of the relay, in a private folder.
        pause: sleeps for the given seconds; tests pass another function.
    """

    def __init__(
        self, registry: Registry, path: Path, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._registry = registry
        self._path = path
        self._pause = pause
        self._pending: queue.SimpleQueue[_PendingBeat | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, name="edl-beat-listen", daemon=True),
            threading.Thread(target=self._send_all, name="edl-beat-relay", daemon=True),
        ]

    @property
    def waiting(self) -> int:
        """Number of heartbeats that wait to be sent."""
        return self._pending.qsize()

    def start(self) -> None:
        """Start the threads; call it once.

        If the socket cannot be opened, a warning is logged and teachers send heartbeats themselves.
        """
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, so that another relay takes over. Idempotent."""
        self._stopping.set()
        self._pending.put(None)
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
        if len(str(self._path).encode()) > _MAX_PATH_BYTES:
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
            new_path.rename(self._path)  # the server accepts connections already
            serving = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
            serving.start()
            self._stopping.wait()
            self._path.unlink(missing_ok=True)
            server.shutdown()

    def _reply_to(self, line: bytes) -> BeatAnswer | None:
        """Forward one heartbeat and return Redis's reply.

        None: the heartbeat is invalid or was not sent, or no reply came within its TTL.
        """
        try:
            pending = _parse(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, EdlError) as error:
            log.warning("an invalid heartbeat: %s", error)
            return None
        if self._stopping.is_set():
            return None
        self._pending.put(pending)
        with suppress(queue.Empty):
            return pending.answer.get(timeout=pending.ttl_s)
        return None

    # -- the sending thread

    def _send_all(self) -> None:
        while not self._stopping.is_set():
            if (first := self._pending.get()) is None:
                break
            self._pause(_GATHER_S)
            gathered = [first]
            with suppress(queue.Empty):
                while (pending := self._pending.get_nowait()) is not None:
                    gathered.append(pending)
            # After `until_s` the teacher may have sent newer facts, which must not be overwritten.
            now = time.monotonic()
            timely = [pending for pending in gathered if now < pending.until_s]
            for ttl_s in dict.fromkeys(pending.ttl_s for pending in timely):
                self._send([pending for pending in timely if pending.ttl_s == ttl_s], ttl_s)
        with suppress(queue.Empty):
            while (unsent := self._pending.get_nowait()) is not None:
                unsent.answer.put(None)

    def _send(self, group: Sequence[_PendingBeat], ttl_s: float) -> None:
        answers: Sequence[BeatAnswer | None] = [None] * len(group)
        try:
            beats = [(pending.service, pending.beat) for pending in group]
            answers = self._registry.beat_many("teachers", beats, ttl_s)
        except EdlError as error:
            log.debug("heartbeats of this host's teachers could not be sent: %s", error)
        except Exception:
            log.exception("a bug: heartbeats of this host's teachers were not sent")
        for pending, answer in zip(group, answers, strict=True):
            pending.answer.put(answer)


def _parse(line: bytes) -> _PendingBeat:
    """Parse a message. Raises if it is invalid.

    The relay forwards all heartbeats in one message, so an invalid one would make all of them fail.
    """
    message = json.loads(line)
    fields = message["beat"]
    fields["notify"] = fields.pop(_NOTIFY, False)
    beat = MemberBeat(**fields)
    check_member("teachers", beat.member)
    names_and_values = [part for pair in beat.facts.items() for part in pair]
    typed = type(beat.incarnation) is int and type(beat.notify) is type(beat.volatile) is bool
    if not (typed and all(isinstance(part, str) for part in names_and_values)):
        raise TypeError(f"a field of the heartbeat of {beat.member} has a wrong type")
    service, ttl_s = check_service(message["service"]), check_ttl(float(message["ttl_s"]))
    return _PendingBeat(service, ttl_s, float(message["until_s"]), beat)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = socket.SOMAXCONN  # a new relay gets the heartbeats of all teachers at once
    reply_to: Callable[[bytes], BeatAnswer | None]  # returns the reply to a heartbeat


class _TeacherConnection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(OSError):
            for line in self.rfile:
                answer = self.server.reply_to(line)
                self.wfile.write(b"-" if answer is None else str(answer.value).encode())
