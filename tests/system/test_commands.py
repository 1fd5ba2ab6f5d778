"""The commands `edl ...` against real meshes: what they do, what they print, how they exit."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl import __version__
from edl.coordinator import fetch_status
from edl.errors import ProcessFailed, UsageError
from edl.interrupts import EXIT_INTERRUPTED
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.mesh.up.place import short
from edl.supervise import Process, python_command, start
from edl.tests.ground.programs import wait_gone
from edl.tests.system.conftest import Batches, Service, taken_until
from edl.tests.system.coordinator_process import START_S, edl, edl_output
from edl.tests.system.teacher_process import STEERED
from edl.tests.waiting import wait_until


def events_until(service: Service, *wanted: tuple[str, str]) -> list[dict[str, Any]]:
    """The whole log, once these (kind, subject) are in it."""
    words = ("events", "--json", "--last", 0, "--service", service.name)
    log: list[dict[str, Any]] = []

    def there() -> bool:
        log[:] = [json.loads(line) for line in edl_output(*words, url=service.url)]
        return all(kind in kinds_about(log, subject) for kind, subject in wanted)

    wait_until(there)
    return log


def kinds_about(log: list[dict[str, Any]], subject: str) -> list[str]:
    return [event["kind"] for event in log if event["subject"] == subject]


def test_a_teacher_is_drained_by_command_and_the_log_says_all_that_happened(
    service: Service, set_pace: Callable[[float], None], stack: ExitStack
) -> None:
    words = ("events", "--follow", "--service", service.name, "--coordinator", service.url)
    follower = start(python_command("events", "edl", *words))
    stack.callback(follower.stop)
    set_pace(0.02 / 8)
    a, b = service.add("a", "b")
    source = Batches()
    with service.reader(source, teachers_min=2) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: len(reader.stats.teachers) == 2)
        code, lines = edl("drain", a + "x", "--service", service.name, url=service.url)
        assert (code, len(lines)) == (2, 1)
        assert a in lines[0], "the near name"
        drained = edl("drain", a, "--service", service.name, url=service.url)
        assert drained == (0, [f"draining {service.name}/{a}"])
        batches += taken_until(iterator, lambda: not service.teachers[a].alive)
        assert service.teachers[a].returncode == 0
        service.kill(b)
        events_until(service, ("lost", b))  # before the student leaves, so that it loses b
        (c,) = service.add("c")
        batches += taken_until(iterator, lambda: c in reader.stats.teachers)
        batches += source.rest(iterator)
    source.check(batches)
    log = events_until(service, ("gone", "job/0"))
    assert kinds_about(log, a)[:3] == ["registered", "draining", "left"]
    assert kinds_about(log, b)[:2] == ["registered", "lost"]
    assert "subscribed" in kinds_about(log, "job/0")
    assert all(event["text"] and event["time_ms"] and event["id"] for event in log)
    # Every change of the student's set names its cause.
    causes = [event for event in log if event["kind"] == "assigned"]
    assert any(a in event["text"] and a in event["before"] for event in causes)
    assert any(b in event["text"] and b in event["before"] for event in causes)
    assert any(c in event["text"] and c in event["after"] for event in causes)
    # Who follows the log has seen it all, until Ctrl-C.
    follower.expect(rf"{service.name} registered\s+{a} ", START_S)
    follower.expect(rf"{service.name} lost\s+{b} ", START_S)
    follower.send_signal(signal.SIGINT)
    assert follower.wait(START_S) == 0


def test_services_are_listed_and_shown(service: Service) -> None:
    def shown() -> dict[str, Any]:
        words = ("service", "show", service.name, "--json")
        return dict(json.loads("".join(edl_output(*words, url=service.url))))

    service.add("a")
    # The content is declared at the end of the leader's recovery.
    wait_until(lambda: service.status.leader and service.status.content_id)
    assert any(service.name in line for line in edl_output("service", "list", url=service.url))
    found = shown()
    assert (bool(found["leader"]), found["teacher_states"]) == (True, {"serving": 1})
    text = "".join(edl_output("service", "show", service.name, url=service.url))
    assert found["content_id"] in text
    code, lines = edl("service", "show", "nope", url=service.url)
    assert code == 2
    assert "'edl service list'" in lines[-1]
    move = ("service", "upgrade", service.name, "--content")
    assert edl(*move, found["content_id"], url=service.url)[0] == 2
    assert edl(*move, "C2", url=service.url)[0] == 0
    assert shown()["next_content_id"] == "C2"


STEERED_SPEC = TeacherSpec("digits", STEERED, ttl_s=6.0)


def test_a_local_mesh_starts_examines_and_ends_its_processes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not been started"):
        _ = LocalMesh().coordinator
    names = ("killed", "drained", "held")
    with LocalMesh(log_dir=tmp_path) as mesh:
        for name in names:
            mesh.start_teacher(name, STEERED_SPEC)
        assert len({mesh.wait_ready(name) for name in names}) == 3
        with pytest.raises(UsageError, match="held"):
            mesh.start_teacher("held", STEERED_SPEC)
        with pytest.raises(ProcessFailed, match="/nope"):
            mesh.add_teacher("none", replace(STEERED_SPEC, model="/nope"))
        wait_until(lambda: fetch_status(mesh.url, "digits").services)
        code, lines = edl("doctor", "--json", url=mesh.url)
        findings = json.loads("".join(lines))
        assert code == 0, findings
        assert {finding["level"] for finding in findings} <= {"well", "doubt"}
        text = "\n".join(edl_output("doctor", url=mesh.url))
        assert __version__ in text
        assert re.search(r"Redis: (redis|valkey) \d+\.\d+", text), text
        mesh.suspend("killed")
        mesh.resume("killed")
        mesh.kill("killed")
        mesh.drain("drained")
        assert mesh.teachers["killed"].wait() == -signal.SIGKILL
        assert mesh.teachers["drained"].wait() == 0
        mesh.suspend("held")
        pids = [mesh.coordinator.pid, *(teacher.pid for teacher in mesh.teachers.values())]
    assert mesh.teachers["held"].returncode == 0, "it was resumed, and took its SIGTERM"
    mesh.stop()  # once more does no harm
    wait_gone(pids)
    logs = {f"{name}.log" for name in ("coordinator", "none", *names)}
    assert {path.name for path in tmp_path.iterdir()} == logs
    assert "coordinator ready" in (tmp_path / "coordinator.log").read_text()


def test_what_check_raises_ends_a_wait_and_the_mesh() -> None:
    class Enough(Exception):
        pass

    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise Enough

    mesh = LocalMesh(check=check)
    with pytest.raises(Enough), mesh:
        raise AssertionError("a coordinator is not ready within one look")
    assert not mesh.coordinator.alive


#: Start, settling and end, on a slow machine.
BESIDES_S = 200.0


@contextmanager
def chaos(*options: object) -> Iterator[Process]:
    process = start(python_command("chaos", "edl", "chaos", *options))
    try:
        yield process
    finally:
        process.kill()
        process.wait(BESIDES_S)


@pytest.mark.timeout(60 * 60 + 600)
@pytest.mark.parametrize("minutes", [0.5, pytest.param(60, marks=pytest.mark.nightly)])
def test_whatever_breaks_the_stream_is_the_one_without(
    tmp_path: Path, rng: random.Random, minutes: float
) -> None:
    seed = rng.randrange(1 << 32)
    file, logs = tmp_path / "chaos.json", tmp_path / "logs"
    with chaos("--minutes", minutes, "--seed", seed, "--json", file, "--logs", logs) as process:
        code = process.wait(60 * minutes + BESIDES_S)
    told = json.loads(file.read_text())
    assert told["seed"] == seed
    assert len(told["invariants"]) == 9
    assert (code == 0) == told["held"]
    broken = [one for one in told["invariants"] if not one["held"]]
    if minutes < 60:  # beside other tests, half a minute says nothing of speed and of growth
        broken = [one for one in broken if not one["name"].startswith(("never still", "memory"))]
    assert broken == [], "\n".join(process.tail(200))
    done = [fault for fault in told["faults"] if not fault["skipped"] and fault["effects"] != 0]
    assert len(done) >= 10 * minutes
    assert len({fault["kind"] for fault in done}) >= min(8, 12 * minutes)
    assert all(student["samples"] > 100 for student in told["students"].values())


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_lies_are_found_out_and_honest_teachers_are_not(tmp_path: Path, rng: random.Random) -> None:
    file, seed = tmp_path / "chaos.json", rng.randrange(1 << 32)
    with chaos("--minutes", 5, "--seed", seed, "--deceive", "--json", file) as process:
        code = process.wait(60 * 5 + BESIDES_S)
    assert code == 0, "\n".join(process.tail(200))
    told = json.loads(file.read_text())
    assert any(fault["kind"] == "answer-other" and fault["effects"] for fault in told["faults"])


@pytest.mark.timeout(300)
def test_ctrl_c_ends_it_and_says_what_was_checked_so_far(tmp_path: Path) -> None:
    with chaos("--seed", 5, "--logs", tmp_path / "logs") as process:
        process.expect(r"s  (teacher|student|guest|manager|redis)", BESIDES_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(BESIDES_S) == EXIT_INTERRUPTED
        said = process.tail(200)
    assert any("of 300, interrupted" in line for line in said)
    held = [line for line in said if line.startswith("held")]
    for name in ("each id once, in order", "label = f(id)", "nothing is left behind"):
        assert any(name in line for line in held), said
    assert said[-1] == "edl: interrupted"
    assert not any("Traceback" in line for line in said)
    for options, line in (
        (("--seed", 5, "--logs", tmp_path / "logs"), f"edl: {tmp_path / 'logs'} is not empty"),
        (("--minutes", 0.01), "edl: a run of 0.6 s is too short for chaos"),
    ):
        with chaos(*options) as wrong:
            assert wrong.wait(BESIDES_S) == 2
            assert wrong.tail(1)[0].startswith(line)


#: Only a demo that hangs takes longer: it takes 15 s alone, and 120 on a very busy machine.
DEMO_S = 300.0
TERMINATED = 143


@contextmanager
def demo(demo_cache: Path, *options: str) -> Iterator[Process]:
    process = start(
        python_command(
            "demo", "edl", "demo", "--quick", *options, env={"XDG_CACHE_HOME": str(demo_cache)}
        )
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEMO_S)


@pytest.fixture(scope="module")
def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.timeout(DEMO_S + 60)
def test_every_batch_arrives_once_in_order_with_the_right_labels(
    tmp_path: Path, demo_cache: Path
) -> None:
    """A whole short demo, in one test: each worker that has a part of it would run it anew."""
    picture = tmp_path / "p.png"
    options = ("--json", str(tmp_path / "d.json"), "--picture", str(picture))
    with demo(demo_cache, *options) as process:
        assert process.wait(DEMO_S) == 0, process.tail()
        output = "\n".join(process.tail(200))
    found = json.loads((tmp_path / "d.json").read_text())
    edl = found["edl_dist"]
    assert edl["delivered"] == edl["yielded"] == 240
    assert (edl["duplicates"], edl["out_of_order"]) == (0, 0)
    assert re.fullmatch("[0-9a-f]{64}", edl["stream_sha256"])
    assert edl["stream_sha256"] == edl["reference_sha256"]
    # A teacher died with work in hand, and another one came.
    assert (edl["teachers_killed"], edl["teachers_added"]) == (1, 1)
    batch_of = {event["kind"]: event["batch"] for event in edl["events"]}
    assert 80 <= batch_of["kill"] <= batch_of["start"]
    assert 160 <= batch_of["start"] <= batch_of["join"] <= 240
    # Every mode trained every student; labels are the same to the last bit, and so are students.
    assert list(found["modes"]) == ["n_training", "online", "edl_dist"]
    for mode in found["modes"].values():
        assert len(mode["accuracy"]) == 2
        assert all(0.5 < value < 1 for value in mode["accuracy"])
        assert mode["samples_per_s"] > 0
        assert mode["core_seconds_per_sample"]["student"] > 0
    assert found["modes"]["edl_dist"]["accuracy"] == found["modes"]["online"]["accuracy"]
    assert found["modes"]["edl_dist"]["core_seconds_per_sample"]["teachers"] > 0
    # The buffer was watched.
    assert len(edl["timeline"]) == 240 // 5
    assert max(moment["volume_bytes"] for moment in edl["timeline"]) > 0
    assert 0 < edl["lower_bytes"] < edl["upper_bytes"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert f"Picture: {picture}" in output
    assert "killed (SIGKILL) with" in output
    assert "Traceback" not in output


@pytest.mark.timeout(2 * DEMO_S)
@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        pytest.param(signal.SIGINT, EXIT_INTERRUPTED, "Load Paddle", marks=pytest.mark.nightly),
        pytest.param(
            signal.SIGINT, EXIT_INTERRUPTED, "Mesh: coordinator", marks=pytest.mark.nightly
        ),
        pytest.param(signal.SIGINT, EXIT_INTERRUPTED, "killed", marks=pytest.mark.nightly),
        (signal.SIGTERM, TERMINATED, "Train: EDL-Dist"),
        (signal.SIGINT, EXIT_INTERRUPTED, None),
    ],
)
def test_a_signal_ends_it_in_order(
    demo_cache: Path,
    tmp_path: Path,
    rng: random.Random,
    number: signal.Signals,
    code: int,
    moment: str | None,
) -> None:
    """At named moments and at one by chance; that nothing is left is checked for every test."""
    picture = tmp_path / "p.png"
    with demo(demo_cache, "--picture", str(picture)) as process:
        if moment is None:
            process.wait(rng.uniform(0.8, 9.0))
        else:
            process.expect(moment, DEMO_S)
        process.send_signal(number)
        assert process.wait(DEMO_S) == code, process.tail()
        assert not any("Traceback" in line for line in process.tail(200))
        assert (process.tail(1) == ["edl: interrupted"]) == (code == EXIT_INTERRUPTED)
    assert not picture.exists()


EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"
UP_WAIT_S = 60.0
NAMES = ["coordinator", "spirals-1", "spirals-2", "spirals-student"]


class Edl:
    """`edl` with a cache of its own, and what it wrote there about the mesh."""

    def __init__(self, cache: Path, undo: ExitStack) -> None:
        self.cache = cache
        self._undo = undo

    def start(self, *words: object) -> Process:
        env = {"XDG_CACHE_HOME": str(self.cache)}
        process = start(python_command("edl", "edl", *words, env=env))
        self._undo.callback(process.stop, 20.0)
        return process

    def run(self, *words: object) -> tuple[int, str]:
        process = self.start(*words)
        code = process.wait(UP_WAIT_S)
        assert code is not None, process.tail()
        return code, "\n".join(process.tail(100))

    @property
    def state(self) -> dict[str, Any]:
        """What `edl up` has written down; empty: nothing."""
        found = list(self.cache.glob("edl-dist/up/*/state.json"))
        return json.loads(found[0].read_text()) if found else {}

    def files(self) -> list[str]:
        return [path.name for path in self.cache.rglob("*") if path.is_file()]


@pytest.fixture
def up(tmp_path: Path, stack: ExitStack) -> Iterator[Edl]:
    up = Edl(tmp_path / "cache", stack)
    yield up
    if up.state:  # the test has failed
        up.run("down", "--all", "--within", 0)


def listens(url: str) -> bool:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(5.0)
        return probe.connect_ex((host, int(port))) == 0


def test_in_the_background_until_it_is_ended(up: Edl) -> None:
    name = short(EXAMPLE)
    code, told = up.run("up", EXAMPLE, "--detach", "--keep")
    assert code == 0, told
    assert f"'edl down {name}' ends it" in told
    state = up.state
    assert [one["name"] for one in state["entries"]] == NAMES
    addresses = [state["url"], *(one["address"] for one in state["entries"] if one["address"])]
    assert [listens(address) for address in addresses] == [True] * 4
    code, told = up.run("up", EXAMPLE)
    assert code == 2
    assert f"is up already (pid {state['keeper']['pid']}, 4 of 4 processes" in told
    assert up.run("down") == (0, f"{name} has ended")
    assert up.files() == []
    assert not any(listens(address) for address in addresses)


def test_what_dies_comes_again_and_nothing_is_left_when_edl_up_is_killed(up: Edl) -> None:
    mesh = up.start("up", EXAMPLE, "spirals-student", "--keep")
    wait_until(lambda: up.state.get("phase") == "up", UP_WAIT_S)
    pids = {one["name"]: one["process"]["pid"] for one in up.state["entries"]}
    mesh.expect(r"^spirals-student \| epoch \d+: loss", UP_WAIT_S)
    os.kill(pids["spirals-1"], signal.SIGKILL)
    mesh.expect(r"^spirals-1 was ended by SIGKILL and starts again at once", UP_WAIT_S)
    mesh.expect(r"^spirals-1 is ready again \(start 2\)", UP_WAIT_S)
    wait_until(lambda: {one["phase"] for one in up.state["entries"]} == {"running"}, UP_WAIT_S)
    state = up.state
    assert state["keeper"]["pid"] == mesh.pid
    family = [child.pid for child in psutil.Process(mesh.pid).children(recursive=True)]
    mesh.kill()
    wait_gone(family, UP_WAIT_S)
    assert not listens(state["url"])
    assert up.state == state, "nobody was there to take it back"
    assert up.run("down", EXAMPLE) == (0, f"{EXAMPLE} was not up")
    assert up.files() == []
