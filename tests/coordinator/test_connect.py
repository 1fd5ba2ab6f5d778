"""Registry URLs and passwords, names of keys, and rules of Redis users."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from redis.crc import key_slot

from edl.coordinator import cli, connect
from edl.coordinator.registry import Kind, acl, retry_timeouts
from edl.coordinator.registry.schema import lease_set, service_key
from edl.coordinator.serve import ServeConfig, serve
from edl.coordinator.store.records import is_member, log_position
from edl.coordinator.store.redis_url import (
    holds_password,
    masked,
    name_same_database,
    open_client,
    parse,
    read_password,
)
from edl.runtime.errors import RedisUnavailable, UsageError
from edl.runtime.lifecycle import Stop
from edl.teacher.config import PredictorConfig, TeacherConfig
from edl.teacher.serving import serve as serve_teacher
from edl.tests.cli_output import output_of
from edl.tests.proto.security.authority import write_secret
from edl.tests.waiting import DEADLINE_S


@pytest.mark.parametrize(("timed_out", "calls"), [(True, 3), (False, 1)])
def test_a_start_waits_for_a_slow_redis_but_not_for_a_missing_one(
    timed_out: bool, calls: int
) -> None:
    call = Mock(side_effect=[*[RedisUnavailable(timed_out=timed_out)] * 2, "answer"])
    if timed_out:
        assert retry_timeouts(call, Stop()) == "answer"
    else:
        with pytest.raises(RedisUnavailable):
            retry_timeouts(call, Stop())
    assert call.call_count == calls


@pytest.mark.parametrize(
    "run",
    [
        lambda url, stop: serve(ServeConfig(redis=url), stop, lambda *_: None),
        lambda url, stop: serve_teacher(
            TeacherConfig("s", PredictorConfig("none:slow"), coordinator=url),
            stop,
            on_ready=lambda _: None,
            on_progress=lambda _: None,
        ),
    ],
    ids=["coordinator", "teacher"],
)
def test_a_start_that_waits_for_redis_can_be_stopped(run: Callable[[str, Stop], None]) -> None:
    stop, attempts = Stop(), []
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as connections:

        def accept() -> None:
            with suppress(OSError):  # ends when the server is shut down
                while True:
                    attempts.append(connections.enter_context(silent.accept()[0]))
                    stop.request()

        accepting = threading.Thread(target=accept)
        accepting.start()
        run(f"redis://127.0.0.1:{silent.getsockname()[1]}", stop)
        silent.shutdown(socket.SHUT_RDWR)
        accepting.join()
    assert len(attempts) <= 2, "one call, which connects twice"


def test_a_redis_that_stands_still_times_out() -> None:
    server = socket.create_server(("127.0.0.1", 0))  # accepts connections, and never answers
    silent = f"127.0.0.1:{server.getsockname()[1]}"
    for url, timed_out in (
        (f"redis://{silent}", True),
        (f"rediss://{silent}", True),
        ("redis://user:secret@127.0.0.1:1", False),
    ):
        with closing(connect(url, 0.05)) as registry:
            with pytest.raises(RedisUnavailable) as caught:
                registry.time_ms()
            assert f"{registry.url} does not answer" in str(caught.value)
        assert caught.value.timed_out is timed_out
        assert "TLS" not in str(caught.value), "it may speak TLS, or not"
        assert "secret" not in str(caught.value)
    server.close()


@contextmanager
def scripted_redis(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """Run a server for one client at a time; yields its host and port.

    It hangs up when it has no answer.
    """

    def serve_clients() -> None:
        with suppress(OSError):  # ends when the server is shut down
            while True:
                with server.accept()[0] as client:
                    while (data := client.recv(1024)) and (reply := answer(data)):
                        client.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve_clients)
        serving.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


def test_a_server_that_hangs_up_on_the_first_command_may_want_tls() -> None:
    answers: list[bytes] = []
    with (
        scripted_redis(lambda _: answers.pop() if answers else b"") as address,
        closing(connect(f"redis://{address}", DEADLINE_S)) as registry,
    ):
        with pytest.raises(RedisUnavailable, match=r"if it uses TLS, write rediss://$"):
            registry.time_ms()
        answers.append(b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n")
        assert registry.time_ms() == 1000
        with pytest.raises(RedisUnavailable) as caught:
            registry.time_ms()
    assert "TLS" not in str(caught.value), "it has answered before"


@pytest.mark.parametrize(
    "url",
    [
        "", "head:6379", "head", "http://head", "/run/redis.sock", "http://h",
        "redis://h:port", "redis://[::1", "redis://h/x", "redis://h/1/2",
        "redis://h#1", "redis+sentinel://h", "redis+sentinel://h/", "redis+sentinel:///mesh",
        "redis+sentinel://h,/mesh", "redis://h:99999", "redis://h?password_file=/nowhere",
        "redis://h?socket_timeout=3", "redis://h?db", "rediss://h?ssl_check_hostname=maybe",
        "sentinel://h/mesh", "unix://", "unix://redis.sock", "unix://run/redis.sock",
        "redis://h:0", "redis://h/-1", "redis://h?ssl_ca_certs=/ca.pem",
        "redis+sentinel://h/mesh?ssl_check_hostname=true", "redis://h..example",
        "redis+sentinel://" + 64 * "h" + "/mesh",
        # Passwords that break the URL.
        "redis://:PASS#WORD@h:6379", "redis://:PASS/WORD@h:6379", "redis://:PASS?WORD@h:6379",
        "redis://:PASS@WORD@h:port", "redis://:PASS://WORD@h:port", "redis://:PASS[WORD@h:6379",
        "http://:PASS#WORD@h", ":PASS@h:6379", "redis+sentinel://u:PASS#WORD@h/mesh",
        "redis+sentinel://u:PASS/WORD@h/mesh/x", "rediss+sentinel://u:PASS?WORD@h",
    ],
)  # fmt: skip
def test_other_urls_are_refused_in_one_sentence_without_passwords(url: str) -> None:
    with pytest.raises(UsageError) as error:
        connect(url)
    assert not re.search(r"\n|PASS|WORD", str(error.value))
    completed = str(error.value).endswith(f"redis://{url}?")
    assert completed == (url in ("head:6379", "head")), "a host without a scheme"


@pytest.mark.parametrize(
    ("url", "shown", "holds_one"),
    [
        ("redis://user:secret@h:1/0", "redis://***@h:1/0", True),
        ("redis://:secret@h", "redis://***@h", True),
        ("redis://h:6379?password=secret", "redis://h:6379", True),
        ("redis://[::1]:1", "redis://[::1]:1", False),
        ("REDIS://h", "REDIS://h", False),
        ("rediss://u:p@h:1/2", "rediss://***@h:1/2", True),
        ("unix:///tmp/redis.sock", "unix:///tmp/redis.sock", False),
        ("redis+sentinel://u:secret@h:1,g:2/mesh", "redis+sentinel://***@h:1,g:2/mesh", True),
        ("redis+sentinel://h/mesh?sentinel_password=secret", "redis+sentinel://h/mesh", True),
        ("redis://:s3/c?r#et@head", None, True),
        ("redis://user:12?a=b@head", None, True),
        ("redis://edl-teacher@head?password_file=/etc/edl/password", None, False),
        ("redis://edl-teacher:$(REDIS_PASSWORD)@head:6379", None, False),
        ("rediss://head:6379/0?ssl_ca_certs=/etc/ca@2.pem", None, False),
    ],
)
def test_passwords_are_masked_and_known(url: str, shown: str | None, holds_one: bool) -> None:
    assert holds_password(url) == holds_one
    if shown is not None:
        assert masked(url) == shown
        with closing(connect(url)) as registry:  # it connects only when it is used
            assert registry.url == shown


def test_a_url_is_taken_apart(tmp_path: Path) -> None:
    secret = write_secret(tmp_path / "secret", "rotates\n")
    url = parse(
        f"rediss+sentinel://me:p%40%2F@h:1,[::1]/mesh%20a/3?ssl_ca_certs={secret}"
        f"&sentinel_username=s&sentinel_password_file={secret}"
    )
    assert url.hosts == (("h", 1), ("::1", 26379))
    assert (url.master, url.db) == ("mesh a", 3)
    assert url.login == {"username": "me", "password": "p@/"}
    assert url.sentinel_login == {"username": "s", "password_file": str(secret)}
    assert url.tls is not None
    assert url.tls["ssl_ca_certs"] == str(secret)
    assert "p@/" not in repr(url)
    assert parse("unix://u:p@/run/redis.sock?db=2").path == "/run/redis.sock"
    # A file that rotates wins over a password that stands in the URL.
    assert "password" not in parse(f"redis://u:old@h?password_file={secret}").login
    # Who logs in, and by which files, is not part of what a URL names.
    mesh = "rediss+sentinel://u@b,A/mesh?password_file=/nowhere&db=1&ssl_ca_certs=/nowhere"
    assert name_same_database("redis+sentinel://a,b:26379/mesh/1", mesh)
    others = ("redis+sentinel://a,b/mesh", "redis+sentinel://a,b/x/1", "redis://a/1", "x")
    assert not any(name_same_database(other, mesh) for other in others)


def test_tls_is_spoken_with_sentinels_and_with_the_master() -> None:
    pool: Any = open_client(parse("rediss+sentinel://h:1/mesh"), 1.0).connection_pool
    (sentinel,) = pool.sentinel_manager.sentinels
    for each in (pool, sentinel.connection_pool):
        assert issubclass(each.connection_class, redis.SSLConnection)
        assert each.connection_kwargs["ssl_cert_reqs"] == "required"
        assert each.connection_kwargs["ssl_check_hostname"] is True
        assert each.connection_kwargs["socket_timeout"] == 1.0


def test_a_password_file_is_for_its_owner_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("rotates")
    secret.chmod(0o644)
    with pytest.raises(UsageError, match=r"accessible to every user .*chmod o="):
        connect(f"redis://h?password_file={secret}")
    secret.chmod(0o640)
    assert read_password(str(secret)) == "rotates"
    for content in (b"", b" \n", b"\xff\xfe"):
        secret.write_bytes(content)
        with pytest.raises(RedisUnavailable):
            read_password(str(secret))
    with pytest.raises(UsageError, match="cannot be read"):
        connect(f"redis://h?password_file={tmp_path}")


def test_no_command_is_sent_without_the_password_that_could_not_be_read(tmp_path: Path) -> None:
    secret = write_secret(tmp_path / "secret", "old")
    received: list[bytes] = []

    def answer(data: bytes) -> bytes:
        received.append(data)
        return b"+OK\r\n" if b"AUTH" in data else b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n"

    with (
        scripted_redis(answer) as address,
        closing(connect(f"redis://me@{address}?password_file={secret}", DEADLINE_S)) as registry,
    ):
        secret.write_text("")  # it is replaced now
        with pytest.raises(RedisUnavailable, match="is empty"):
            registry.time_ms()
        secret.write_text("new")
        assert registry.time_ms() == 1000
    assert b"AUTH" in received[0]
    assert b"new" in received[0]


def test_nobody_is_told_to_start_a_redis_that_still_loads_its_data() -> None:
    with (
        scripted_redis(lambda _: b"-LOADING Redis is loading the dataset in memory\r\n") as address,
        closing(connect(f"redis://{address}", DEADLINE_S)) as registry,
        pytest.raises(RedisUnavailable, match=r"\(Redis is loading .*wait until") as caught,
    ):
        registry.time_ms()
    assert "start it" not in str(caught.value)


def test_the_example_is_what_the_code_makes() -> None:
    text = (Path(__file__).parents[2] / "deploy" / "redis" / "users.acl").read_text("utf-8")
    assert text.splitlines() == [acl.NO_DEFAULT, *acl.rules("resnet101")]


def test_rules_hold_hashes_of_passwords_and_keys_of_one_service() -> None:
    lines = acl.rules("s", {acl.READER: "secret"})
    assert len(lines) == 6
    assert not any("secret" in line or "setinfo" in line for line in lines)
    assert sum(acl.PLACEHOLDER in line for line in lines) == len(lines) - 1
    patterns = [word.strip("()") for word in lines[0].split() if "~" in word]
    others = {p for p in patterns if "{s}" not in p}
    assert others == {"%W~edl:services", "%W~edl:write-check"}


def test_each_password_file_is_that_of_its_user(tmp_path: Path) -> None:
    passwords = {
        acl.MANAGER: "manager", acl.FLEET: "fleet", acl.AGENT: "agent", acl.STUDENT: "student",
        acl.READER: "reader", acl.teacher("s"): "teacher",
    }  # fmt: skip
    files = [f"{key}={write_secret(tmp_path / key, key)}" for key in passwords.values()]
    told = output_of(cli.app, "acl", "--service", "s", "--password-file", ",".join(files))
    assert told.splitlines() == acl.rules("s", passwords)


@pytest.mark.parametrize("service", ["", "a b", "s\nuser evil on nopass ~* +@all", "x~*"])
def test_a_service_that_could_mean_something_else_is_refused(service: str) -> None:
    with pytest.raises(UsageError):
        acl.rules(service)


@pytest.mark.parametrize("kind", ["teachers", "students", "managers"])
def test_all_keys_of_one_script_lie_in_one_cluster_slot(kind: Kind) -> None:
    service = "" if kind == "managers" else "s"
    leases = lease_set(kind, service)
    members = [leases.facts + name for name in ("job/0", "[::1]:5000")]
    others = [leases.deadlines, leases.changes]
    assert not any(key.startswith(leases.facts) for key in others)
    tables = ("leader", "assignment", "assignment:changes", "admitted", "plan", "events")
    if service:
        others += [service_key(service, name) for name in tables]
        assert others[2:] == [f"edl:{{s}}:{name}" for name in tables]
    assert len({key_slot(key.encode()) for key in [*members, *others]}) == 1
    assert len({*members, *others}) == len(members) + len(others)
    assert not is_member("=term")


def test_places_in_the_log_are_ordered_by_number() -> None:
    ids = ["", "9-0", "10-2", "10-10"]
    assert sorted(ids, key=log_position) == ids
    for odd in ("x", "1", "1-", "-", "1-2-3", "1 -2", "9" * 30 + "-0", "1-0\n"):
        with pytest.raises(UsageError, match="the id of an event"):
            log_position(odd)
