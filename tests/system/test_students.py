"""Trainings as real processes: mistakes of users, ranks that die, nodes that come and go."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from edl.student.checkpoint import Repository
from edl.supervise import Process
from edl.tests.student.checkpoint.samples import contents_of
from edl.tests.student.id_log import check_each_once, surviving
from edl.tests.system.coordinator_process import edl
from edl.tests.system.redis_servers import redis_server
from edl.tests.system.student_nodes import END_S, JOB_FILE, NAME, START_S, Nodes
from edl.tests.waiting import wait_until

RAISES = 'def {function}({given}):\n    raise ValueError("not today")\n'
#: What is wrong -> lines behind those of a job file that works, and what the message has to say.
WRONG = {
    "model": (RAISES.format(function="model", given=""), "in model(): ValueError: not today"),
    "loss": (
        RAISES.format(function="loss", given="outputs, labels"),
        "in loss(): ValueError: not today",
    ),
    "optimizer": ("def optimizer(parameters):\n    pass\n", "must return a paddle.optimizer"),
    "feed": (RAISES.format(function="feed", given="split"), "in feed(): ValueError: not today"),
    "service": (
        "def distill():\n"
        "    from edl.student import Distill\n"
        '    return Distill(service="nobody")\n',
        "asks the service 'nobody' for soft labels, and nothing says where",
    ),
    "iterable": (
        "def feed(split):\n"
        "    return [(np.zeros((4, FEATURES), 'float32'), np.zeros((4, 1), 'float32'))] * 9\n",
        "--nodes 1:4 lets ranks come and go, but a list of finished batches cannot be dealt out",
    ),
}


def job_file(folder: Path, name: str, lines: str) -> Path:
    file = folder / f"job_{name}.py"
    file.write_text(f"{JOB_FILE.read_text()}\n\n{lines}")
    return file


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path)) as nodes:
        yield nodes


def message(process: Process) -> str:
    """The last line of a command that ended with exit code 2; it is the command's own."""
    assert process.wait(END_S) == 2, "\n".join(process.tail(50))
    last = process.tail(1)[0]
    assert last.startswith("edl: ")
    return last


@pytest.mark.timeout(300)
def test_one_message_for_each_mistake(nodes: Nodes, tmp_path: Path) -> None:
    started: dict[str, Process] = {}
    nodes.options = ("--epochs", 1)
    with redis_server() as (_, port):
        elastic = ("--nodes", "1:4", "--coordinator", f"redis://127.0.0.1:{port}")
        for name, (lines, _) in WRONG.items():
            nodes.job_file = job_file(tmp_path, name, lines)
            started[name] = nodes.start(*(elastic if name == "iterable" else ()))
        nodes.job_file = tmp_path / "job_service.py"
        waits = nodes.start(*elastic[2:])
        found = {name: message(process) for name, process in started.items()}
        # Teachers may come: that is waited for, with a reason, and can be ended.
        waits.expect(r"0 of 0 teachers live", START_S)
        waits.send_signal(signal.SIGINT)
        assert waits.wait(END_S) == 128 + signal.SIGINT
    for name, (_, expected) in WRONG.items():
        assert expected in found[name]
    for name in ("model", "loss", "feed"):  # and where to look
        assert f"job_{name}.py, line " in found[name]


ROWS, EPOCHS = 480, 8
#: Longer than a busy machine may hold a rank up.
HANG_S = 6.0
#: Of 480 rows a step of 12: what a job without any death comes to is far below.
WELL_TRAINED = 0.01


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Nodes]:
    """A node of two ranks."""
    options = ("--ranks-per-node", 2, "--epochs", EPOCHS, "--save-every-steps", 15)
    environment = {"EDL_TEST_ROWS": str(ROWS), "EDL_TEST_STEP_S": "0.02"}
    with closing(Nodes(tmp_path, (*options, "--hang", HANG_S), environment=environment)) as nodes:
        yield nodes


