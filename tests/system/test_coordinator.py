"""`edl coordinator serve` and `edl status` as processes: how they start, end and fail."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from edl.coordinator import Subscription, connect, fetch_status
from edl.coordinator.registry import acl
from edl.distill_reader import DistilReader
from edl.errors import EdlError, Forbidden
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity
from edl.supervise import python_command, start
from edl.tests.ground.programs import python, wait_gone
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.system.conftest import Batches
from edl.tests.system.coordinator_process import (
    SHORT_TTL_S,
    START_S,
    Coordinator,
    Members,
    Student,
    edl,
    ready,
    serve,
)
from edl.tests.system.redis_servers import redis_server
from edl.tests.waiting import wait_until


def test_it_serves_and_ends_by_sigterm_with_all_that_it_started(coordinator: Coordinator) -> None:
    family = [p.pid for p in psutil.Process(coordinator.process.pid).children(recursive=True)]
    assert family  # its Redis
    assert list(fetch_status(coordinator.url).managers) == [coordinator.address]
    assert coordinator.process.stop(grace_s=10.0) == 0
    wait_gone(family)
    assert coordinator.process.tail() == [
        f"coordinator ready: {coordinator.url} manager {coordinator.address}"
    ]


def test_ctrl_c_ends_it_in_one_line(coordinator: Coordinator) -> None:
    coordinator.process.send_signal(signal.SIGINT)
    assert coordinator.process.wait(10.0) == 130
    assert coordinator.process.tail()[1:] == ["edl: interrupted"]


def test_its_redis_dies_with_it_even_by_sigkill(coordinator: Coordinator) -> None:
    family = [p.pid for p in psutil.Process(coordinator.process.pid).children(recursive=True)]
    os.kill(coordinator.process.pid, signal.SIGKILL)
    wait_gone(family)


WRONG: list[tuple[list[str], int, str]] = [
    (["--redis", "redis://127.0.0.1:1"], 69, "Redis at redis://127.0.0.1:1 does not answer"),
    (["--redis", "127.0.0.1:6379"], 2, "named by a URL"),
    (["--host", "0.0.0.0"], 2, "--insecure"),
    (["--host", "0.0.0.0", "--tokens", "TOKENS"], 2, "the Redis that is started"),
    (["--tokens", "/no/such/file"], 2, "/no/such/file"),
    (["--tls-cert", "/no/such/file"], 2, "without its key"),
    (["--tls-ca", "/no/such/file"], 2, "--tls-cert"),
    (["--metrics-listen", "TAKEN"], 69, "TAKEN"),
    (["--metrics-listen", "0.0.0.0:0"], 2, "--insecure"),
    (["--http", "nonsense"], 2, "nonsense"),
    (["--leader-ttl", "0"], 2, "leader"),
    (["--host", "no.such.host.invalid", "--insecure"], 2, "cannot listen on no.such.host"),
    (["--port", "TAKEN"], 69, "another process listens on 127.0.0.1:"),
    (["--redis-port", "TAKEN"], 69, "--redis-port"),
    (["--redis", "redis://127.0.0.1:TAKEN"], 69, "does not answer"),
    (["--ttl", "0"], 2, "TTL"),
    (["--ttl", "soon"], 2, "--ttl"),
    (["--nonsense"], 2, "--nonsense"),
]


def test_what_cannot_work_is_said_in_one_line(tmp_path: Path) -> None:
    tokens = str(write_secret(tmp_path / "tokens", "admin ruling"))
    started = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        for args, code, said in WRONG:
            if "--redis" not in args and "--redis-port" not in args:
                args = [*args, "--redis-port", "0"]
            words = [arg.replace("TAKEN", port).replace("TOKENS", tokens) for arg in args]
            started.append((serve(*words), code, said.replace("TAKEN", port)))
        for process, code, said in started:
            assert (process.wait(START_S), said) == (code, said), process.tail()
            (line,) = [line for line in process.tail() if "WARNING" not in line]
            assert line.startswith("edl: ")
            assert said in line


def test_metrics_and_the_page_are_served_where_it_says() -> None:
    process = serve("--redis-port", 0, "--metrics-listen", 0, "--http", 0)
    metrics = process.expect(r"metrics at (http://\S+)", START_S)[1]
    page = process.expect(r"page of the mesh is at (http://\S+)", START_S)[1]
    ready(process)
    assert "edl_coordinator_" in httpx.get(metrics, timeout=10.0).text
    assert "<html" in httpx.get(page, timeout=10.0).text
    assert process.stop(grace_s=10.0) == 0


def test_it_is_ready_while_redis_answers_and_alive_all_the_time() -> None:
    with redis_server() as (redis, port):
        process = serve("--redis", f"redis://127.0.0.1:{port}", "--metrics-listen", 0)
        metrics = process.expect(r"metrics at (http://\S+)/metrics", START_S)[1]
        ready(process)

        def told(health: str) -> int:
            return httpx.get(f"{metrics}/health/{health}", timeout=10.0).status_code

        wait_until(lambda: told("ready") == 200)
        redis.kill()
        wait_until(lambda: told("ready") == 503)
        assert told("live") == 200
    assert process.stop(grace_s=10.0) == 0


def test_certificates_and_tokens_are_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.issue("manager", "viewer:manager")
    tokens = write_secret(tmp_path / "tokens", "student:j learning\nadmin:root ruling\n")
    process = serve(
        *("--redis-port", 0, "--tokens", tokens),
        *("--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca", files.ca),
    )
    url = ready(process).url
    ours = authority.issue("ours", "anybody")
    root = ClientSecurity(ours, write_secret(tmp_path / "root", "ruling"))
    learner = ClientSecurity(ours, write_secret(tmp_path / "learner", "learning"))
    assert fetch_status(url, security=root).managers
    with pytest.raises(Forbidden, match="viewer"):
        fetch_status(url, security=learner)
    with pytest.raises(EdlError, match="does not answer"):
        fetch_status(url)
    told: list[pb.Assignment] = []
    subscription = Subscription(url, "s", "j/0", security=learner)
    subscription.start(told.append)
    subscription.report(pb.StudentReport(incarnation=1, want=1))
    wait_until(lambda: bool(told))
    subscription.stop()
    assert process.stop(grace_s=10.0) == 0
    assert not any("learning" in line or "ruling" in line for line in process.tail(500))


def test_acl_prints_users_with_hashes_and_no_password(tmp_path: Path) -> None:
    teacher = write_secret(tmp_path / "teacher", "a-teachers-password\n")
    code, lines = edl("coordinator", "acl", "--service", "s", "--teacher-password-file", teacher)
    assert code == 0
    assert [line.split()[1] for line in lines] == list(acl.users("s"))
    assert hashlib.sha256(b"a-teachers-password").hexdigest() in lines[0]
    assert not any("a-teachers-password" in line for line in lines)


def test_status_of_what_is_not_there_is_one_line(coordinator: Coordinator, valkey_url: str) -> None:
    with socket.socket() as reserved:  # bound and not listening: nobody else gets the port
        reserved.bind(("127.0.0.1", 0))
        code, lines = edl("status", url=f"redis://127.0.0.1:{reserved.getsockname()[1]}")
    assert (code, len(lines)) == (69, 1)
    assert "does not answer" in lines[0]
    for form in ([], ["--json"]):
        code, lines = edl("status", "--service", "nope", *form, url=coordinator.url)
        assert code == 2
        assert any("no service 'nope'" in line for line in lines)


def test_status_without_a_manager_says_how_to_start_one() -> None:
    with redis_server() as (_, port):
        code, lines = edl("status", url=f"redis://127.0.0.1:{port}")
    assert (code, len(lines)) == (69, 1)
    assert "edl coordinator serve" in lines[0]


def test_status_shows_the_mesh_as_a_table_and_as_json(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    members.teacher("t2")
    student = members.student()
    wait_until(lambda: student.teachers == ["t1", "t2"])
    code, lines = edl("status", url=coordinator.url)
    assert code == 0
    for said in ("t1:1", "t2:1", "j/0", "2/3", "2 teachers, 1 student", coordinator.address):
        assert any(said in line for line in lines), said
    code, lines = edl("status", "--json", "--service", "s", url=coordinator.url)
    assert code == 0
    (service,) = json.loads("".join(lines))["services"]
    assert [t["serves"] for t in service["teachers"]] == [["j/0"], ["j/0"]]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_watching_prints_one_table_after_another_until_ctrl_c(
    coordinator: Coordinator, form: list[str]
) -> None:
    arguments = ("status", "--coordinator", coordinator.url, "--watch", *form)
    terminal = {"FORCE_COLOR": "1"}  # lets rich believe in one
    process = start(python_command("status", "edl", *arguments, env=terminal))
    line = re.compile(r"^\{.*\}$" if form else "service managers")
    wait_until(lambda: sum(bool(line.search(said)) for said in process.tail(500)) >= 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(START_S) == 0
    assert not any("Traceback" in line for line in process.tail(100))


def test_redis_killed_and_back_empty_takes_no_teacher_away(
    coordinator: Coordinator, members: Members
) -> None:
    """One teacher is really dead: when that is found out, nobody else is taken for dead."""
    for name in ("t1", "t2", "t3"):  # their beats tell the new Redis of them
        members.teacher(name, ttl_s=SHORT_TTL_S)
    dead = members.teacher("dead", ttl_s=SHORT_TTL_S)
    student = members.student(want=4)
    wait_until(lambda: student.teachers == ["dead", "t1", "t2", "t3"])
    before = len(student.told)
    dead.stop(leave=False)
    (redis,) = [
        child
        for child in psutil.Process(coordinator.process.pid).children(recursive=True)
        if child.name().startswith(("valkey", "redis"))
    ]
    redis.kill()
    wait_until(lambda: student.teachers == ["t1", "t2", "t3"])
    for told in student.told[before:]:
        assert {"t1", "t2", "t3"} <= {teacher.teacher_id for teacher in told.teachers}
        assert set(told.lost) <= {"dead"}
    members.teacher("t4")
    wait_until(lambda: student.teachers == ["t1", "t2", "t3", "t4"])


def test_a_manager_that_hangs_is_left_for_another(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    student = members.student(want=1)
    wait_until(lambda: student.teachers == ["t1"])
    first = student.told[-1].term
    other = ready(serve("--redis", coordinator.url))
    # Its Redis is a process of its own, and goes on.
    coordinator.process.send_signal(signal.SIGSTOP)
    members.teacher("t2")
    student.report(want=2)
    wait_until(lambda: student.teachers == ["t1", "t2"])
    assert student.told[-1].term > first
    coordinator.process.send_signal(signal.SIGCONT)
    assert other.process.stop() == 0


def test_several_managers_over_one_redis_share_its_students(
    coordinator: Coordinator, members: Members
) -> None:
    other = ready(serve("--redis", coordinator.url))
    addresses = {coordinator.address, other.address}
    wait_until(lambda: set(fetch_status(coordinator.url).managers) == addresses)
    members.teacher("t1")
    students = [members.student(f"j/{number}", want=1) for number in range(8)]
    wait_until(lambda: all(student.teachers == ["t1"] for student in students))

    def whole() -> bool:  # a manager reads for all who ask, so what it says is a little old
        services = fetch_status(coordinator.url).services
        return [(len(s.students), s.leader in addresses) for s in services] == [(8, True)]

    wait_until(whole)
    assert other.process.stop() == 0
    wait_until(lambda: list(fetch_status(coordinator.url).managers) == [coordinator.address])
    late = members.student("late/0", want=1)
    wait_until(lambda: late.teachers == ["t1"])


STUDENT = """
    import signal, sys, threading, time
    from edl.coordinator import Subscription
    from edl.proto import coordinator_pb2 as pb
    url, leave = sys.argv[1], threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    subscription = Subscription(url, "s", "victim/0")
    subscription.start(lambda a: print("has", len(a.teachers)))
    subscription.report(pb.StudentReport(incarnation=1, want=1))
    while not leave.is_set():
        time.sleep(0.01)
    subscription.stop()
    print("left")
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "reason"),
    [(signal.SIGKILL, "its lease ran out"), (signal.SIGTERM, "closed its stream")],
)
def test_a_student_that_ends_gives_its_teacher_back(
    coordinator: Coordinator, members: Members, how: signal.Signals, reason: str
) -> None:
    """One that is killed keeps it until its lease has run out, one that leaves does not."""
    members.teacher("t1")
    victim = start(python(STUDENT, coordinator.url))
    victim.expect("has 1", START_S)
    heir = members.student("heir/0", want=2)
    members.teacher("t2")
    wait_until(lambda: heir.teachers == ["t2"])
    victim.send_signal(how)
    if how == signal.SIGTERM:
        victim.expect("left", START_S)
    wait_until(lambda: heir.teachers == ["t1", "t2"])
    with closing(connect(coordinator.url)) as registry:
        (gone,) = [e for e in registry.events("s") if (e.kind, e.subject) == ("gone", "victim/0")]
    assert reason in gone.text
    victim.kill()
    victim.wait(START_S)


