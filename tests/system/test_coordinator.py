"""`edl coordinator serve` and `edl status` as processes: how they start, end and fail."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from edl.coordinator import Subscription, connect, fetch_status
from edl.coordinator.config import ManagerConfig
from edl.coordinator.ops.doctor import examine
from edl.coordinator.serve import ServeConfig
from edl.coordinator.serve import serve as run
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.proto.security.options import tls_words
from edl.runtime.errors import AddressInUse, EdlError, Forbidden, RedisUnavailable, UsageError
from edl.runtime.lifecycle import Stop
from edl.runtime.supervise import python_command, start
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.runtime.programs import wait_gone
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.system.coordinator_process import Coordinator, Members, ready, serve
from edl.tests.system.redis_servers import redis_server
from edl.tests.waiting import DEADLINE_S, wait_until


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 0, []), (signal.SIGINT, 130, ["edl: interrupted"]), (signal.SIGKILL, -9, [])],
)
def test_it_ends_by_a_signal_with_all_that_it_started(
    coordinator: Coordinator, number: signal.Signals, code: int, said: list[str]
) -> None:
    family = [p.pid for p in psutil.Process(coordinator.process.pid).children(recursive=True)]
    assert family  # its Redis
    assert list(fetch_status(coordinator.url).managers) == [coordinator.address]
    os.kill(coordinator.process.pid, number)
    assert coordinator.process.wait(DEADLINE_S) == code
    wait_gone(family)
    assert coordinator.process.tail()[1:] == said


def test_settings_that_cannot_work_are_refused(tmp_path: Path, valkey_url: str) -> None:
    tokens = ServerSecurity(tokens_file=write_secret(tmp_path / "tokens", "admin ruling"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wrong: list[tuple[dict[str, Any], type[EdlError], str]] = [
            ({"redis": "redis://127.0.0.1:1"}, RedisUnavailable, "127.0.0.1:1 does not answer"),
            ({"redis": "127.0.0.1:6379"}, UsageError, "the URL of a coordinator"),
            ({"redis": valkey_url, "redis_port": 1}, UsageError, "give only one of them"),
            ({"host": "0.0.0.0"}, UsageError, "--insecure"),
            ({"host": "0.0.0.0", "security": tokens}, UsageError, "the started Redis"),
            ({"host": "0.0.0.0", "security": tokens, "insecure": True}, UsageError, "rediss://"),
            ({"host": "no.such.host.invalid", "insecure": True}, UsageError, "cannot listen on no"),
            ({"redis": valkey_url, "metrics_listen": str(port)}, AddressInUse, str(port)),
            ({"redis": valkey_url, "metrics_listen": "0.0.0.0:0"}, UsageError, "--insecure"),
            ({"redis": valkey_url, "http": "nonsense"}, UsageError, "nonsense"),
            ({"redis": valkey_url, "port": port}, AddressInUse, "another process listens on 127"),
            ({"redis_port": port}, AddressInUse, "--redis-port"),
        ]
        for settings, error, words in wrong:
            with pytest.raises(error, match=words):
                run(ServeConfig(**settings), Stop(), lambda *_: None)
    with pytest.raises(UsageError, match="TTL"):
        ManagerConfig(ttl_s=0.0)
    with pytest.raises(UsageError, match="leader"):
        ManagerConfig(leader_ttl_s=0.0)


def test_metrics_health_and_page_are_served_where_it_says(tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "admin:root ruling\n")
    with redis_server() as (redis, port):
        listen = ("--metrics-listen", 0, "--http", 0, "--tokens", tokens)
        process = serve("--redis", f"redis://127.0.0.1:{port}", *listen)
        metrics = process.expect(r"metrics at (http://\S+)/metrics", DEADLINE_S)[1]
        page = process.expect(r"page of the mesh is at (http://[^/\s]+)", DEADLINE_S)[1]
        ready(process)

        def told(health: str) -> int:
            return httpx.get(f"{metrics}/health/{health}", timeout=DEADLINE_S).status_code

        wait_until(lambda: told("ready") == 200)
        assert "edl_coordinator_" in httpx.get(f"{metrics}/metrics", timeout=DEADLINE_S).text
        assert "<title>EDL mesh</title>" in httpx.get(page, timeout=DEADLINE_S).text
        drain = partial(httpx.post, f"{page}/api/drain", json={"service": "s", "teacher": "t"})
        assert drain().status_code == 401
        assert drain(headers={"Authorization": "Bearer ruling"}).status_code == 400  # no such one
        redis.kill()
        wait_until(lambda: told("ready") == 503)
        assert told("live") == 200
    assert process.stop(grace_s=DEADLINE_S) == 0


def examined(url: str, security: ClientSecurity) -> dict[str, dict[str, str]]:
    """What the doctor finds: what it is about -> level -> text."""
    found: dict[str, dict[str, str]] = {}
    for one in examine(url, lambda: security):
        found.setdefault(one.about, {})[one.level] = one.text
    return found


def test_certificates_and_tokens_are_asked_for(
    tmp_path: Path, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.issue("manager", "viewer:manager")
    tokens = write_secret(
        tmp_path / "tokens", "student:j learning\nstudent:k elsewhere\nadmin:root ruling\n"
    )
    listen = ("--redis-port", 0, "--metrics-listen", 0)
    process = serve(*listen, "--tokens", tokens, *tls_words(files))
    metrics = process.expect(r"metrics at (http://\S+)", DEADLINE_S)[1]
    url = ready(process).url
    assert (
        'expiry_timestamp_seconds{certificate="own"}' in httpx.get(metrics, timeout=DEADLINE_S).text
    )
    ours = authority.issue("ours", "anybody")
    root = ClientSecurity(ours, write_secret(tmp_path / "root", "ruling"))
    learner = ClientSecurity(ours, write_secret(tmp_path / "learner", "learning"))
    assert fetch_status(url, security=root).managers
    with pytest.raises(Forbidden, match="viewer"):
        fetch_status(url, security=learner)
    with pytest.raises(EdlError, match=r"does not answer .*--tls ca=FILE"):
        fetch_status(url)
    guarded = ScriptedTeacher(
        security=ServerSecurity(files, write_secret(tmp_path / "none", "x\n"))
    )
    stack.callback(guarded.stop)
    told: list[pb.Assignment] = []
    subscription = Subscription(url, "s", "j/0", security=learner)
    subscription.start(told.append)
    subscription.report(pb.StudentReport(incarnation=1, want=1))
    wait_until(lambda: bool(told))
    with socket.create_server(("127.0.0.1", 0)) as here:
        registry = stack.enter_context(closing(connect(url)))
        addresses = (f"127.0.0.1:{here.getsockname()[1]}", "127.0.0.1:9", guarded.address)
        for name, address in zip(("t1", "t2", "t3"), addresses, strict=True):
            facts = {"incarnation": "1", "address": address, "state": "serving"}
            registry.register("teachers", "s", name, facts, 600.0)
        subscription.report(pb.StudentReport(incarnation=1, want=3))
        wait_until(lambda: [s.assigned for s in fetch_status(url, security=root).services] == [3])
        found = examined(url, learner)
    (about,) = [about for about in found if about.startswith("manager ")]
    assert "accepts subscriptions" in found[about]["well"]
    assert found["service s"].keys() == {"well"}
    assert "3 teachers serve 1 student" in found["service s"]["well"]
    assert "teacher t1" not in found
    assert found["teacher t2"].keys() == found["teacher t3"].keys() == {"wrong"}
    assert "not known here" in found["teacher t3"]["wrong"]
    other = ClientSecurity(ours, write_secret(tmp_path / "other", "elsewhere"))
    assert "service s" not in examined(url, other), "what other students have"
    write_secret(tokens, "student:k elsewhere\nadmin:root ruling\n")
    # Whoever is revoked holds no teacher and asks for none, once its lease is over.
    wait_until(lambda: not registry.members("students", "s"))
    wait_until(lambda: fetch_status(url, security=root).services[0].wanted == 0)
    wait_until(lambda: "not known here" in subscription.why)
    wait_until(lambda: "has not answered yet" in subscription.why)  # it asks again and again
    wait_until(lambda: "not known here" in subscription.why)
    subscription.stop()
    refusals = [one for one in caplog.messages if "refuses student j/0" in one]
    assert len(refusals) == 1
    assert process.stop(grace_s=DEADLINE_S) == 0
    assert any("the subscription of student j/0 ends" in line for line in process.tail(500))
    assert not any("learning" in line or "ruling" in line for line in process.tail(500))


def test_watching_prints_one_table_after_another_until_ctrl_c(coordinator: Coordinator) -> None:
    arguments = ("status", "--redis", coordinator.url, "--watch")
    terminal = {"FORCE_COLOR": "1"}  # lets rich believe in one
    for line, form in ((re.compile(r"^\{.*\}$"), ["--json"]), (re.compile("service managers"), [])):
        process = start(python_command("status", "edl", *arguments, *form, env=terminal))
        wait_until(lambda p=process, li=line: len(list(filter(li.search, p.tail(500)))) >= 2)  # type: ignore[misc]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        assert not any("Traceback" in line for line in process.tail(100))


def test_a_job_of_high_priority_joins_a_full_pool(
    coordinator: Coordinator, members: Members
) -> None:
    """It gets its n, and no other job falls below its `min`."""
    for number in range(12):
        members.teacher(f"t{number}")

    report = pb.StudentReport(incarnation=1, want=8, min=2)
    low = [members.student(f"low{n}/0", report) for n in range(3)]
    wait_until(lambda: all(student.sizes[-1:] == [4] for student in low))
    seen = [len(student.sizes) for student in low]
    report = pb.StudentReport(incarnation=1, want=3, needed=3, min=1, priority=5)
    high = [members.student(f"high/{rank}", report) for rank in range(2)]
    wait_until(lambda: all(student.sizes[-1:] == [3] for student in high))
    wait_until(lambda: all(student.sizes[-1:] == [2] for student in low))
    for student, before in zip(low, seen, strict=True):
        assert min(student.sizes[before:]) == 2
