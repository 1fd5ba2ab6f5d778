"""`edl-teacher serve` as a real process: its start, its exit codes, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import httpx
import numpy as np

from edl.coordinator import fetch_status
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.credentials import ClientSecurity, TlsFiles
from edl.proto.security.options import tls_words
from edl.runtime.supervise import start
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.runtime.programs import wait_gone
from edl.tests.system.coordinator_process import ready, serve
from edl.tests.system.teacher_process import (
    NETWORK,
    STEERED,
    Teacher,
    command,
    members,
    refusal,
    serving,
    unique,
)
from edl.tests.waiting import DEADLINE_S, wait_until

LINEAR = "edl.tests.teacher.linear"


def test_options_of_logs_and_self_test_and_ctrl_c() -> None:
    debug = {"EDL_LOG_LEVEL": "debug"}
    with serving("--no-self-test", model=f"{LINEAR}:undecided", env=debug) as teacher:
        assert teacher.process.tail(1000)[0].startswith("warning: no self-test")
        labels = teacher.infer({"x": np.ones((2, 4), np.float32)}, request_id="17").outputs
        np.testing.assert_array_equal(labels["logits"], np.full((2, 5), 4))
        teacher.process.expect(r'DEBUG edl\.teacher\.access_log: .*"17"', DEADLINE_S)
        teacher.process.send_signal(signal.SIGINT)
        assert teacher.process.wait(DEADLINE_S) == 130
        assert teacher.process.tail(1) == ["edl-teacher: interrupted"]


def test_it_can_be_stopped_while_it_loads() -> None:
    process = start(command("--model", NETWORK))
    try:
        process.expect("^loading", DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert not any("Traceback" in line for line in process.tail())
    finally:
        process.stop()


def test_it_ends_in_its_grace_though_the_predictor_hangs() -> None:
    with serving("--grace", "0.5") as teacher, ThreadPoolExecutor(1) as pool:
        teacher.ask()
        predictor = teacher.predictor()
        predictor.suspend()
        asked = pool.submit(teacher.ask)
        teacher.process.send_signal(signal.SIGTERM)
        assert teacher.process.wait(DEADLINE_S) == 0
        assert refusal(asked.result) is grpc.StatusCode.UNAVAILABLE
        wait_gone([predictor.pid])


def test_it_serves_on_when_nobody_reads_its_output() -> None:
    with serving(through=("bash", "-c", 'exec 2> >(exec true); exec "$@"', "bash")) as teacher:
        teacher.process.send_signal(signal.SIGTERM)
        assert teacher.process.wait(DEADLINE_S) == 0


def test_garbage_on_the_port_disturbs_nobody() -> None:
    with serving() as teacher:
        host, _, port = teacher.address.rpartition(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, os.urandom(4096)):
            with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
                connection.sendall(garbage)
                with suppress(ConnectionError):
                    while connection.recv(4096):  # until the server hangs up
                        pass
        teacher.ask()
        assert not any("Traceback" in line for line in teacher.process.tail())


def fails(*arguments: str) -> tuple[int, str]:
    """Exit code and last line of a teacher that cannot start; the lines before are its progress."""
    process = start(command(*arguments))
    try:
        code = process.wait(DEADLINE_S)
    finally:
        process.stop()
    assert code is not None
    *progress, last = process.tail()
    assert all(line.startswith(("loading ", "warming up")) for line in progress), progress
    return code, last


def test_a_start_that_cannot_work_is_refused_in_one_line(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # it does not listen: nobody answers at this port
        port = str(taken.getsockname()[1])
        redis = f"redis://:secret@127.0.0.1:{reserved.getsockname()[1]}"
        for arguments, expected, words in (
            (("--model", "/nope"), 2, "no model at /nope: expected"),
            (("--listen", port), 69, f"another process listens on 127.0.0.1:{port}"),
            (("--redis", redis), 69, "does not answer"),
            (("--tokens", missing), 2, missing),
            (("--tls", f"cert={missing},key={missing}"), 2, missing),
        ):
            code, line = fails("--model", STEERED, *arguments)
            assert code == expected, line
            assert line.startswith("edl-teacher: ")
            assert words in line
            assert "secret" not in line


def test_a_model_that_fails_its_self_test_says_why_and_never_registers(valkey_url: str) -> None:
    name = unique("undecided")
    arguments = ("--redis", valkey_url, "--service", name)
    code, line = fails("--model", f"{LINEAR}:undecided", *arguments)
    assert code == 2
    words = "output 'logits' is uniform: the same for all 5 classes, in every sample"
    assert line.startswith(f"edl-teacher: the self-test failed: {words}")
    assert members(valkey_url, name) == []


def test_a_name_that_another_teacher_has_taken_meanwhile(valkey_url: str) -> None:
    arguments, name = ("--redis", valkey_url, "--teacher-id", "t1"), unique("taken")
    with serving(*arguments, service=name) as older, serving(*arguments, service=name) as newer:
        assert older.process.wait(DEADLINE_S) == 1
        assert older.process.tail(1)[0].startswith("edl-teacher: ")
        newer.ask()
        addresses = [member.facts["address"] for member in members(valkey_url, name)]
        assert addresses == [newer.address]


def teachers_of(url: str) -> list[pb.Teacher]:
    """What a manager says of the teachers of its services."""
    return [one for service in fetch_status(url).services for one in service.teachers]


def test_tls_and_tokens_guard_labels_and_metrics(tmp_path: Path, stack: ExitStack) -> None:
    """Options of a teacher, and of a manager that probes it; test_access.py has the rules."""
    authority = Authority(tmp_path / "ca")
    files = authority.issue("server")
    tokens = write_secret(tmp_path / "tokens", "student s3cret\nviewer l00k\n")
    student, viewer, stranger = (
        write_secret(tmp_path / token, token) for token in ("s3cret", "l00k", "wr0ng")
    )
    good, wrong = (
        ClientSecurity(TlsFiles(ca=authority.ca), token) for token in (student, stranger)
    )
    probes = ("--admission", "--probe", f"ca={authority.ca},token-file={viewer}")
    manager = serve("--redis-port", 0, *probes)
    stack.callback(manager.stop)
    url = ready(manager).url
    options = (*tls_words(replace(files, ca=None)), "--tokens", tokens)
    beside = ("--redis", url, "--metrics-listen", "0")
    with serving(*map(str, options), *beside, client=good) as teacher:
        teacher.ask()
        wait_until(lambda: [one.admission for one in teachers_of(url)] == ["admitted"])
        for security, code in (
            (wrong, grpc.StatusCode.UNAUTHENTICATED),
            (None, grpc.StatusCode.UNAVAILABLE),
        ):
            other = Teacher(teacher.process, teacher.address, security)
            assert refusal(other.ask) is code
            other.disconnect()
        for token, statuses in (("l00k", {200}), ("wr0ng", {401}), ("s3cret", {401, 403})):
            headers = {"Authorization": f"Bearer {token}"}
            page = httpx.get(teacher.told("metrics"), headers=headers, timeout=DEADLINE_S)
            assert page.status_code in statuses
        said = teacher.process.tail(1000)
        assert not any(secret in line for line in said for secret in ("wr0ng", "s3cret"))


def test_another_teacher_on_a_dead_ones_address_answers_nothing_that_was_meant_for_it(
    valkey_url: str,
) -> None:
    name = unique("dead")
    arguments = ("--redis", valkey_url, "--ttl", "60")
    with serving(*arguments, "--teacher-id", "dead", service=name) as dead:
        (before,) = members(valkey_url, name)
        os.kill(dead.process.pid, signal.SIGKILL)
        assert dead.process.wait(DEADLINE_S) == -signal.SIGKILL
        port = dead.address.rpartition(":")[2]
        other = ("--listen", port, "--teacher-id", "impostor")
        with serving(*arguments, *other, service=name) as impostor:
            assert impostor.address == dead.address == before.facts["address"]
            meant = {"teacher_id": "dead", "incarnation": before.facts["incarnation"]}
            for one in meant.items():
                code = refusal(partial(impostor.ask, parameters=dict([one])))
                assert code is grpc.StatusCode.FAILED_PRECONDITION
            impostor.ask()
            (own,) = [m for m in members(valkey_url, name) if m.member == "impostor"]
            assert own.facts["instance_key"] != before.facts["instance_key"]


def test_beyond_loopback_without_credentials_it_does_not_start() -> None:
    code, line = fails("--model", STEERED, "--listen", "0.0.0.0")
    assert code == 2
    assert "--insecure" in line