def test_a_job_of_high_priority_joins_a_full_pool(
    coordinator: Coordinator, members: Members
) -> None:
    """It gets its n, and no other job falls below its `min`."""
    for number in range(12):
        members.teacher(f"t{number}")

    def sizes(students: list[Student]) -> list[int]:
        return [len(student.teachers or ()) for student in students]

    low = [members.student(f"low{n}/0", want=8, min=2) for n in range(3)]
    wait_until(lambda: sizes(low) == [4, 4, 4])
    seen = [len(student.told) for student in low]
    report = {"want": 3, "needed": 3, "min": 1, "priority": 5}
    high = [members.student(f"high/{rank}", **report) for rank in range(2)]
    wait_until(lambda: sizes(high) == [3, 3])
    wait_until(lambda: sizes(low) == [2, 2, 2])
    for student, before in zip(low, seen, strict=True):
        assert min(len(told.teachers) for told in student.told[before:]) == 2


def test_the_priority_of_a_reader_reaches_the_mesh(coordinator: Coordinator) -> None:
    options: dict[str, Any] = {"job": "urgent", "profiles": None, "teachers_min": 2, "priority": 7}
    with DistilReader(Batches(3), service="s", coordinator=coordinator.url, **options) as reader:
        iter(reader)

        def reports() -> list[pb.StudentReport]:
            services = fetch_status(coordinator.url, "s").services
            return [student.report for one in services for student in one.students]

        wait_until(lambda: [one.student_id for one in reports()] == ["urgent/0"])
        (report,) = reports()
        assert (report.priority, report.min) == (7, 2)
