"""The commands `edl ...` against real meshes: what they do, what they print, how they end."""

from __future__ import annotations

import contextlib
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

import httpx
import psutil
import pytest

from edl import __version__
from edl.coordinator import fetch_status
from edl.errors import ProcessFailed, UsageError
from edl.interrupts import EXIT_INTERRUPTED
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.mesh.up.place import short
from edl.supervise import Process, python_command, start
from edl.tests.coordinator.web.browser import chromium
from edl.tests.ground.programs import wait_gone
from edl.tests.system.conftest import Batches, Service, start_teachers, taken_until
from edl.tests.system.coordinator_process import START_S, edl
from edl.tests.system.teacher_process import STEERED
from edl.tests.waiting import wait_until


def events(service: Service) -> list[dict[str, Any]]:
    code, lines = edl("events", "--json", "--last", 0, "--service", service.name, url=service.url)
    assert code == 0, lines
    return [json.loads(line) for line in lines]


def kinds_about(log: list[dict[str, Any]], subject: str) -> list[str]:
    return [event["kind"] for event in log if event["subject"] == subject]


def events_until(service: Service, *wanted: tuple[str, str]) -> list[dict[str, Any]]:
    """The whole log, once these (kind, subject) are in it."""
    log: list[dict[str, Any]] = []

    def there() -> bool:
        log[:] = events(service)
        return all(kind in kinds_about(log, subject) for kind, subject in wanted)

    wait_until(there)
    return log


def test_a_teacher_is_drained_by_command_and_the_log_says_all_that_happened(
    service: Service, set_pace: Callable[[float], None]
) -> None:
    set_pace(0.02 / 8)
    a, b = service.add("a", "b")
    source = Batches()
    with service.reader(source, teachers_min=2) as reader:
        iterator = iter(reader)
        batches = taken_until(iterator, lambda: len(reader.stats.teachers) == 2)
        drained = edl("drain", a, "--service", service.name, url=service.url)
        assert drained == (0, [f"draining {service.name}/{a}"])
        batches += taken_until(iterator, lambda: not service.teachers[a].alive)
        assert service.teachers[a].returncode == 0
        service.kill(b)
        events_until(service, ("lost", b))  # a student that left earlier would lose nothing by it
        (c,) = service.add("c")
        batches += taken_until(iterator, lambda: c in reader.stats.teachers)
        batches += source.rest(iterator)
    source.check(batches)
    log = events_until(service, ("gone", "job/0"), ("lost", b))
    assert kinds_about(log, a)[:3] == ["registered", "draining", "left"]
    assert kinds_about(log, b)[:2] == ["registered", "lost"]
    assert "subscribed" in kinds_about(log, "job/0")
    assert all(event["text"] and event["time_ms"] and event["id"] for event in log)
    # Every change of the student's set names its cause.
    causes = [event for event in log if event["kind"] == "assigned"]
    assert any(a in event["text"] and a in event["before"] for event in causes)
    assert any(b in event["text"] and b in event["before"] for event in causes)
    assert any(c in event["text"] and c in event["after"] for event in causes)


def test_events_are_followed_until_ctrl_c(service: Service) -> None:
    words = ("events", "--follow", "--service", service.name, "--coordinator", service.url)
    follower = start(python_command("events", "edl", *words))
    try:
        (a,) = service.add("a")
        follower.expect(rf"{service.name} registered\s+{a} ", START_S)
        service.kill(a)
        follower.expect(rf"{service.name} lost\s+{a} ", START_S)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(START_S) == 0
    finally:
        follower.stop()


def test_a_drain_of_what_is_not_there_names_what_is(service: Service) -> None:
    (there,) = service.add("gpu-17")
    code, lines = edl("drain", there.replace("17", "71"), url=service.url)
    assert (code, len(lines)) == (2, 1)
    assert there in lines[0]
    assert edl("drain", url=service.url)[0] == 2
    code, lines = edl("drain", "--host", "nowhere", url=service.url)
    assert code == 2
    assert "nowhere" in lines[0]