def disturb(nodes: Nodes, rng: random.Random, signals: list[signal.Signals]) -> None:
    """Send rank 1 each signal at a random step, and see the next step in time."""
    node = nodes.start()
    for generation, number in enumerate(signals, 1):
        nodes.reach(generation, rng.randrange(1, 40))
        os.kill(nodes.rank(1, node), number)
        nodes.reach(generation + 1)
    nodes.end()
    check_each_once(nodes.ids, nodes.restored(), ROWS, EPOCHS)
    said = "\n".join(node.tail(1000))
    assert len(nodes.restored()) == len(signals) + 1, said
    error = re.findall(r"^finished at step \d+  error (\S+)", said, re.MULTILINE)
    assert float(error[0]) < WELL_TRAINED


@pytest.mark.timeout(300)
def test_three_kills_and_a_hang(pair: Nodes, rng: random.Random) -> None:
    disturb(pair, rng, [signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL, signal.SIGKILL])


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("turn", range(10))
def test_fifty_kills(pair: Nodes, rng: random.Random, turn: int) -> None:
    pair.options = (*pair.options, "--seed", turn)
    disturb(pair, rng, [signal.SIGKILL] * 5)


BATCH = 12


@pytest.fixture
def redis() -> Iterator[tuple[str, psutil.Process]]:
    """A Redis: its URL, and the process itself."""
    with redis_server() as (guard, port):
        (process,) = psutil.Process(guard.pid).children()
        yield f"redis://127.0.0.1:{port}", process
        process.resume()


@pytest.fixture
def elastic(tmp_path: Path, redis: tuple[str, psutil.Process]) -> Iterator[Nodes]:
    """Nodes that meet at the Redis of the test."""
    options = ("--coordinator", redis[0], "--save-every-steps", 50)
    with closing(Nodes(tmp_path, options)) as nodes:
        yield nodes


def says_again(process: Process, text: str) -> None:
    """Wait until a node says so, once more than before."""

    def said() -> int:
        return sum(text in line for line in process.tail(1000))

    before = said()
    wait_until(lambda: said() > before, START_S)


@pytest.mark.timeout(300)
def test_two_three_two_one_two_nodes(elastic: Nodes, redis: tuple[str, psutil.Process]) -> None:
    """Two come, two leave, one comes; then Redis is away for a while."""
    url, server = redis
    rows, epochs = 2400, 5
    elastic.environment = {"EDL_TEST_ROWS": str(rows), "EDL_TEST_STEP_S": "0.03"}
    elastic.options = (*elastic.options, "--nodes", "1:4", "--epochs", epochs)
    a = elastic.start()  # alone: of two that start at once either may miss the first world
    elastic.reach(1, 3)
    b = elastic.start()
    elastic.reach(2, 3)
    c = elastic.start()
    elastic.reach(3, 3)
    b.send_signal(signal.SIGINT)
    elastic.reach(4, 3)
    a.send_signal(signal.SIGTERM)
    elastic.reach(5, 3)
    elastic.start()
    elastic.reach(6, 3)
    server.suspend()
    says_again(c, "training goes on without the job board")
    server.resume()
    says_again(c, "the job board answers again")
    shown = "\n".join(edl("status", url=url)[1])
    told = json.loads("".join(edl("status", "--json", url=url)[1]))["jobs"]
    assert (a.wait(START_S), b.wait(START_S)) == (-signal.SIGTERM, 128 + signal.SIGINT)
    restored = elastic.restored() | {1: 0}
    elastic.processes = [one for one in elastic.processes if one not in (a, b)]
    elastic.end()
    assert set(restored) >= {1, 2, 3, 4, 5, 6}
    # Each change of the world was told to the job once, on each rank of the new one.
    changes = ["1 2", "2 3", "3 2", "2 1", "1 2"]
    assert [k for k, _ in itertools.groupby(elastic.scaled())] == changes
    assert sorted(elastic.scaled()) == sorted(
        ["1 2"] * 2 + ["2 3"] * 3 + ["3 2"] * 2 + ["2 1"] + ["1 2"] * 2
    )
    # The total batch did not change; where shares did, an epoch may end with a step of few rows.
    check_each_once(elastic.ids, restored, rows, epochs)
    totals = [line["total"] for line in surviving(elastic.ids, restored)]
    assert max(totals) == BATCH
    assert totals.count(BATCH) > 0.97 * len(totals)
    # Operators see the generations.
    assert NAME in shown
    assert [one["ranks"] for one in told[0]["generations"]][:6] == [1, 2, 3, 2, 1, 2]
    assert "ranks by generation: 1 -> 2 -> 3 -> 2 -> 1 -> 2" in shown
    newest = Repository(str(elastic.folder / "checkpoints")).newest_valid()
    assert newest is not None
    assert any(f"finished at step {newest.step}" in line for line in c.tail(1000))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_twelve_ranks_form_a_world(elastic: Nodes) -> None:
    elastic.environment = {"EDL_TEST_ROWS": "2400"}
    elastic.options = (*elastic.options, "--nodes", "3", "--ranks-per-node", 4, "--epochs", 2)
    for _ in range(3):
        elastic.start("--total-batch", 48)
    elastic.end()
    check_each_once(elastic.ids, {1: 0}, 2400, 2)
    ranks = {line["rank"] for line in surviving(elastic.ids, {1: 0})}
    assert ranks == set(range(12))


