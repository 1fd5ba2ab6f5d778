"""Trainings as real processes: a mistake of the user, ranks that die, nodes that come and go."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from edl.runtime.errors import NoTeacherAvailable
from edl.runtime.supervise import Process, python_command, start
from edl.student.checkpoint import Repository, open_checkpoint
from edl.student.checkpoint.snapshot import Slot
from edl.tests.student.id_log import check_each_once, surviving
from edl.tests.system.coordinator_process import edl_output
from edl.tests.system.redis_servers import redis_server
from edl.tests.waiting import wait_until

JOB_FILE = Path(__file__).with_name("student_job.py")
TORCH_JOB = JOB_FILE.with_name("torch_job.py")
#: A training of `JOB_FILE` with 120 rows that commit af8215e began, and its log of sample ids.
OLD_TRAINING = Path(__file__).resolve().parents[1] / "files" / "af8215e" / "training"
#: A start takes seconds of each core, and other tests may run.
START_S = 250.0
END_S = 250.0
RAISES = 'def model():\n    raise ValueError("not today")\n'
#: The learning rate is a setting of the node, and doubles with the ranks.
SCALES = """
OPTIMIZERS = []


def optimizer(parameters):
    rate = float(os.environ.get("EDL_TEST_RATE", "0.01"))
    OPTIMIZERS.append(paddle.optimizer.SGD(rate, parameters=parameters))
    return OPTIMIZERS[-1]


def on_scale(old, new):
    OPTIMIZERS[-1].set_lr(OPTIMIZERS[-1].get_lr() * new / old)
    print(f"the rate is {OPTIMIZERS[-1].get_lr():g} now", flush=True)
"""
ASKS = """
def distill():
    from edl.student import Distill
    return Distill(service="nobody", wait_timeout_s=float(os.environ.get("EDL_TEST_WAIT_S", 600)))
"""


@dataclass
class Nodes:
    """The nodes of one job; its folder has checkpoints, id logs and calls of `on_scale`."""

    folder: Path
    options: tuple[object, ...] = ()
    job_file: Path = JOB_FILE
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    def start(self, *options: object) -> Process:
        words = ("student", "train", self.job_file, "--checkpoint", self.folder / "checkpoints")
        environment = {"EDL_TEST_SCALED": str(self.folder / "scaled"), **self.environment}
        if (pace := self.folder / "pace").exists():
            environment["EDL_TEST_PACE"] = str(pace)
        name = f"node-{len(self.processes)}"
        more = (*words, "--id-log", self.ids, *self.options, *options)
        log = self.folder / f"{name}.log"
        self.processes.append(start(python_command(name, "edl", *more, env=environment, log=log)))
        return self.processes[-1]

    def pace(self, step_s: float) -> None:
        """Set the seconds of each step; call it before the first start, too."""
        new = self.folder / "pace.new"
        new.write_text(str(step_s))
        new.replace(self.folder / "pace")  # a rank reads either the old or the new one

    @property
    def ids(self) -> Path:
        return self.folder / "ids"

    def last(self) -> tuple[int, int]:
        """Generation and step of the newest line of rank 0's id log; (0, 0): there is none."""
        try:
            text = (self.ids / "rank-0.jsonl").read_text()
            line = json.loads(text[: text.rindex("\n") + 1].splitlines()[-1])
        except (OSError, ValueError, IndexError):
            return 0, 0
        return int(line["generation"]), int(line["step"])

    def reach(self, generation: int, more: int = 1) -> None:
        """Wait until a generation, this one or a later, has made `more` steps."""
        wait_until(lambda: self.last()[0] >= generation, START_S)
        begun = self.last()[1]
        wait_until(lambda: self.last()[1] >= begun + more - 1, START_S)

    def rank(self, number: int, process: Process) -> int:
        """The process id of a rank, as its node said it last."""
        found = re.findall(rf"rank {number} is process (\d+)", "\n".join(process.tail(1000)))
        return int(found[-1])

    def restored(self) -> dict[int, int]:
        """Generation -> step of its checkpoint, as the nodes said it."""
        pattern = r"generation (\d+): \d+ ranks? on [^,].*?, from (?:the checkpoint of )?step (\d+)"
        text = "\n".join(line for process in self.processes for line in process.tail(1000))
        return {int(number): int(step) for number, step in re.findall(pattern, text)}

    def scaled(self) -> list[str]:
        """What `on_scale` was called with, by all ranks, in time."""
        file = self.folder / "scaled"
        return file.read_text().splitlines() if file.exists() else []

    def end(self, *, code: int = 0) -> None:
        """Wait until all have ended, with this exit code."""
        deadline = time.monotonic() + END_S
        for process in self.processes:
            found = process.wait(max(0.1, deadline - time.monotonic()))
            assert found == code, f"{process!r}: " + "\n".join(process.tail(60))

    def close(self) -> None:
        for process in self.processes:
            process.stop(grace_s=0.0)