def test_services_are_listed_and_shown(service: Service) -> None:
    def shown() -> dict[str, Any]:
        code, lines = edl("service", "show", service.name, "--json", url=service.url)
        assert code == 0, lines
        return dict(json.loads("".join(lines)))

    service.add("a")
    # Its content is declared when a recovery is over.
    wait_until(lambda: service.status.leader and service.status.content_id)
    assert any(service.name in line for line in edl("service", "list", url=service.url)[1])
    found = shown()
    assert found["leader"]
    assert found["teacher_states"] == {"serving": 1}
    text = "".join(edl("service", "show", service.name, url=service.url)[1])
    assert found["content_id"] in text
    code, lines = edl("service", "show", "nope", url=service.url)
    assert code == 2
    assert "'edl service list'" in lines[-1]
    move = ("service", "upgrade", service.name, "--content")
    assert edl(*move, found["content_id"], url=service.url)[0] == 2
    assert edl(*move, "C2", url=service.url)[0] == 0
    assert shown()["next_content_id"] == "C2"


def test_the_doctor_finds_a_mesh_well_and_says_what_ails_it() -> None:
    with LocalMesh() as mesh:
        mesh.add_teacher("a", STEERED_SPEC)
        wait_until(lambda: fetch_status(mesh.url, "digits").services)
        code, lines = edl("doctor", "--json", url=mesh.url)
        findings = json.loads("".join(lines))
        assert code == 0, findings
        assert {finding["level"] for finding in findings} <= {"well", "doubt"}
        code, lines = edl("doctor", url=mesh.url)
        text = "\n".join(lines)
        assert __version__ in text
        assert re.search(r"Redis: (redis|valkey) \d+\.\d+", text), text
        mesh.coordinator.kill()
        mesh.coordinator.wait()
        code, lines = edl("doctor", url=mesh.url)  # its Redis has gone with it
        assert code == 1
        assert any("WRONG" in line for line in lines)


STEERED_SPEC = TeacherSpec("digits", STEERED, ttl_s=6.0)


def test_teachers_come_and_go_each_in_its_way(shared_mesh: LocalMesh) -> None:
    mesh, names = shared_mesh, ("killed", "drained")
    for name in names:
        mesh.start_teacher(name, STEERED_SPEC)
    addresses = {mesh.wait_ready(name) for name in names}
    assert len(addresses) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    mesh.suspend("killed")
    mesh.resume("killed")
    mesh.kill("killed")
    mesh.drain("drained")
    assert mesh.teachers["killed"].wait() == -signal.SIGKILL
    assert mesh.teachers["drained"].wait() == 0
    assert mesh.coordinator.alive


def test_a_suspended_teacher_ends_in_order_when_the_mesh_does() -> None:
    """Its SIGTERM is pending when it goes on, and may be taken by any of its threads."""
    with LocalMesh() as mesh:
        mesh.add_teacher("held", STEERED_SPEC)
        mesh.suspend("held")
    assert mesh.teachers["held"].returncode == 0


def test_a_teacher_whose_name_was_given_or_that_cannot_start_is_refused(
    shared_mesh: LocalMesh,
) -> None:
    shared_mesh.start_teacher("once", STEERED_SPEC)
    with pytest.raises(UsageError, match="once"):
        shared_mesh.start_teacher("once", STEERED_SPEC)
    shared_mesh.kill("once")
    with pytest.raises(ProcessFailed, match="/nope"):
        shared_mesh.add_teacher("none", replace(STEERED_SPEC, model="/nope"))


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


def test_stop_ends_everything_and_may_be_repeated(tmp_path: Path) -> None:
    with LocalMesh(log_dir=tmp_path) as mesh:
        mesh.add_teacher("t", STEERED_SPEC)
        pids = [mesh.coordinator.pid, mesh.teachers["t"].pid]
    mesh.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"coordinator.log", "t.log"}
    assert "coordinator ready" in (tmp_path / "coordinator.log").read_text()


def test_a_mesh_that_was_not_started_has_no_coordinator() -> None:
    with pytest.raises(UsageError, match="not been started"):
        _ = LocalMesh().coordinator


