"""`edl coordinator serve` and `edl status` as processes: beginnings, ends, and what goes wrong."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from edl.coordinator import Subscription, fetch_status
from edl.errors import EdlError, Forbidden
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ClientSecurity
from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.system.coordinator_process import (
    LEASES_ONLY,
    START_S,
    Coordinator,
    ready,
    serve,
)
from edl.tests.system.redis_servers import redis_server


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


def test_metrics_and_the_page_are_served_where_it_says() -> None:
    process = serve("--redis-port", 0, "--metrics-listen", 0, "--http", 0, *LEASES_ONLY)
    metrics = process.expect(r"metrics at (http://\S+)", START_S)[1]
    page = process.expect(r"page of the mesh is at (http://\S+)", START_S)[1]
    ready(process)
    assert "edl_coordinator_" in httpx.get(metrics, timeout=10.0).text
    assert "<html" in httpx.get(page, timeout=10.0).text
    assert process.stop(grace_s=10.0) == 0


def test_it_is_ready_while_redis_answers_and_alive_all_the_time() -> None:
    with redis_server() as (redis, port):
        process = serve("--redis", f"redis://127.0.0.1:{port}", "--metrics-listen", 0, *LEASES_ONLY)
        metrics = process.expect(r"metrics at (http://\S+)/metrics", START_S)[1]
        ready(process)

        def told(health: str) -> int:
            return httpx.get(f"{metrics}/health/{health}", timeout=10.0).status_code

        wait_for(lambda: told("ready") == 200)
        redis.kill()
        wait_for(lambda: told("ready") == 503)
        assert told("live") == 200
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
        "edl-student",
        "edl-agent",
        "edl-fleet",
        "edl-manager",
    ]
    assert hashlib.sha256(b"a-teachers-password").hexdigest() in lines[0]
    assert "password>" in lines[1]
    assert not any("a-teachers-password" in line for line in lines)
