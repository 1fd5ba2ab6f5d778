"""A connection to Redis that runs the scripts of `lua/` and translates Redis's errors."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from ...proto.security.certificates import handshake_hint
from ...runtime.errors import Forbidden, RedisUnavailable, Unauthenticated
from . import redis_url
from .records import WrongKeyType

#: Start of the error for a key that has a value of another type.
_WRONG_TYPE: Final = "WRONGTYPE"

#: Commands per pipeline, so that Redis serves other clients in between.
CHUNK: Final = 500
#: Seconds to wait for an answer without TLS from a server that did not answer in TLS.
_PLAIN_S: Final = 0.5

#: Error code in the text of a refusal -> its short name, what is wrong, what to do.
_REFUSALS: Final = {
    "READONLY": (
        "read_only",
        "is a replica",
        "name its master in the URL, or name its sentinels: redis+sentinel://host:port/MASTER",
    ),
    "OOM": (
        "out_of_memory",
        "is out of memory and refuses writes",
        "raise its maxmemory, or delete data of other programs from it",
    ),
    "BUSY": (
        "busy",
        "is busy with a script and refuses everything else",
        "end that script with SCRIPT KILL, and find out which program runs it",
    ),
    "NOREPLICAS": (
        "no_replicas",
        "has too few replicas in step and refuses writes",
        "start its replicas again, or lower its min-replicas-to-write",
    ),
    "MISCONF": (
        "not_saving",
        "cannot save to its disk and refuses writes",
        "free space on its disk; its own log has the cause",
    ),
}
#: Short names of all reasons for which Redis answers but refuses to work.
REFUSALS: Final = tuple(name for name, _, _ in _REFUSALS.values())


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a script: its keys and arguments."""

    keys: Sequence[str]
    args: Sequence[str | int]