@pytest.fixture
def redis() -> Iterator[tuple[str, psutil.Process]]:
    """A Redis: its URL, and the process itself."""
    with redis_server() as (guard, port):
        (process,) = psutil.Process(guard.pid).children()
        yield f"redis://127.0.0.1:{port}", process
        process.resume()


def test_missing_teachers_are_awaited_until_ctrl_c_or_for_as_long_as_stated(
    tmp_path: Path, redis: tuple[str, psutil.Process]
) -> None:
    job_file = tmp_path / "job.py"
    job_file.write_text(f"{JOB_FILE.read_text()}\n\n{ASKS}")
    with closing(Nodes(tmp_path, ("--epochs", 1), job_file)) as nodes:
        node = nodes.start("--redis", redis[0])
        node.expect(r"0 of 0 teachers live", START_S)
        node.send_signal(signal.SIGINT)
        assert node.wait(END_S) == 128 + signal.SIGINT
        nodes.environment = {"EDL_TEST_WAIT_S": "1"}
        node = nodes.start("--redis", redis[0])
        assert node.wait(END_S) == NoTeacherAvailable.exit_code
        assert [line for line in node.tail(100) if "no teacher of service 'nobody' for 1 s" in line]
        assert not re.search("generation 3|crashed", "\n".join(node.tail(100)))


def test_a_kill_and_a_hang(tmp_path: Path, rng: random.Random) -> None:
    """Of a rank of two, each at a random step; the next step comes in time."""
    rows, epochs, hang_s = 480, 8, 6.0  # longer than a busy machine may hold a rank up
    options = ("--ranks-per-node", 2, "--epochs", epochs, "--save", "steps=15")
    environment = {"EDL_TEST_ROWS": str(rows)}
    with closing(Nodes(tmp_path, (*options, "--hang", hang_s), environment=environment)) as nodes:
        nodes.pace(0.02)
        node = nodes.start()
        for generation, number in enumerate([signal.SIGKILL, signal.SIGSTOP], 1):
            nodes.reach(generation, rng.randrange(1, 40))
            os.kill(nodes.rank(1, node), number)
            nodes.reach(generation + 1)
        nodes.pace(0.0)
        nodes.end()
        check_each_once(nodes.ids, nodes.restored(), rows, epochs)
        said = "\n".join(node.tail(1000))
        assert len(nodes.restored()) == 3, said
    error = re.findall(r"^finished at step \d+  error (\S+)", said, re.MULTILINE)
    assert float(error[0]) < 0.01, "what a job without any death comes to is far below"


#: Its copy into shared memory takes so long that a test sees it.
LARGE = """


class Large(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner = paddle.nn.Linear(FEATURES, 1)
        self.register_buffer("ballast", paddle.zeros([2**25], "int64"))

    def forward(self, x):
        return self.inner(x)


def model():
    return Large()
"""


def slots_of(node: Process) -> list[Slot]:
    """The memory for snapshots of a node, as its ranks open it."""
    folder = Path(f"/proc/{node.pid}/fd")
    found = [fd for fd in folder.iterdir() if "edl-snapshot" in os.readlink(fd)]
    return [Slot(os.open(fd, os.O_RDONLY)) for fd in found]


def signal_all(processes: Sequence[int], number: int) -> None:
    for process in processes:
        os.kill(process, number)


def is_stopped(process: int) -> bool:
    return bool(psutil.Process(process).status() == psutil.STATUS_STOPPED)


def test_ranks_of_a_node_killed_during_a_copy_leave_the_snapshot_before(tmp_path: Path) -> None:
    """The disk takes no checkpoint meanwhile: the snapshot in memory is all that there is."""
    job_file, rows = tmp_path / "job.py", 1200
    job_file.write_text(f"{JOB_FILE.read_text()}\n\n{LARGE}")
    options = ("--ranks-per-node", 2, "--epochs", 1, "--save", "steps=2")
    environment = {"EDL_TEST_ROWS": str(rows)}
    place, aside = tmp_path / "checkpoints", tmp_path / "aside"
    with closing(Nodes(tmp_path, options, job_file, environment)) as nodes:
        nodes.pace(0.3)
        node = nodes.start()
        nodes.reach(1, 6)
        ranks = [nodes.rank(number, node) for number in range(2)]
        place.rename(aside)
        place.touch()
        slots, seen = slots_of(node), set[int]()

        def in_a_copy() -> bool:  # after ten saves, or with none that is complete
            steps = [header.step for slot in slots if (header := slot.header())]
            seen.update(steps)
            return not steps or (len(seen) > 10 and len(steps) < len(slots))

        while True:
            if in_a_copy():
                signal_all(ranks, signal.SIGSTOP)
                wait_until(lambda: all(is_stopped(rank) for rank in ranks))
                if in_a_copy():
                    break  # it was none that ended before the ranks stopped
                signal_all(ranks, signal.SIGCONT)
            time.sleep(0.0005)
        signal_all(ranks, signal.SIGKILL)
        nodes.pace(0.0)
        place.unlink()
        aside.rename(place)
        nodes.end()
        assert nodes.restored()[2] == max(seen)
        check_each_once(nodes.ids, nodes.restored(), rows, 1)