#: Less than any checkpoint takes.
NO_ROOM_BYTES = 2000
STEPS = 100


def newest(place: Path) -> int:
    """The step of the newest valid checkpoint."""
    found = Repository(str(place)).newest_valid()
    return 0 if found is None else found.step


def lines(process: Process, words: str) -> list[str]:
    return [line for line in process.tail(1000) if re.search(words, line)]


@pytest.mark.timeout(300)
def test_nothing_is_lost_when_room_ends_and_a_checkpoint_is_damaged(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.options = ("--total-batch", 12, "--save-every-steps", 3, "--steps", STEPS)
    nodes.environment = {"EDL_TEST_STEP_S": "0.05"}
    place = tmp_path / "checkpoints"
    node = nodes.start()
    wait_until(lambda: newest(place) > 0, START_S)
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (NO_ROOM_BYTES, hard))
    wait_until(lambda: bool(lines(node, "File too large")), END_S)
    stayed, at = newest(place), nodes.last()[1]
    assert stayed > 0
    wait_until(lambda: nodes.last()[1] > at + 5, END_S)  # training goes on
    assert newest(place) == stayed
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (hard, hard))
    wait_until(lambda: newest(place) > stayed, END_S)
    nodes.end()
    assert newest(place) == nodes.last()[1] == STEPS
    (said,) = lines(node, "File too large")
    assert "training goes on" in said

    (damaged,) = place.glob(f"step-{STEPS:012d}/model.safetensors")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    before = next(one.step for one in Repository(str(place)).list() if one.step < STEPS)
    again = nodes.start()
    nodes.end()
    (said,) = lines(again, "is damaged")
    assert f"step-{STEPS:012d} is damaged: model.safetensors" in said
    assert f"step {before}" in "\n".join(again.tail(1000))
    assert newest(place) == STEPS


def test_a_damaged_checkpoint_is_named_with_exit_code_65(tmp_path: Path) -> None:
    repository = Repository(str(tmp_path))
    for step in (1, 2):
        repository.save(contents_of(step))
    assert edl("checkpoint", "verify", tmp_path)[0] == 0
    file = tmp_path / "step-000000000002" / "optimizer.safetensors"
    file.write_bytes(b"x" * file.stat().st_size)
    code, lines = edl("checkpoint", "verify", tmp_path)
    assert code == 65
    assert "step-000000000002 is damaged: optimizer.safetensors" in " ".join(lines)
    assert "edl: 1 of 2 checkpoints are damaged" in lines
