"""The commands `edl ...` against real meshes: what they do, what they print, how they exit."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shlex
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import psutil
import pytest
import redis

from edl import __version__
from edl.benchmarks.paced.teachers import CHEAP, paced
from edl.coordinator import fetch_status
from edl.mesh.cores import available_cores
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.mesh.up.state_directory import relative_path
from edl.runtime.errors import ProcessFailed, UsageError
from edl.runtime.interrupts import EXIT_INTERRUPTED
from edl.runtime.supervise import Process, python_command, start
from edl.tests.runtime.programs import shell_exit_code, wait_gone
from edl.tests.system.conftest import Batches, Service, taken_until
from edl.tests.system.coordinator_process import edl, edl_output
from edl.tests.system.redis_servers import redis_server
from edl.tests.system.teacher_process import STEERED
from edl.tests.waiting import DEADLINE_S, wait_until

#: Start, settling and end, on a slow machine.
BESIDES_S = 200.0


@contextmanager
def running(*words: object, **env: str) -> Iterator[Process]:
    """`edl ...`, which is killed at the end of the `with`."""
    process = start(python_command("edl", "edl", *words, env=env))
    try:
        yield process
    finally:
        process.kill()
        process.wait(BESIDES_S)


def events_until(service: Service, kind: str, subject: str) -> list[dict[str, Any]]:
    """The whole log, once such an event is in it."""
    words = ("events", "--json", "--last", 0, "--service", service.name)
    log: list[dict[str, Any]] = []

    def there() -> bool:
        log[:] = [json.loads(line) for line in edl_output(*words, url=service.url)]
        return kind in kinds_about(log, subject)

    wait_until(there)
    return log


def kinds_about(log: list[dict[str, Any]], subject: str) -> list[str]:
    return [event["kind"] for event in log if event["subject"] == subject]


def test_a_teacher_is_drained_by_command_and_the_log_says_all_that_happened(
    service: Service, set_pace: Callable[[float], None], stack: ExitStack
) -> None:
    words = ("events", "--follow", "--service", service.name, "--redis", service.url)
    follower = stack.enter_context(running(*words))
    set_pace(0.02 / 8)
    a, b = service.add("a", "b")
    source = Batches()
    with service.reader(source, teachers_min=2) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: len(reader.stats.teachers) == 2)
        code, (line,) = edl("drain", "teacher", a + "x", "--service", service.name, url=service.url)
        assert code == 2
        assert a in line, "the near name"
        drained = edl("drain", "teacher", a, "--service", service.name, url=service.url)
        assert drained == (0, [f"draining {service.name}/{a}"])
        batches += taken_until(iterator, lambda: not service.teachers[a].alive)
        assert service.teachers[a].returncode == 0
        service.kill(b)
        events_until(service, "lost", b)  # before the student leaves, so that it loses b
        (c,) = service.add("c")
        batches += taken_until(iterator, lambda: c in reader.stats.teachers)
        batches += source.rest(iterator)
    source.check(batches)
    log = events_until(service, "gone", "job/0")
    assert kinds_about(log, a)[:3] == ["registered", "draining", "left"]
    assert kinds_about(log, b)[:2] == ["registered", "lost"]
    assert "subscribed" in kinds_about(log, "job/0")
    assert all(event["text"] and event["time_ms"] and event["id"] for event in log)
    # Every change of the student's set names its cause.
    causes = [event for event in log if event["kind"] == "assigned"]
    for teacher, when in ((a, "before"), (b, "before"), (c, "after")):
        assert any(teacher in event["text"] and teacher in event[when] for event in causes)
    # Who follows the log has seen it all, until Ctrl-C.
    for event in (rf"registered\s+{a}", rf"lost\s+{b}"):
        follower.expect(f"{service.name} {event} ", DEADLINE_S)
    follower.send_signal(signal.SIGINT)
    assert follower.wait(DEADLINE_S) == 0


def test_services_are_listed_and_shown(service: Service) -> None:
    def asked(*words: str) -> str:
        return "".join(edl_output(*words, url=service.url))

    service.add("a")
    # The content is declared at the end of the leader's recovery.
    wait_until(lambda: service.status.leader and service.status.content_id)
    assert service.name in asked("get", "services")
    (found,) = json.loads(asked("get", "services", service.name, "--json"))["services"]
    assert (bool(found["leader"]), found["teacher_states"]) == (True, {"serving": 1})
    assert found["content_id"] in asked("describe", "service", service.name)
    assert edl("describe", "service", "nope", url=service.url)[0] == 2
    assert edl("status", "--service", "nope", url=service.url)[0] == 2
    move = ("upgrade", service.name)
    assert edl(*move, found["content_id"], url=service.url)[0] == 2
    assert edl(*move, "deadbeef", url=service.url)[0] == 2
    assert edl(*move, "c2" * 32, url=service.url)[0] == 0
    (moving,) = json.loads(asked("get", "service", service.name, "--json"))["services"]
    assert moving["next_content_id"] == "c2" * 32


def test_a_local_mesh_starts_examines_and_ends_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_LISTEN", "of the user's mesh")
    with pytest.raises(UsageError, match="not been started"):
        _ = LocalMesh().coordinator
    names, spec = ("killed", "drained", "held"), TeacherSpec("digits", STEERED)
    with LocalMesh(log_dir=tmp_path) as mesh:
        for name in names:
            mesh.start_teacher(name, spec)
        assert len({mesh.wait_ready(name) for name in names}) == 3
        with pytest.raises(UsageError, match="held"):
            mesh.start_teacher("held", spec)
        with pytest.raises(ProcessFailed, match="/nope"):
            mesh.add_teacher("none", replace(spec, model="/nope"))
        wait_until(lambda: fetch_status(mesh.url, "digits").services)
        code, lines = edl("doctor", "--json", url=mesh.url)
        findings = json.loads("".join(lines))
        assert code == 0, findings
        assert {finding["level"] for finding in findings} <= {"well", "doubt"}
        assert __version__ in "\n".join(edl_output("doctor", url=mesh.url))
        mesh.suspend("killed")
        mesh.resume("killed")
        mesh.kill("killed")
        mesh.drain("drained")
        assert mesh.teachers["killed"].wait() == -signal.SIGKILL
        assert mesh.teachers["drained"].wait() == 0
        mesh.suspend("held")
        pids = [mesh.coordinator.pid, *(teacher.pid for teacher in mesh.teachers.values())]
        mesh.stop(DEADLINE_S)
    assert mesh.teachers["held"].returncode == 0, "it was resumed, and took its SIGTERM"
    mesh.stop()  # once more does no harm
    wait_gone(pids)
    logs = {f"{name}.log" for name in ("coordinator", "none", *names)}
    assert {path.name for path in tmp_path.iterdir()} == logs
    assert "coordinator ready" in (tmp_path / "coordinator.log").read_text()


def test_what_check_raises_ends_a_wait_and_the_mesh() -> None:
    check = Mock(side_effect=[None, InterruptedError])
    mesh = LocalMesh(check=check)
    never = patch("edl.mesh.local.COORDINATOR_READY", "never")
    with never, pytest.raises(InterruptedError), mesh:
        raise AssertionError("the coordinator is ready")
    assert not mesh.coordinator.alive


def chaos(folder: Path, seed: int, minutes: float, *words: str) -> tuple[dict[str, Any], str]:
    file = folder / "chaos.json"
    options = ("--minutes", minutes, "--seed", seed, "--json", file, "--logs", folder / "logs")
    with running("chaos", *options, *words) as process:
        code = process.wait(60 * minutes + BESIDES_S)
    told = json.loads(file.read_text())
    assert (told["seed"], told["held"]) == (seed, code == 0)
    return told, "\n".join(process.tail(200))


@pytest.mark.timeout(60 * 60 + 600)
@pytest.mark.parametrize("minutes", [0.5, pytest.param(60, marks=pytest.mark.nightly)])
def test_whatever_breaks_the_stream_is_the_one_without(
    tmp_path: Path, rng: random.Random, minutes: float
) -> None:
    told, said = chaos(tmp_path, rng.randrange(1 << 32), minutes)
    assert len(told["invariants"]) == 11
    broken = [one for one in told["invariants"] if not one["held"]]
    if minutes < 60:  # beside other tests, half a minute says nothing of speed and of growth
        ignored = ("no pause", "calls get", "memory")
        broken = [one for one in broken if not one["name"].startswith(ignored)]
    assert broken == [], said
    done = [fault for fault in told["faults"] if not fault["skipped"] and fault["effects"] != 0]
    assert len(done) >= 8 * minutes
    assert len({fault["kind"] for fault in done}) >= min(8, 8 * minutes)
    assert all(student["samples"] > 100 for student in told["students"].values())


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_lies_are_found_out_and_honest_teachers_are_not(tmp_path: Path, rng: random.Random) -> None:
    told, said = chaos(tmp_path, rng.randrange(1 << 32), 5, "--deceive")
    assert told["held"], said
    assert any(fault["kind"] == "answer-other" and fault["effects"] for fault in told["faults"])


def test_ctrl_c_ends_it_and_says_what_was_checked_so_far(tmp_path: Path) -> None:
    with running("chaos", "--seed", 5, "--logs", tmp_path / "logs") as process:
        process.expect(r"s  (teacher|student|guest|manager|redis)", BESIDES_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(BESIDES_S) == EXIT_INTERRUPTED
        said = process.tail(200)
    assert sum(line.startswith("held") for line in said) >= 3, said
    assert said[-1] == "edl: interrupted"
    assert not any("Traceback" in line for line in said)
    with running("chaos", "--seed", 5, "--logs", tmp_path / "logs") as wrong:
        assert wrong.wait(BESIDES_S) == 2
        assert wrong.tail(1)[0].startswith(f"edl: {tmp_path / 'logs'} is not empty")


#: Only a demo that hangs takes longer: it takes a minute alone, and ten on a very busy machine.
DEMO_S = 1200.0


@pytest.fixture(scope="module")
def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A teacher that is trained once, for all demos."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.timeout(DEMO_S + 60)
def test_every_batch_arrives_once_in_order_with_the_right_labels(
    tmp_path: Path, demo_cache: dict[str, str]
) -> None:
    """A whole short demo, in one test: each worker that has a part of it would run it anew."""
    picture = tmp_path / "p.png"
    options = ("--json", tmp_path / "d.json", "--picture", picture)
    with running("demo", "--quick", *options, **demo_cache) as process:
        assert process.wait(DEMO_S) == 0, process.tail()
        output = "\n".join(process.tail(200))
    found = json.loads((tmp_path / "d.json").read_text())
    edl, modes = found["edl_dist"], found["modes"]
    assert edl["delivered"] == edl["yielded"] == 80
    assert (edl["duplicates"], edl["out_of_order"]) == (0, 0)
    assert re.fullmatch("[0-9a-f]{64}", edl["stream_sha256"])
    assert edl["stream_sha256"] == edl["reference_sha256"]
    # A teacher died with work in hand, and another one came.
    assert (edl["teachers_killed"], edl["teachers_added"]) == (1, 1)
    assert edl["resends"] > 0
    batch_of = {event["kind"]: event["batch"] for event in edl["events"]}
    assert 32 <= batch_of["kill"] <= batch_of["start"] <= batch_of["join"] <= 80
    # Every mode trained every student; labels are the same to the last bit, and so are students.
    online = ["online", "online_all_cores"] if len(available_cores()) > 1 else ["online"]
    assert list(modes) == ["n_training", *online, "edl_dist"]
    for name, mode in modes.items():
        assert len(mode["accuracy"]) == (1 if name == "online_all_cores" else 2)
        assert all(0.5 < value < 1 for value in mode["accuracy"])
        assert mode["samples_per_s"] > 0
        assert mode["core_seconds_per_sample"]["student"] > 0
    assert modes["edl_dist"]["accuracy"] == modes["online"]["accuracy"]
    assert modes["edl_dist"]["core_seconds_per_sample"]["teachers"] > 0
    # The buffer was watched.
    assert found["expected"]["teachers_at_once"] == min(2, len(available_cores()) - 1)
    assert len(edl["timeline"]) == 80 // 5
    assert max(moment["volume_bytes"] for moment in edl["timeline"]) > 0
    assert 0 < edl["lower_bytes"] < edl["upper_bytes"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "Traceback" not in output


@pytest.mark.timeout(2 * DEMO_S)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, EXIT_INTERRUPTED)]
)
def test_a_signal_ends_it_in_order(
    demo_cache: dict[str, str], tmp_path: Path, rng: random.Random, number: int, code: int
) -> None:
    """While the mesh trains, or at a moment by chance."""
    picture = tmp_path / "p.png"
    with running("demo", "--quick", "--picture", picture, **demo_cache) as process:
        process.expect("." if number == signal.SIGINT else "Train: EDL-Dist", DEMO_S)
        if number == signal.SIGINT:
            process.wait(rng.uniform(0.0, 8.0))
        process.send_signal(number)
        ended = process.wait(DEMO_S)
        assert ended is not None, "it still runs"
        assert shell_exit_code(ended) == code, process.tail()
        assert not any("Traceback" in line for line in process.tail(200))
        assert (process.tail(1) == ["edl: interrupted"]) == (code == EXIT_INTERRUPTED)
    assert not picture.exists()


EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"
NAMES = ["coordinator", "spirals-1", "spirals-2", "spirals-student"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What `edl up` of this test writes down; it is ended with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    if state := state_in(tmp_path / "cache"):  # the test has failed
        print(json.dumps(state))
        for log in tmp_path.rglob("*.log"):
            print(log.name, log.read_text(), sep="\n")
        edl("down", "--all", "--within", 0)


def state_in(cache: Path) -> dict[str, Any]:
    """What `edl up` has written down; empty: nothing, or the pid file is only locked so far."""
    texts = [path.read_text() for path in cache.glob("edl-dist/up/*.pid")]
    return json.loads(texts[0]) if any(texts) else {}


def files_in(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*") if path.is_file()]


def listens(url: str) -> bool:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(5.0)
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture
def mesh_file(tmp_path: Path) -> Path:
    """The example, with a student that trains until it is ended."""
    file = tmp_path / "mesh.yaml"
    text, count = re.subn(r"--epochs \d+", "--epochs 1000000", EXAMPLE.read_text())
    assert count == 1
    file.write_text(f"folder: {EXAMPLE.parent}\n{text}")
    return file


def test_in_the_background_until_it_is_ended(cache: Path, mesh_file: Path) -> None:
    code, told = edl("up", mesh_file, "--detach", "--keep")
    assert code == 0, told
    state = state_in(cache)
    assert [one["name"] for one in state["entries"]] == NAMES
    addresses = [state["url"], *(one["address"] for one in state["entries"] if one["address"])]
    assert [listens(address) for address in addresses] == [True] * 4
    code, told = edl("up", mesh_file)
    assert code == 2
    assert f"is up already (pid {state['keeper']['pid']}, 4 of 4 processes" in told[-1]
    assert edl("down") == (0, [f"{relative_path(mesh_file)} has ended"])
    assert files_in(cache) == []
    assert not any(listens(address) for address in addresses)


def test_what_dies_comes_again_and_nothing_is_left_when_edl_up_is_killed(
    cache: Path, mesh_file: Path, stack: ExitStack
) -> None:
    mesh = stack.enter_context(running("up", mesh_file, "spirals-student", "--keep"))
    wait_until(lambda: state_in(cache).get("phase") == "up")
    pids = {one["name"]: one["process"]["pid"] for one in state_in(cache)["entries"]}
    mesh.expect(r"^spirals-student \| epoch \d+: loss", DEADLINE_S)
    os.kill(pids["spirals-1"], signal.SIGKILL)
    mesh.expect(r"^spirals-1 was ended by SIGKILL and starts again at once", DEADLINE_S)
    mesh.expect(r"^spirals-1 is ready again \(start 2\)", DEADLINE_S)
    wait_until(lambda: {one["phase"] for one in state_in(cache)["entries"]} == {"running"})
    state = state_in(cache)
    assert state["keeper"]["pid"] == mesh.pid
    family = [child.pid for child in psutil.Process(mesh.pid).children(recursive=True)]
    mesh.kill()
    wait_gone(family)
    assert not listens(state["url"])
    assert state_in(cache) == state, "nobody was there to take it back"
    assert edl("down", mesh_file) == (0, [f"{mesh_file} was not up"])
    assert files_in(cache) == []


STUDENT = """
import os
from edl.benchmarks.paced import FOR_EVER, Repeated, batch
from edl.distill_reader import DistilReader