TOKEN = "token-of-an-administrator-of-this-test"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[LocalMesh, str]]:
    """A mesh of three teachers, and the address of its page."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin:ann {TOKEN}\n")
    tokens.chmod(0o600)
    # The manager has to call its teachers, which ask for no token; it asks its own callers.
    with LocalMesh(coordinator_options=("--http", "0", "--tokens", str(tokens))) as mesh:
        start_teachers(mesh, "killed", "drained", "stays", spec=STEERED_SPEC)
        yield mesh, mesh.coordinator.expect(r"page of the mesh is at (http://\S+)", START_S)[1]


def test_a_death_and_a_drain_are_seen(page: tuple[LocalMesh, str]) -> None:
    mesh, url = page
    with chromium() as browser:
        browser.open(url)
        names = ("killed", "drained", "stays")
        browser.until(
            lambda: all(browser.state_of(f"digits {name}") == "idle" for name in names),
            20,
        )

        mesh.kill("killed")
        browser.until(lambda: browser.state_of("digits killed") == "lost")
        browser.until(lambda: browser.all("#events li[data-kind=lost]"))
        assert "killed" in browser.one("#events li[data-kind=lost]").text

        browser.click("digits drained")
        browser.until(lambda: browser.all("#drain"))
        browser.one("#drain").click()
        browser.until(lambda: browser.one("#token").is_displayed())
        browser.one("#token").send_keys(TOKEN)
        browser.one("#use").click()
        browser.until(lambda: browser.one("#key").text == "Administrator")
        browser.one("#drain").click()
        browser.until(lambda: browser.one("#drain").text == "Drain it now")
        browser.one("#drain").click()
        gone = ("draining", "left")
        browser.until(lambda: browser.state_of("digits drained") in gone)
        assert mesh.teachers["drained"].wait(20) == 0
        browser.until(lambda: browser.state_of("digits drained") == "left")

        assert browser.state_of("digits stays") == "idle"
        assert browser.errors() == []
    assert mesh.coordinator.alive


def test_the_page_of_a_manager_needs_no_token_to_look_and_one_to_drain(
    page: tuple[LocalMesh, str],
) -> None:
    url = page[1]
    assert re.search("<title>EDL mesh</title>", httpx.get(url).text)
    body = {"service": "digits", "teacher": "stays"}
    assert httpx.post(f"{url.rstrip('/')}/api/drain", json=body).status_code == 401
    answer = httpx.post(
        f"{url.rstrip('/')}/api/drain",
        json=body | {"teacher": "stay"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    assert answer.status_code == 400
    assert "stays" in answer.json()["error"]  # the near name


#: Start, settling and end, on a slow machine.
BESIDES_S = 200.0
INTERRUPTED = 130


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
    assert len(told["invariants"]) == 8
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
        assert process.wait(BESIDES_S) == INTERRUPTED
        said = process.tail(200)
    assert any("of 300, interrupted" in line for line in said)
    held = [line for line in said if line.startswith("held")]
    for name in ("each id once, in order", "label = f(id)", "nothing is left behind"):
        assert any(name in line for line in held), said
    assert said[-1] == "edl: interrupted"
    assert not any("Traceback" in line for line in said)


def test_chaos_that_cannot_work_is_one_line_and_2(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    for options, line in (
        (("--minutes", 0.01), "edl: a run of 0.6 s is too short for chaos"),
        (("--seed", 5, "--logs", tmp_path), f"edl: {tmp_path} is not empty"),
    ):
        with chaos(*options) as process:
            assert process.wait(BESIDES_S) == 2
            assert process.tail()[-1].startswith(line)


#: Only a demo that hangs takes longer: alone the short one takes less than 15 s, on a machine that
#: does many other things it took 100.
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


@pytest.mark.parametrize(
    ("option", "path", "line"),
    [
        ("--picture", "/nowhere/p.png", "edl: cannot write /nowhere/p.png: there is no folder"),
        ("--json", "/", "edl: cannot write /: it is a folder"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_line_and_2(
    demo_cache: Path, option: str, path: str, line: str
) -> None:
    with demo(demo_cache, option, path) as process:
        assert process.wait(DEMO_S) == 2
        assert len(process.tail()) == 1
        assert process.tail()[0].startswith(line)


@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        pytest.param(signal.SIGINT, INTERRUPTED, "Load Paddle", marks=pytest.mark.nightly),
        (signal.SIGINT, INTERRUPTED, "Mesh: coordinator"),
        pytest.param(signal.SIGINT, INTERRUPTED, "killed", marks=pytest.mark.nightly),
        (signal.SIGTERM, TERMINATED, "Train: EDL-Dist"),
        (signal.SIGINT, INTERRUPTED, None),
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
        assert (process.tail(1) == ["edl: interrupted"]) == (code == INTERRUPTED)
    assert not picture.exists()


EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"
UP_WAIT_S = 60.0
UP_STUDENT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("it runs")
signal.sigwait([signal.SIGTERM])
print("saved")
"""
NAMES = ["coordinator", "spirals-1", "spirals-2", "spirals-student"]


