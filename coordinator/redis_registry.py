"""The registry on Redis or Valkey: each step is one Lua script or one pipelined reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..errors import LeaseSuperseded, RegistryUnavailable, UsageError
from . import keys
from .registry import Changes, Kind, Member, concerns_managers, masked

if TYPE_CHECKING:
    import redis

_SWEEP_LIMIT = 1000
_READ_CHUNK = 500  # hashes per pipelined reading, so that no single answer grows large
_FORGET_AGE_MS = 60_000


class RedisRegistry:
    """See `Registry`. Safe to use from several threads; connections come from a pool."""

    def __init__(self, url: str, timeout_s: float = 1.0) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._url = masked(url)
        try:
            self._redis: redis.Redis = redis.Redis.from_url(
                url,
                decode_responses=True,
                encoding_errors="replace",
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                # Once, for a connection that the server closed while it lay idle.
                retry=Retry(NoBackoff(), 1),
            )
        except (ValueError, redis.RedisError):  # whose words may hold a part of the password
            raise UsageError(
                f"not a Redis URL: {self._url}; expected redis://[:password@]host:port[/db], "
                "with '/', '?', '#' and '@' in the password as %2F, %3F, %23 and %40"
            ) from None
        # EVALSHA, and the script's text again to a server that has forgotten it.
        self._scripts: dict[str, Any] = {
            name: self._redis.register_script(_source(name))
            for name in ("register", "beat", "leave", "sweep", "services")
        }

    @property
    def url(self) -> str:
        return self._url

    def register(
        self, kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> None:
        where = _where(kind, service, member)
        incarnation, rest = _split(facts)
        with self._translated():
            if kind != "managers":
                self._scripts["services"](keys=[keys.SERVICES], args=[service, ""])
            won = self._scripts["register"](
                keys=where, args=[member, _ms(ttl_s), incarnation, *_flat(rest)]
            )
        if not won:
            raise LeaseSuperseded(
                f"a newer incarnation of {member} than {incarnation} is registered in "
                f"{service or 'the mesh'}"
            )

    def beat(
        self,
        kind: Kind,
        service: str,
        member: str,
        ttl_s: float,
        *,
        incarnation: int,
        facts: Mapping[str, str] | None = None,
    ) -> bool:
        changed = {name: value for name, value in (facts or {}).items() if name != "incarnation"}
        concerns = concerns_managers(kind, changed)
        with self._translated():
            return bool(
                self._scripts["beat"](
                    keys=_where(kind, service, member),
                    args=[member, _ms(ttl_s), incarnation, int(concerns), *_flat(changed)],
                )
            )

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        holder = "" if incarnation is None else str(incarnation)
        with self._translated():
            return bool(
                self._scripts["leave"](keys=_where(kind, service, member), args=[member, holder])
            )

    def members(self, kind: Kind, service: str) -> list[Member]:
        with self._translated():
            now_ms, scored = self._read(
                lambda pipe: pipe.zrange(keys.leases(kind, service), 0, -1, withscores=True)
            )
            living = [
                (member, score)
                for member, score in sorted(scored)
                if score > now_ms and keys.is_member(member)
            ]
            found = self._facts(kind, service, [member for member, _ in living])
        return [
            Member(member, facts, (score - now_ms) / 1000)
            for (member, score), facts in zip(living, found, strict=True)
            if facts  # it left in between
        ]

    def names(self, kind: Kind, service: str) -> set[str]:
        with self._translated():
            names: Any = self._redis.zrange(keys.leases(kind, service), 0, -1)
        return set(names)

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        key = keys.changes(kind, service)
        with self._translated():
            if cursor == 0:
                now_ms, last = self._read(lambda pipe: pipe.zrange(key, -1, -1, withscores=True))
                # Reading the cursor first, a change in between is seen twice rather than never.
                start = int(last[0][1]) if last else int(now_ms * 1000)
                return Changes(start, tuple(self.members(kind, service)), full=True)
            found: Any = self._redis.zrangebyscore(key, f"({cursor}", "+inf", withscores=True)
            changed = [(name, number) for name, number in found if keys.is_member(name)]
            if not changed:
                return Changes(cursor)
            return self._changed(kind, service, changed)

    def sweep(self, kind: Kind, service: str) -> list[str]:
        with self._translated():
            return list(
                self._scripts["sweep"](
                    keys=[keys.leases(kind, service), keys.changes(kind, service)],
                    args=[_SWEEP_LIMIT],
                )
            )

    def services(self) -> list[str]:
        with self._translated():
            found: Any = self._redis.zrange(keys.SERVICES, 0, -1)
            names = [name for name in found if keys.is_service(name)]
            with self._redis.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(keys.leases("teachers", name), keys.leases("students", name))
                counts = pipe.execute()
            for name, count in zip(names, counts, strict=True):
                if not count:
                    self._scripts["services"](keys=[keys.SERVICES], args=[name, _FORGET_AGE_MS])
        return sorted(name for name, count in zip(names, counts, strict=True) if count)

    def time_ms(self) -> int:
        with self._translated():
            seconds, micros = self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def close(self) -> None:
        self._redis.close()

    def _changed(self, kind: Kind, service: str, changed: Sequence[tuple[str, float]]) -> Changes:
        names = [member for member, _ in changed]
        now_ms, deadlines = self._read(lambda pipe: pipe.zmscore(keys.leases(kind, service), names))
        members, left, lost = [], [], []
        for name, deadline, facts in zip(
            names, deadlines, self._facts(kind, service, names), strict=True
        ):
            if not facts:
                left.append(name)
            elif deadline is None:
                lost.append(name)
            else:
                members.append(Member(name, facts, (deadline - now_ms) / 1000))
        cursor = int(max(number for _, number in changed))
        return Changes(cursor, tuple(members), tuple(left), tuple(lost))

    def _facts(self, kind: Kind, service: str, names: Sequence[str]) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        for start in range(0, len(names), _READ_CHUNK):
            with self._redis.pipeline(transaction=False) as pipe:
                for name in names[start : start + _READ_CHUNK]:
                    pipe.hgetall(keys.facts(kind, service, name))
                found += pipe.execute()
        return found

    def _read(self, command: Any) -> tuple[float, Any]:
        """Server time in ms and the answer of one command, in one round trip."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            command(pipe)
            (seconds, micros), answer = pipe.execute()
        return int(seconds) * 1000 + int(micros) / 1000, answer

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import redis

        try:
            yield
        except redis.AuthenticationError as error:
            raise RegistryUnavailable(
                f"Redis at {self._url} refuses the user or password of the URL ({error})"
            ) from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise RegistryUnavailable(
                f"Redis at {self._url} does not answer ({_brief(error)}); "
                "start it, or name the Redis of the mesh by its URL"
            ) from None
        except redis.RedisError as error:
            raise RegistryUnavailable(
                f"Redis at {self._url} refuses a command ({_brief(error)}); "
                "it has to be Redis 6.2 or newer, or Valkey, with scripts allowed"
            ) from None


def _source(name: str) -> str:
    folder = resources.files(__package__) / "lua"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("prelude", name))


def _where(kind: Kind, service: str, member: str) -> list[str]:
    return [
        keys.leases(kind, service),
        keys.facts(kind, service, member),
        keys.changes(kind, service),
    ]


def _split(facts: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    rest = dict(facts)
    return int(rest.pop("incarnation")), rest


def _flat(facts: Mapping[str, str]) -> list[str]:
    return [part for pair in facts.items() for part in pair]


def _ms(ttl_s: float) -> int:
    return max(1, round(ttl_s * 1000))


def _brief(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
