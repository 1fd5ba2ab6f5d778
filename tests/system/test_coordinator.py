"""`edl coordinator serve` and `edl status` as processes: beginnings, ends, and what goes wrong."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from edl.coordinator import Heartbeat, Subscription, connect, fetch_status
from edl.coordinator.embedded import free_port, start_embedded
from edl.errors import EdlError, Forbidden
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity
from edl.supervise import Process, python_command, start
from edl.tests.ground.programs import python, wait_for, wait_gone
from edl.tests.proto.security.authority import Authority, write_secret

START_S = 30.0
TTL_S = 1.5
LEADER_TTL_S = 0.8
#: The teachers of these tests are leases, with nobody at their addresses.
LEASES_ONLY = ("--ttl", TTL_S, "--leader-ttl", LEADER_TTL_S, "--no-admission")


@dataclass
class Coordinator:
    """A running `edl coordinator serve`."""

    process: Process
    url: str
    address: str


def serve(*args: object) -> Process:
    """Start it on free ports, unless `args` say otherwise."""
    return start(python_command("coordinator", "edl.coordinator.cli", "serve", *args))


def ready(process: Process) -> Coordinator:
    match = process.expect(r"^coordinator ready: (\S+) manager (\S+)$", START_S)
    return Coordinator(process, match[1], match[2])


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    process = serve("--redis-port", 0, *LEASES_ONLY)
    yield ready(process)
    process.stop()


def status(*args: object) -> tuple[int, list[str]]:
    process = start(python_command("status", "edl", "status", *args))
    code = process.wait(START_S)
    assert code is not None
    return code, process.tail(500)


class Student:
    """A subscription of this process, and what it was told."""

    def __init__(self, url: str, student: str, want: int) -> None:
        self.told: list[pb.Assignment] = []
        self.subscription = Subscription(url, "s", student)
        self.subscription.start(self.told.append)
        self.subscription.report(pb.StudentReport(incarnation=1, want=want))

    @property
    def teachers(self) -> list[str] | None:
        return sorted(t.teacher_id for t in self.told[-1].teachers) if self.told else None


class Members:
    """Teachers and students of this process, which end with the test."""

    def __init__(self, url: str, undo: ExitStack) -> None:
        self._url = url
        self._undo = undo
        self._registry = connect(url)
        undo.callback(self._registry.close)

    def teacher(self, name: str) -> Heartbeat:
        facts = {"incarnation": "1", "address": f"{name}:1", "state": "serving"}
        heart = Heartbeat(self._registry, "teachers", "s", name, lambda: facts, TTL_S)
        heart.start()
        self._undo.callback(heart.stop)
        return heart

    def student(self, name: str = "j/0", want: int = 3) -> Student:
        student = Student(self._url, name, want)
        self._undo.callback(student.subscription.stop)
        return student


@pytest.fixture
def members(coordinator: Coordinator) -> Iterator[Members]:
    with ExitStack() as undo:
        yield Members(coordinator.url, undo)


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


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
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
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    args: list[str], code: int, said: str, tmp_path: Path
) -> None:
    tokens = write_secret(tmp_path / "tokens", "admin ruling")
    if "--redis" not in args and "--redis-port" not in args:
        args = [*args, "--redis-port", "0"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        said = said.replace("TAKEN", port)
        process = serve(
            *(arg.replace("TAKEN", port).replace("TOKENS", str(tokens)) for arg in args)
        )
        assert process.wait(START_S) == code
    lines = [line for line in process.tail() if "WARNING" not in line]
    assert len(lines) == 1
    assert said in lines[0]
    assert lines[0].startswith("edl: ")


def test_status_of_nothing_is_one_line_and_69() -> None:
    code, lines = status("--coordinator", f"redis://127.0.0.1:{free_port()}")
    assert (code, len(lines)) == (69, 1)
    assert "does not answer" in lines[0]


def test_status_without_a_manager_says_how_to_start_one() -> None:
    redis, url = start_embedded()
    code, lines = status("--coordinator", url)
    redis.stop()
    assert (code, len(lines)) == (69, 1)
    assert "edl coordinator serve" in lines[0]


def test_status_shows_the_mesh_as_a_table_and_as_json(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    members.teacher("t2")
    student = members.student()
    wait_for(lambda: student.teachers == ["t1", "t2"])
    code, lines = status("--coordinator", coordinator.url)
    assert code == 0
    for said in ("t1:1", "t2:1", "j/0", "2/3", "2 teachers, 1 student", coordinator.address):
        assert any(said in line for line in lines), said
    code, lines = status("--coordinator", coordinator.url, "--json", "--service", "s")
    assert code == 0
    (service,) = json.loads("".join(lines))["services"]
    assert [t["serves"] for t in service["teachers"]] == [["j/0"], ["j/0"]]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_status_of_a_service_that_is_not_there_fails(
    coordinator: Coordinator, form: list[str]
) -> None:
    code, lines = status("--coordinator", coordinator.url, "--service", "nope", *form)
    assert code == 2
    assert any("no service 'nope'" in line for line in lines)


def test_watching_into_a_file_prints_one_table_after_another(coordinator: Coordinator) -> None:
    process = start(
        python_command("status", "edl", "status", "--coordinator", coordinator.url, "--watch")
    )
    try:
        wait_for(lambda: sum("service managers" in line for line in process.tail(500)) >= 2)
    finally:
        process.stop()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_watching_ends_cleanly_by_ctrl_c(coordinator: Coordinator, form: list[str]) -> None:
    arguments = ("status", "--coordinator", coordinator.url, "--watch", *form)
    terminal = {"FORCE_COLOR": "1"}  # lets rich believe in one
    process = start(python_command("status", "edl", *arguments, env=terminal))
    process.expect(r"^\{.*\}$" if form else "service managers", START_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(10.0) == 0
    assert not any("Traceback" in line for line in process.tail(100))


def test_garbage_on_its_port_neither_ends_it_nor_makes_it_talk(coordinator: Coordinator) -> None:
    host, port = coordinator.address.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(100_000), b"\x16\x03\x01" * 1000, b""):
        with socket.create_connection((host, int(port)), timeout=5.0) as raw:
            try:
                raw.sendall(garbage)
            except OSError:
                continue  # refused while we were still talking
    assert list(fetch_status(coordinator.url).managers) == [coordinator.address]
    assert len(coordinator.process.tail()) == 1


def test_redis_killed_and_back_empty_takes_no_teacher_away(
    coordinator: Coordinator, members: Members
) -> None:
    first = members.teacher("t1")
    members.teacher("t2")
    members.teacher("t3")
    student = members.student()
    wait_for(lambda: student.teachers == ["t1", "t2", "t3"])
    whole_set = len(student.told)
    for child in psutil.Process(coordinator.process.pid).children(recursive=True):
        if "valkey" in child.name() or "redis" in child.name():
            child.kill()

    def whole() -> bool:
        try:
            (service,) = fetch_status(coordinator.url).services
        except (EdlError, ValueError):
            return False
        return (len(service.teachers), len(service.students)) == (3, 1)

    wait_for(whole)
    # What was dead is found out after the grace: nobody was.
    grace_over = time.monotonic() + 2 * TTL_S
    wait_for(lambda: time.monotonic() > grace_over)
    assert all(len(told.teachers) == 3 and not told.lost for told in student.told[whole_set:])
    assert whole()
    members.teacher("t4")
    first.stop(leave=False)
    wait_for(lambda: student.teachers == ["t2", "t3", "t4"])
    assert list(student.told[-1].lost) == ["t1"]


def test_a_manager_that_hangs_is_left_for_another(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    student = members.student(want=1)
    wait_for(lambda: student.teachers == ["t1"])
    first = student.told[-1].term
    other = ready(serve("--redis", coordinator.url, *LEASES_ONLY))
    coordinator.process.send_signal(signal.SIGSTOP)
    # Its Redis is a process of its own, and goes on.
    stopped = time.monotonic()
    members.teacher("t2")
    student.subscription.report(pb.StudentReport(incarnation=1, want=2))
    wait_for(lambda: student.teachers == ["t1", "t2"], timeout_s=30.0)
    assert time.monotonic() - stopped < 12.0
    assert student.told[-1].term > first
    coordinator.process.send_signal(signal.SIGCONT)
    assert other.process.stop() == 0


def test_several_managers_over_one_redis_share_its_students(
    coordinator: Coordinator, members: Members
) -> None:
    other = ready(serve("--redis", coordinator.url, *LEASES_ONLY))
    addresses = {coordinator.address, other.address}
    wait_for(lambda: set(fetch_status(coordinator.url).managers) == addresses)
    members.teacher("t1")
    students = [members.student(f"j/{number}", want=1) for number in range(8)]
    wait_for(lambda: all(student.teachers == ["t1"] for student in students))

    def whole() -> bool:  # a manager reads for all who ask, so what it says is a little old
        services = fetch_status(coordinator.url).services
        return [(len(s.students), s.leader in addresses) for s in services] == [(8, True)]

    wait_for(whole)
    assert other.process.stop() == 0
    wait_for(lambda: list(fetch_status(coordinator.url).managers) == [coordinator.address])
    late = members.student("late/0", want=1)
    wait_for(lambda: late.teachers == ["t1"])


def test_metrics_and_the_page_are_served_where_it_says() -> None:
    process = serve("--redis-port", 0, "--metrics-listen", 0, "--http", 0, *LEASES_ONLY)
    metrics = process.expect(r"metrics at (http://\S+)", START_S)[1]
    page = process.expect(r"page of the mesh is at (http://\S+)", START_S)[1]
    ready(process)
    assert "edl_coordinator_" in httpx.get(metrics, timeout=10.0).text
    assert "<html" in httpx.get(page, timeout=10.0).text
    assert process.stop(grace_s=10.0) == 0


def test_certificates_and_tokens_are_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.issue("manager", "viewer:manager")
    tokens = write_secret(tmp_path / "tokens", "student:j learning\nadmin:root ruling\n")
    process = serve(
        *("--redis-port", 0, *LEASES_ONLY, "--tokens", tokens),
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
    wait_for(lambda: bool(told))
    subscription.stop()
    assert process.stop(grace_s=10.0) == 0
    assert not any("learning" in line or "ruling" in line for line in process.tail(500))


def test_acl_prints_users_with_hashes_and_no_password(tmp_path: Path) -> None:
    teacher = write_secret(tmp_path / "teacher", "a-teachers-password\n")
    arguments = ("acl", "--service", "resnet", "--teacher-password-file", teacher)
    process = start(python_command("acl", "edl.coordinator.cli", *arguments))
    assert process.wait(START_S) == 0
    lines = process.tail()
    assert [line.split()[1] for line in lines] == [
        "edl-teacher-resnet",
        "edl-reader",
        "edl-manager",
    ]
    assert hashlib.sha256(b"a-teachers-password").hexdigest() in lines[0]
    assert "password>" in lines[1]
    assert not any("a-teachers-password" in line for line in lines)


STUDENT = """
    import sys, time
    from edl.coordinator import Subscription
    from edl.proto import coordinator_pb2 as pb
    url, how = sys.argv[1:]
    subscription = Subscription(url, "s", "victim/0")
    subscription.start(lambda a: print("has", len(a.teachers)))
    subscription.report(pb.StudentReport(incarnation=1, want=1))
    if how == "leave":
        while subscription.why:
            time.sleep(0.01)
        subscription.stop()
        print("left")
    time.sleep(60)