class Edl:
    """`edl` with a cache of its own, and what it wrote there of the mesh."""

    def __init__(self, cache: Path, undo: ExitStack) -> None:
        self.cache = cache
        self._undo = undo
        self._strangers = frozenset(processes())

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

    def up(self) -> dict[str, int]:
        """Wait until all is there; the number of each process by its name."""
        wait_until(lambda: self.state.get("phase") == "up", UP_WAIT_S)
        return {one["name"]: one["process"]["pid"] for one in self.state["entries"]}

    def left(self) -> list[int]:
        """Processes that run, and did not before."""
        return [pid for pid in processes() if pid not in self._strangers]

    def files(self) -> list[str]:
        return [path.name for path in self.cache.rglob("*") if path.is_file()]


@pytest.fixture
def up(tmp_path: Path, stack: ExitStack) -> Iterator[Edl]:
    up = Edl(tmp_path / "cache", stack)
    yield up
    if up.state:  # something has failed above
        up.run("down", "--all", "--within", 0)


def processes() -> list[int]:
    """All that this process has started, and what that has started: Redis, engines, guards."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


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
    assert (up.left(), up.files()) == ([], [])
    assert not any(listens(address) for address in addresses)


def test_what_dies_comes_again_and_nothing_is_left_when_edl_up_is_killed(up: Edl) -> None:
    mesh = up.start("up", EXAMPLE, "spirals-student", "--keep")
    pids = up.up()
    mesh.expect(r"^spirals-student \| epoch \d+: loss", UP_WAIT_S)
    os.kill(pids["spirals-1"], signal.SIGKILL)
    mesh.expect(r"^spirals-1 was ended by SIGKILL and starts again at once", UP_WAIT_S)
    mesh.expect(r"^spirals-1 is ready again \(start 2\)", UP_WAIT_S)
    wait_until(lambda: {one["phase"] for one in up.state["entries"]} == {"running"}, UP_WAIT_S)
    state = up.state
    assert state["keeper"]["pid"] == mesh.pid
    family = up.left()
    mesh.kill()
    wait_gone(family, UP_WAIT_S)
    assert not listens(state["url"])
    assert up.state == state, "nobody was there to take it back"
    assert up.run("down", EXAMPLE) == (0, f"{EXAMPLE} was not up")
    assert up.files() == []


def test_ctrl_c_ends_all_in_order_and_leaves_the_logs(up: Edl, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("students: {s: {command: python student.py}}")
    (tmp_path / "student.py").write_text(UP_STUDENT)
    mesh = up.start("up", file, "--follow", "--logs", up.cache / "logs")
    mesh.expect(r"^s           \| it runs", UP_WAIT_S)
    mesh.send_signal(signal.SIGINT)
    assert mesh.wait(UP_WAIT_S) == EXIT_INTERRUPTED
    told = [line for line in mesh.tail(100) if re.search(r"left$|saved$", line)]
    assert told == ["s           | saved", "s has left", "coordinator has left"]
    assert up.left() == []
    assert sorted(up.files()) == ["coordinator.log", "s.log"]
    assert (up.cache / "logs" / "s.log").read_text() == "it runs\nsaved\n"