BATCH = 12


@pytest.fixture
def elastic(tmp_path: Path, redis: tuple[str, psutil.Process]) -> Iterator[Nodes]:
    """Nodes that meet at the Redis of the test."""
    options = ("--redis", redis[0], "--save", "steps=50")
    with closing(Nodes(tmp_path, options)) as nodes:
        yield nodes


def says_again(process: Process, text: str) -> None:
    """Wait until a node says so, once more than before."""

    def said() -> int:
        return sum(text in line for line in process.tail(1000))

    before = said()
    wait_until(lambda: said() > before, START_S)


@pytest.mark.parametrize(
    ("job_file", "most"), [(JOB_FILE, 3), (TORCH_JOB, 2)], ids=["paddle", "torch"]
)
def test_nodes_come_and_go_and_redis_is_away(
    job_file: Path, most: int, elastic: Nodes, redis: tuple[str, psutil.Process]
) -> None:
    """`most` nodes come one after the other, and all but the last one go again."""
    url, server = redis
    rows, epochs = 1200, 5
    elastic.job_file = job_file
    elastic.environment = {"EDL_TEST_ROWS": str(rows)}
    elastic.pace(0.5)  # the job is not to end before all have come and gone
    elastic.options = (*elastic.options, "--nodes", "1:4", "--epochs", epochs)
    for generation in range(1, most + 1):  # of two that start at once either may miss the first
        elastic.start()
        elastic.reach(generation, 3)
    *leaving, last = elastic.processes
    signals = [signal.SIGINT, signal.SIGTERM][-len(leaving) :]
    for generation, (node, number) in enumerate(zip(leaving, signals, strict=True), most + 1):
        node.send_signal(number)
        elastic.reach(generation, 3)
    server.suspend()
    says_again(last, "training goes on without the job board")
    server.resume()
    says_again(last, "the job board answers again")
    shown = "\n".join(edl_output("status", url=url))
    told = json.loads("".join(edl_output("status", "--json", url=url)))["jobs"]
    elastic.pace(0.0)
    codes = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 128 + signal.SIGINT}
    assert [node.wait(START_S) for node in leaving] == [codes[number] for number in signals]
    restored = elastic.restored() | {1: 0}
    elastic.processes = [last]
    elastic.end()
    ranks = [*range(1, most + 1), *range(most - 1, 0, -1)]  # by generation
    assert set(restored) >= set(range(1, len(ranks) + 1))
    # Each rank of the new world was told of each change once.
    changes = [f"{old} {new}" for old, new in itertools.pairwise(ranks)]
    assert [k for k, _ in itertools.groupby(elastic.scaled())] == changes
    told_by_ranks = [
        change for change, new in zip(changes, ranks[1:], strict=True) for _ in range(new)
    ]
    assert sorted(elastic.scaled()) == sorted(told_by_ranks)
    # The total batch did not change; where shares did, an epoch may end with a step of few rows.
    check_each_once(elastic.ids, restored, rows, epochs)
    totals = [line["total"] for line in surviving(elastic.ids, restored)]
    assert max(totals) == BATCH
    assert totals.count(BATCH) > 0.97 * len(totals)
    # Operators see the generations.
    assert job_file.stem in shown
    assert [one["ranks"] for one in told[0]["generations"]][: len(ranks)] == ranks
    assert f"ranks by generation: {' -> '.join(map(str, ranks))}" in shown
    newest = Repository(str(elastic.folder / "checkpoints")).newest_valid()
    assert newest is not None
    assert f"finished at step {newest.step}" in "\n".join(last.tail(1000))