"""


def test_a_killed_student_keeps_its_teacher_until_its_lease_runs_out(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    members.teacher("t2")
    victim = start(python(STUDENT, coordinator.url, "stay"))
    victim.expect("has 1", START_S)
    heir = members.student("heir/0", want=2)
    wait_for(lambda: heir.teachers is not None)
    assert heir.teachers == ["t2"]
    victim.kill()
    killed = time.monotonic()
    wait_for(lambda: heir.teachers == ["t1", "t2"])
    assert 0.4 * TTL_S < time.monotonic() - killed < 3 * TTL_S


def test_a_student_that_leaves_gives_its_teacher_back_at_once(
    coordinator: Coordinator, members: Members
) -> None:
    members.teacher("t1")
    members.teacher("t2")
    heir = members.student("heir/0", want=2)
    wait_for(lambda: heir.teachers == ["t1", "t2"])
    # A manager that has just begun to lead takes nothing from anybody.
    recovered = time.monotonic() + 2 * TTL_S
    wait_for(lambda: time.monotonic() > recovered)
    leaver = start(python(STUDENT, coordinator.url, "leave"))
    leaver.expect("has 1", START_S)
    leaver.expect("left", START_S)
    left = time.monotonic()
    wait_for(lambda: heir.teachers == ["t1", "t2"])
    assert time.monotonic() - left < 0.4 * TTL_S
    assert len(heir.told) >= 3  # two, one, two
    leaver.kill()
    leaver.wait(5.0)
