"""The store in Redis or Valkey: scripts of `lua/` and plain commands, in Redis time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

from ...runtime.errors import Forbidden
from .records import (
    AddToSortedSet,
    Append,
    Change,
    Condition,
    Delete,
    FieldIs,
    Keep,
    Leadership,
    LeadershipChange,
    Leads,
    LogRecord,
    NumberIs,
    Once,
    Put,
    PutRows,
    RemoveFromSortedSet,
    ScoreIs,
    ShardKeys,
    Stamp,
    log_position,
    number,
)
from .redis_connection import RedisConnection
from .redis_leases import RedisLeases

#: A list that never exists. RPUSHX on it tests whether writes are accepted, and does not create it.
WRITE_CHECK: Final = "edl:write-check"

#: The change of a leadership for each code that script `lead` returns.
_LEADERSHIP_CHANGES: Final[tuple[LeadershipChange, ...]] = get_args(LeadershipChange)
_WORDS_PER_ZADD: Final = 2000  # Lua passes only some thousand arguments to a command
Word = str | int


class RedisStore:
    """A coordination store in Redis. Methods may be called from any thread.

    Leaderships and documents change in atomic steps. All methods raise RedisUnavailable if the
    store does not answer or refuses, Unauthenticated if it rejects the user or password, and
    Forbidden if the user lacks the permission.

    Args:
        url: any URL that `redis_url.parse` accepts; the store connects at its first use.
        timeout_s: timeout of a connection and of each answer, in seconds.

    Attributes:
        url: URL for messages, without the password.
        leases: the lease sets.

    Raises:
        UsageError: `url` is not a valid URL of a Redis.
    """

    def __init__(self, url: str, timeout_s: float = 1.0) -> None:
        self._connection = RedisConnection(url, timeout_s)
        self.url = self._connection.url
        self._client = self._connection.client
        self.leases = RedisLeases(self._connection)

    def server_info(self) -> dict[str, str]:
        """Return `server_name`, `version`, `role` and `maxmemory_policy`; {} for `MemoryStore`."""
        with self._connection.converting_errors():
            info = self._client.info()
        version = info.get("valkey_version") or info.get("redis_version", "")
        values = {
            "server_name": info.get("server_name", "redis"),
            "version": version,
            "role": info.get("role", ""),
            "maxmemory_policy": info.get("maxmemory_policy", ""),
        }
        return {name: str(value) for name, value in values.items()}

    def time_ms(self) -> int:
        """Return the store's clock, in milliseconds since 1970."""
        with self._connection.converting_errors():
            seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def check_writes(self) -> bool:
        """Test without writing whether writes are accepted. Raises RedisUnavailable if not.

        Returns:
            False if the user lacks the permission for this test.
        """
        try:
            with self._connection.converting_errors():
                self._client.rpushx(WRITE_CHECK, "")
        except Forbidden:
            return False
        return True

    def close(self) -> None:
        """Close the connections. A closed store reconnects when it is used."""
        self._client.close()

    # --- leadership

    def lead(
        self,
        key: str,
        holder: str,
        ttl_s: float,
        *,
        keep_s: Mapping[str, float] | None = None,
        facts: str = "",
        with_registry_id: bool = False,
    ) -> Leadership:
        """Take a leadership if it is free, or renew ours; return the resulting leadership.

        Args:
            key: key of the leadership.
            holder: our name.
            ttl_s: seconds until it ends without a renewal.
            keep_s: keys that the leader keeps alive -> seconds until they expire.
            facts: what the leader publishes about itself.
            with_registry_id: fill in `Leadership.registry_id`.
        """
        kept = keep_s or {}
        leader, token, change, registry_id, now_ms = self._connection.run(
            "lead", [key, *kept], holder, max(1, round(ttl_s * 1000)), facts, int(with_registry_id),
            *(round(seconds * 1000) for seconds in kept.values()),
        )  # fmt: skip
        return Leadership(leader, int(token), _LEADERSHIP_CHANGES[change], registry_id, int(now_ms))

    def leader(self, key: str) -> Leadership | None:
        """Return the leader with its facts and the time left; None: there is none."""
        with self._connection.converting_errors():
            now_ms, fields = self._connection.with_server_time(lambda pipe: pipe.hgetall(key))
        left_ms = number(fields.get("until_ms", "")) - now_ms
        if left_ms <= 0 or not fields.get("holder"):
            return None
        facts, token = fields.get("facts", ""), number(fields.get("token", ""))
        return Leadership(fields["holder"], token, "", "", int(now_ms), facts, left_ms / 1000)

    def resign(self, key: str, holder: str) -> bool:
        """Give a leadership back; False if `holder` does not have it."""
        return bool(self._connection.run("resign", [key], holder))

    # --- documents

    def read(self, *keys: str) -> list[dict[str, str]]:
        """Read documents in one atomic step; {} for a missing document."""
        if len(keys) == 1:
            with self._connection.converting_errors():
                return [dict(self._client.hgetall(keys[0]))]
        return [
            dict(zip(flat[::2], flat[1::2], strict=True))
            for flat in self._connection.run("read", keys)
        ]

    def fields(self, key: str, names: Sequence[str]) -> list[str | None]:
        """Read fields of a document; None for a missing field."""
        with self._connection.converting_errors():
            if len(names) == 1:
                return [self._client.hget(key, names[0])]
            return list(self._client.hmget(key, names))

    def changed_rows(
        self, key: str, changes_key: str, since: tuple[int, int] | None
    ) -> tuple[bool, tuple[int, int], dict[str, str]]:
        """Read the rows of a document that `PutRows` changed since a version.

        Args:
            key: key of the document. Its fields `=term` and `=counter` are its current version.
            changes_key: key of the zset row -> counter of its last change.
            since: the version (term, counter) that the caller knows; None: none.

        Returns:
            (full, version, rows). `full`: `rows` has all rows, not only changed ones, and
            also the fields that begin with "=". `version`: the current version. `rows`: row ->
            text, "" for a deleted row.
        """
        args = ("", 0) if since is None else since
        full, term, counter, flat = self._connection.run("changed", [key, changes_key], *args)
        rows = dict(zip(flat[::2], flat[1::2], strict=True))
        return bool(full), (int(term), int(counter)), rows

    def commit(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> int:
        """Make all changes if all conditions hold.

        Returns:
            0 if the changes were made, else the position of the first failed condition, from 1.
        """
        args: list[Word] = [len(conditions)]
        keys: dict[str, None] = {}
        for condition in conditions:
            kind, key, *values = _condition(condition)
            args += [kind, key, *values]
            keys[key] = None
        once = [Put(c.key, {"=write": c.id}) for c in conditions if isinstance(c, Once)]
        for change in (*once, *changes):
            for used_keys, words in _commands(change):
                args += [len(words), *words]
                keys.update(dict.fromkeys(used_keys))
        return int(self._connection.run("commit", list(keys), *args))

    # --- logs and recently used names

    def log(self, key: str, after: str = "", count: int = 0, last: int = 0) -> list[LogRecord]:
        """Return log entries after id `after`, oldest first.

        `count`: return at most the first `count` of them; `last`: at most the last `last`; 0: all.
        """
        log_position(after)
        start = f"({after}" if after else "-"
        with self._connection.converting_errors():
            if last:
                records = self._client.xrevrange(key, "+", start, count=last)[::-1]
            else:
                records = self._client.xrange(key, start, "+", count=count or None)
        return [LogRecord(record_id, fields or {}) for record_id, fields in records]

    def append(self, entry: Append) -> str:
        """Append to a log unconditionally; return the id of the entry."""
        with self._connection.converting_errors(), self._client.pipeline(transaction=False) as pipe:
            pipe.xadd(entry.key, entry.fields, maxlen=entry.kept, approximate=not entry.exact)
            pipe.pexpire(entry.key, round(entry.keep_s * 1000))
            return str(pipe.execute()[0])

    def record_use(self, key: str, name: str, keep_s: float | None = None) -> None:
        """Record that a name is in use now. With `keep_s`, delete names unused for so long."""
        # Plain commands, so that a user can be permitted just this.
        now_ms = self.time_ms()
        with self._connection.converting_errors(), self._client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {name: now_ms})
            if keep_s is not None:
                pipe.zremrangebyscore(key, "-inf", now_ms - round(keep_s * 1000))
                pipe.pexpire(key, round(keep_s * 1000))
            pipe.execute()

    def used_names(self, key: str, since_ms: int | None = None) -> list[str]:
        """Return the names used since `since_ms`, sorted; None: all names."""
        with self._connection.converting_errors():
            if since_ms is None:
                return sorted(self._client.zrange(key, 0, -1))
            return sorted(self._client.zrangebyscore(key, since_ms, "+inf"))

    def forget(self, key: str, name: str, age_s: float) -> None:
        """Delete a name whose last use is more than `age_s` seconds ago."""
        with self._connection.converting_errors():
            at_ms = self._client.zscore(key, name)
        if at_ms is not None and abs(self.time_ms() - at_ms) > age_s * 1000:
            self.commit([ScoreIs(key, name, at_ms)], [RemoveFromSortedSet(key, [name])])

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Return whether each key exists; keys may belong to different services."""
        with self._connection.converting_errors(), self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.exists(key)
            return [bool(count) for count in pipe.execute()]

    # --- shards

    def lease_shard(
        self,
        keys: ShardKeys,
        generation: int,
        epoch: int,
        rank: int,
        request_number: int | None,
        max_rows: int | None,
        keep_s: float,
    ) -> tuple[int, int] | str | None:
        """Lease the first free shard of an epoch; see `JobBoard.lease`.

        Returns:
            (start, stop) of the shard; None if no shard is free. If `generation` is not the current
            generation, or data of it is missing, the number of the current one as text instead, ""
            if there is none.
        """
        script_keys = [keys.generation, keys.free, keys.leased, keys.filled]
        answer = self._connection.run(
            "lease_shard", script_keys, generation, epoch, rank,
            "" if request_number is None else request_number, max_rows or "", round(keep_s * 1000),
        )  # fmt: skip
        if isinstance(answer, str):
            return answer
        return (int(answer[0]), int(answer[1])) if answer else None


def _condition(condition: Condition) -> tuple[str, str, Word, Word]:
    match condition:
        case Leads(key, holder, token):
            return "leads", key, holder, token
        case NumberIs(key, field, value):
            return "number", key, field, value
        case FieldIs(key, field, text):
            return "is", key, field, text
        case ScoreIs(key, member, score):
            return "score", key, member, repr(score)
        case Once(key, write_id):
            return "once", key, "=write", write_id


def _commands(change: Change) -> Iterator[tuple[Sequence[str], list[Word]]]:
    """Yield the keys and the words of each command."""
    match change:
        case Put(key, fields):
            yield [key], ["put", key, *_flat(fields)]
        case Stamp(key, field):
            yield [key], ["stamp", key, field]
        case PutRows(key, changes_key, counter, kept, rows):
            yield [key, changes_key], ["rows", key, changes_key, counter, kept, *_flat(rows)]
        case Delete(keys):
            yield keys, ["DEL", *keys]
        case RemoveFromSortedSet(key, names):
            yield [key], ["ZREM", key, *names]
        case AddToSortedSet(key, members):
            words: list[Word] = []
            for member, score in members.items():
                words += [score, member]
            for start in range(0, len(words), _WORDS_PER_ZADD):
                yield [key], ["ZADD", key, *words[start : start + _WORDS_PER_ZADD]]
        case Append(key, entry, kept, keep_s, exact):
            approximately = [] if exact else ["~"]
            yield [key], ["XADD", key, "MAXLEN", *approximately, kept, "*", *_flat(entry)]
            yield [key], ["PEXPIRE", key, round(keep_s * 1000)]
        case Keep(keys, seconds):
            for kept_key in keys:
                yield [kept_key], ["PEXPIRE", kept_key, round(seconds * 1000)]


def _flat(fields: Mapping[str, Word | None]) -> list[Word]:
    """Return name, value, name, value ...; "" for a value that is None."""
    words: list[Word] = []
    for name, value in fields.items():
        words += [name, "" if value is None else value]
    return words