def test_joining_nodes_that_differ_are_refused_alone(elastic: Nodes) -> None:
    """Some differ by their environment alone: the job file is the same.

    Two ranks train with a rate of 0.02 by `on_scale`: a node that begins with it differs.
    """
    rows, epochs = 480, 5
    own = elastic.folder / JOB_FILE.name
    own.write_text(f"{JOB_FILE.read_text()}\n\n{SCALES}")
    elastic.job_file, elastic.environment = own, {"EDL_TEST_ROWS": str(rows)}
    elastic.pace(2.0)
    elastic.options = (*elastic.options, "--nodes", "1:4", "--epochs", epochs)
    a = elastic.start()
    elastic.reach(1)
    elastic.start()
    elastic.reach(2)
    a.expect(r"the rate is 0\.02 now", START_S)
    agreeing = list(elastic.processes)
    seed = elastic.start("--seed", 7)
    batch = elastic.start("--total-batch", 16)
    elastic.environment = {**elastic.environment, "EDL_TEST_RATE": "0.02"}
    rate = elastic.start()
    del elastic.environment["EDL_TEST_RATE"]
    elastic.job_file = elastic.folder / "typo" / JOB_FILE.name
    elastic.job_file.parent.mkdir()
    elastic.job_file.write_text(f"{own.read_text()}\n\n{RAISES}")
    typo = elastic.start()
    for node, told in (
        (seed, "seed is 7 here and 0 in the job"),
        (batch, f"total_batch is 16 here and {BATCH} in the job"),
        (rate, "optimizer.learning_rate is 0.02 here and 0.01 in the job"),
        (typo, "in model(): ValueError: not today"),
    ):
        assert node.wait(END_S) == 2, "\n".join(node.tail(50))
        last = node.tail(1)[0]
        assert last.startswith("edl: ")
        assert told in last
    elastic.processes, elastic.job_file = agreeing, own
    elastic.start()
    elastic.reach(3)
    a.expect(r"the rate is 0\.03 now", START_S)
    restored = elastic.restored()
    elastic.pace(0.0)
    elastic.end()
    assert list(restored) == [1, 2, 3], "those that differ form no world"
    check_each_once(elastic.ids, elastic.restored(), rows, epochs)


@pytest.mark.parametrize("job_file", [JOB_FILE, TORCH_JOB], ids=["paddle", "torch"])
def test_a_node_killed_early_goes_on_behind_its_first_step(job_file: Path, tmp_path: Path) -> None:
    with closing(Nodes(tmp_path, ("--steps", 400), job_file)) as nodes:
        nodes.pace(0.2)
        node = nodes.start()
        wait_until(lambda: nodes.last()[1] >= 5, START_S)
        place = Repository(str(tmp_path / "checkpoints"))
        wait_until(lambda: place.newest_valid() is not None)
        node.kill()
        assert node.wait(END_S) == -signal.SIGKILL
        nodes.pace(0.0)
        nodes.processes = []
        nodes.start()
        nodes.end()
        assert nodes.restored()[1] > 0


def test_accepted_changes_take_effect_and_another_seed_begins_the_epoch_anew(
    tmp_path: Path,
) -> None:
    rows, seed = 120, ("--seed", 7, "--epochs", 1)
    with closing(Nodes(tmp_path, environment={"EDL_TEST_ROWS": str(rows)})) as nodes:
        nodes.start("--steps", 5)
        nodes.end()
        shutil.rmtree(nodes.ids)
        nodes.environment = {**nodes.environment, "EDL_TEST_RATE": "0.02"}
        refused = nodes.processes[0] = nodes.start(*seed)
        assert refused.wait(END_S) == 2
        assert "seed is 7 here and 0 in the checkpoint" in refused.tail(1)[0]
        assert not nodes.ids.exists()
        nodes.processes = []
        nodes.start(*seed, "--accept-change", "seed", "--accept-change", "optimizer")
        nodes.end()
        check_each_once(nodes.ids, {1: 5}, rows, 1)
        saved = open_checkpoint(str(tmp_path / "checkpoints")).state["training"]
        assert saved["optimizer"]["rate"] == 0.02


def test_a_training_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """In the midst of its second epoch; its checkpoint says nothing of settings."""
    shutil.copytree(OLD_TRAINING, tmp_path, dirs_exist_ok=True)
    with closing(Nodes(tmp_path, environment={"EDL_TEST_ROWS": "120"})) as nodes:
        node = nodes.start("--epochs", 3)
        nodes.end()
        assert nodes.restored() == {1: 14}
        assert "finished at step 30" in node.tail(1)[0]
        assert "has no fingerprint, as an older version wrote it" in "\n".join(node.tail(1000))
        check_each_once(nodes.ids, {1: 14}, 120, 3)
        newest = Repository(str(tmp_path / "checkpoints")).newest_valid()
        assert newest is not None
        assert newest.provenance.fingerprint["seed"] == 0