source = Repeated(batch(), count=FOR_EVER)
with DistilReader(source, service="auto", coordinator=os.environ["EDL_COORDINATOR"]) as reader:
    for number, _ in enumerate(reader, 1):
        print(f"labelled {number}", flush=True)
"""


def test_no_command_line_of_a_mesh_shows_the_password_of_redis(
    cache: Path, tmp_path: Path, stack: ExitStack
) -> None:
    password = secrets.token_hex(16)
    _, port = stack.enter_context(redis_server())
    with redis.Redis(port=port, protocol=2) as client:
        client.config_set("requirepass", password)
    (tmp_path / "student.py").write_text(STUDENT)
    options = f"options: '--ttl 6 {shlex.join(('--micro-batch', '8', *paced(0.05)))}'"
    mesh_file = tmp_path / "mesh.yaml"
    mesh_file.write_text(
        f"coordinator: {{redis: 'redis://:{password}@127.0.0.1:{port}', options: --ttl 6}}\n"
        "services:\n"
        f"  fixed: {{model: '{CHEAP}', {options}}}\n"
        f"  auto: {{model: '{CHEAP}', teachers: auto, max_teachers: 1, {options}}}\n"
        "students: {student: {command: python student.py}}\n"
    )
    mesh = stack.enter_context(running("up", mesh_file, "student"))
    mesh.expect(r"^student \| labelled \d+", DEADLINE_S)
    family = psutil.Process(mesh.pid).children(recursive=True)
    lines = [" ".join(one.cmdline()) for one in family]
    parts = ("coordinator serve", "--service fixed", "agent --local", "--service auto --teacher")
    for part in (*parts, "student.py", "edl.distill_reader.engine"):
        assert any(part in line for line in lines), f"{part} is not among {lines}"
    every = psutil.process_iter(["cmdline"])
    assert [one for one in every if password in " ".join(one.info["cmdline"] or ())] == []