class RedisConnection:
    """A client that is safe to use from several threads, with a pool of connections.

    `run` and `run_many` raise RedisUnavailable, Unauthenticated or Forbidden. Use
    `with_server_time` and `client` within `converting_errors`.

    Args:
        url: any URL that `redis_url.parse` accepts.
        timeout_s: timeout of a connection and of each answer, in seconds.

    Attributes:
        url: the URL without user, password and parameters.
        client: client of redis-py.
    """

    def __init__(self, url: str, timeout_s: float = 1.0) -> None:
        self._parsed = redis_url.parse(url)
        self.url = self._parsed.shown
        self.client: Any = redis_url.open_client(self._parsed, timeout_s)
        self._answered = False

    def run(self, name: str, keys: Sequence[str], *args: str | int) -> Any:
        """Run a script by its hash; send its text if the server does not have it."""
        import redis

        source, digest = script(name)
        with self.converting_errors():
            try:
                return self.client.evalsha(digest, len(keys), *keys, *args)
            except redis.exceptions.NoScriptError:
                return self.client.eval(source, len(keys), *keys, *args)

    def run_many(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script many times in few round trips; repeated runs must be harmless.

        Returns:
            The answers, in order; None for a call in which a key has a value of another type.
        """
        import redis

        answers: list[Any] = []
        for start in range(0, len(calls), CHUNK):
            chunk = calls[start : start + CHUNK]
            with self.converting_errors():
                results = self._run_pipeline(name, chunk)
                if any(isinstance(result, redis.exceptions.NoScriptError) for result in results):
                    results = self._run_pipeline(name, chunk, send_text=True)
                answers += [None if is_wrong_type(result) else result for result in results]
        return answers

    def _run_pipeline(
        self, name: str, calls: Sequence[Call], *, send_text: bool = False
    ) -> list[Any]:
        """Return answers and errors; with `send_text`, the first call has the script's text."""
        source, digest = script(name)
        with self.client.pipeline(transaction=False) as pipe:
            for position, call in enumerate(calls):
                keys = len(call.keys), *call.keys
                if send_text and position == 0:
                    pipe.eval(source, *keys, *call.args)
                else:
                    pipe.evalsha(digest, *keys, *call.args)
            return list(pipe.execute(raise_on_error=False))

    def with_server_time(self, command: Any) -> tuple[float, Any]:
        """Return the server time in ms and the answer of a command, in one round trip.

        `command` gets the pipeline and adds the command to it.
        """
        with self.client.pipeline(transaction=False) as pipe:
            pipe.time()
            command(pipe)
            (seconds, micros), answer = pipe.execute()
        return int(seconds) * 1000 + int(micros) / 1000, answer

    @contextmanager
    def converting_errors(self) -> Iterator[None]:
        """Raise errors of redis-py within the block as errors of this package."""
        import redis

        try:
            yield
            self._answered = True
        except redis.AuthenticationError as error:
            raise Unauthenticated(
                f"Redis at {self.url} refuses the user or password ({_brief(error)}); name them "
                "in the URL, or the password in a file with ?password_file=PATH"
            ) from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise RedisUnavailable(
                f"Redis at {self.url} does not answer ({_brief(error)}); {self._advice(error)}",
                timed_out=isinstance(error, (redis.TimeoutError, TimeoutError)),
            ) from None
        except redis.RedisError as error:
            text = _brief(error)
            if isinstance(error, redis.exceptions.NoPermissionError) or "ACL failure" in text:
                raise Forbidden(
                    f"the Redis user of {self.url} may not do this ({text}); give it the rules of "
                    "its role and service, as 'edl coordinator acl' prints them"
                ) from None
            if (refusal := _refusal(error, text)) is not None:
                name, what, advice = refusal
                raise RedisUnavailable(
                    f"Redis at {self.url} {what} ({text}): {advice}", refusal=name
                ) from None
            if _WRONG_TYPE in text:
                raise WrongKeyType(
                    f"Redis at {self.url} refuses a command: another program wrote a value of "
                    f"another type to a key of the mesh ({text})"
                ) from None
            advice = "it has to be Redis 6.2 or newer, or Valkey, with scripts allowed"
            if "DB index" in text:
                advice = (
                    "the URL names a database that it does not have: raise the setting 'databases' "
                    "of this Redis"
                )
            raise RedisUnavailable(
                f"Redis at {self.url} refuses a command ({text}); {advice}"
            ) from None

    def _advice(self, error: Exception) -> str:
        import redis

        if isinstance(error, redis.BusyLoadingError):
            return "wait until it has loaded its data"
        text = str(error)
        if hint := handshake_hint(text, ca="?ssl_ca_certs=FILE"):
            return hint
        no_tls = "WRONG_VERSION_NUMBER" in text or "record layer" in text
        if no_tls or self._answers_without_tls(error):
            return (
                "it does not use TLS (the Valkey of the extra 'embedded' cannot): write redis:// in"
                " place of rediss://, or start a server that is built with TLS"
            )
        advice = "start it, or name the Redis of the mesh by its URL"
        closed = "reset by peer" in text or "closed by server" in text
        if closed and not self._answered and self.url.lower().startswith("redis://"):
            return f"{advice}; if it uses TLS, write rediss://"
        return advice

    def _answers_without_tls(self, error: Exception) -> bool:
        """Return whether a server that does not answer in TLS answers a command without TLS."""
        import redis

        timed_out = isinstance(error, (redis.TimeoutError, TimeoutError))
        if self._parsed.tls is None or self._parsed.master or self._answered or not timed_out:
            return False
        with suppress(OSError), socket.create_connection(self._parsed.hosts[0], _PLAIN_S) as plain:
            plain.sendall(b"PING\r\n")
            return plain.recv(1) in (b"+", b"-")
        return False


@cache
def script(name: str) -> tuple[str, str]:
    """Return the text of a script and its hash."""
    folder = resources.files(__package__) / "lua"
    source = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("prelude", name))
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def is_wrong_type(answer: Any) -> bool:
    """Return whether an answer is the error for a key of another type. Raise any other error."""
    if not isinstance(answer, Exception):
        return False
    if _WRONG_TYPE not in str(answer):
        raise answer
    return True


def _refusal(error: Exception, text: str) -> tuple[str, str, str] | None:
    """Return the entry of `_REFUSALS` for an error; None: it is no refusal."""
    import redis

    replica_errors = redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError
    if isinstance(error, replica_errors):  # their texts lack the code
        return _REFUSALS["READONLY"]
    if isinstance(error, redis.exceptions.OutOfMemoryError):
        return _REFUSALS["OOM"]
    match = re.search(rf"\b({'|'.join(_REFUSALS)})\b", text)
    return None if match is None else _REFUSALS[match[1]]


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
