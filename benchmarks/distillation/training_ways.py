"""The ways to train the students of a task: all see the same batches, only the labels differ."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...distill_reader import DistilReader, LabelStore, ReaderStats, Timeouts
from ...mesh.demo.edl_dist import POLL_S, TEACHERS_TIMEOUT_S, wait_for_teachers
from ...mesh.demo.models import Predictor, TeacherModel, export, train_teacher
from ...mesh.demo.modes import ModeResult, StudentTraining, distill_loss, label_in_process
from ...mesh.demo.teacher_churn import TeacherChurn
from ...mesh.local import LocalMesh, TeacherSpec
from ...runtime.lifecycle import Periodic, wait_until
from ...student import DistillLoss, accuracy
from .task import Task

log = logging.getLogger(__name__)

Way = Literal["n_training", "online", "steady", "churn", "offline"]
WAYS: tuple[Way, ...] = ("n_training", "online", "steady", "churn", "offline")
TITLES: dict[Way, str] = {
    "n_training": "N-training",
    "online": "Online",
    "steady": "EDL-Dist, steady teachers",
    "churn": "EDL-Dist, teachers killed and added",
    "offline": "offline, from the filled store",
}
#: Seconds until a lease expires; readers notice killed teachers earlier, by their connections.
TTL_S = 3.0
#: Limit of the store's size, far above its real size: at its limit a store evicts labels.
STORE_BYTES = 2 << 30


class RepeatedChurn:
    """Runs rounds of `TeacherChurn`: in each, a teacher is killed and a new one joins.

    A round lasts for `steps` batches, or until the new teacher has joined, if that is later. So at
    most one teacher is missing at any time.

    Args:
        mesh: mesh with the teachers.
        spec: specification of new teachers.
        steps: batches of a round.
        batches: batches of the run; a round starts only if the run has enough batches left.
        say: called with a line of text for each event.
        clock: returns seconds.
    """

    def __init__(
        self,
        mesh: LocalMesh,
        spec: TeacherSpec,
        *,
        steps: int,
        batches: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mesh = mesh
        self._spec = spec
        self._steps = steps
        self._batches = batches
        self._say = say
        self._clock = clock
        self._rounds: list[TeacherChurn] = []
        self._began = 0
        self._begin(0)

    def update(self, batch: int, stats: ReaderStats) -> None:
        """Suspend, kill or start teachers if due; start the next round if the current one is over.

        Args:
            batch: batches trained so far.
            stats: statistics of the reader.
        """
        is_over = self._count("join") == len(self._rounds) and batch >= self._began + self._steps
        if is_over and batch + self._steps <= self._batches:
            self._begin(batch)
        self._rounds[-1].update(batch - self._began, stats)

    @property
    def killed(self) -> int:
        """Teachers that were killed."""
        return self._count("kill")

    @property
    def joined(self) -> int:
        """New teachers that the student got."""
        return self._count("join")

    @property
    def awaits_newcomer(self) -> bool:
        """Whether a new teacher was started but has not joined yet."""
        return self._rounds[-1].replacement_pending

    def _begin(self, batch: int) -> None:
        self._began = batch
        self._rounds.append(
            TeacherChurn(
                suspend=self._mesh.suspend,
                resume=self._mesh.resume,
                kill=self._mesh.kill,
                start=self._start,
                replacement=f"newcomer-{len(self._rounds) + 1}",
                batches=self._steps,
                say=self._say,
                clock=self._clock,
            )
        )

    def _start(self, teacher_id: str) -> None:
        self._mesh.start_teacher(teacher_id, self._spec)

    def _count(self, kind: str) -> int:
        return sum(event.kind == kind for churn in self._rounds for event in churn.events)


@dataclass(frozen=True, slots=True)
class DistillationOutcome:
    """The outcome of one way.

    Attributes:
        way: the way of training.
        result: accuracies by seed, and a summary of the received stream.
        killed: teachers that were killed during the run.
        joined: new teachers that the student got during the run.
        share_from_store: share of the rows with a soft label from the store.
    """

    way: Way
    result: ModeResult
    killed: int = 0
    joined: int = 0
    share_from_store: float = 0.0

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Accuracy on the held-out rows, 0 to 1, of each seed."""
        return self.result.accuracy


def train_all_ways(task: Task, folder: Path) -> tuple[TeacherModel, dict[Way, DistillationOutcome]]:
    """Train the teacher of `task`, then its students in each way.

    Args:
        task: the task.
        folder: empty folder for the teacher's model and the label store.
    """
    log.info("%s: the teacher learns", task.name)
    teacher = _train_teacher(task, folder)
    log.info("%s: the teacher's accuracy is %.2f %%", task.name, 100 * teacher.accuracy)
    predictor = Predictor(teacher.path, micro_batch=task.settings.micro_batch)
    with closing(label_in_process(task.batches, predictor)) as labelled:
        without_mesh = {
            "n_training": _train(task, "n_training", task.batches, DistillLoss(alpha=1, beta=0)),
            "online": _train(task, "online", labelled, distill_loss(task.settings)),
        }
    with_mesh = _through_the_mesh(task, teacher, folder)
    return teacher, {**without_mesh, **with_mesh}  # type: ignore[dict-item]


def _train_teacher(task: Task, folder: Path) -> TeacherModel:
    """Train the teacher of `task` on all labels and export it to `folder`."""
    network = train_teacher(task.teacher, task.data, task.settings, task.augmentation)
    image, path = task.data.test_image, folder / "teacher"
    export(network, image, path)
    return TeacherModel(path, accuracy(network, image, task.data.test_label), cached=False)


def _through_the_mesh(
    task: Task, teacher: TeacherModel, folder: Path
) -> dict[Way, DistillationOutcome]:
    store = LabelStore(folder / "labels.edl", STORE_BYTES)
    with ExitStack() as stack:
        mesh = stack.enter_context(LocalMesh())
        spec = TeacherSpec(
            task.name,
            str(teacher.path),
            micro_batch=task.settings.micro_batch,
            ttl_s=TTL_S,
            options=task.serving,
        )
        names = [f"teacher-{number + 1}" for number in range(task.settings.teachers)]
        for name in names:
            mesh.start_teacher(name, spec)
        for name in names:
            mesh.wait_ready(name)
        steady = _distil(task, "steady", mesh, store)
        churn = _distil(task, "churn", mesh, None, spec)
        for process in mesh.teachers.values():
            if process.alive:
                process.stop(TEACHERS_TIMEOUT_S)
        offline = _distil(task, "offline", mesh, store)
    return {"steady": steady, "churn": churn, "offline": offline}


def _distil(
    task: Task,
    way: Way,
    mesh: LocalMesh,
    store: LabelStore | None,
    newcomers: TeacherSpec | None = None,
) -> DistillationOutcome:
    """Train through the mesh; with `newcomers`, kill and replace teachers meanwhile.

    Args:
        task: the task.
        way: the way; its name appears in messages and in the job's name. "offline" does not wait
            for teachers.
        mesh: mesh with the teachers.
        store: label store of the reader; None: the reader has no store.
        newcomers: specification of new teachers; None: teachers stay.
    """
    trained = 0

    def reach(number: int) -> None:
        nonlocal trained
        trained = number

    with _reader(task, way, mesh, store) as reader, ExitStack() as stack:
        if way != "offline":
            wait_for_teachers(reader, task.settings.teachers, lambda: None)
        churning = None
        if newcomers is not None:
            churning = RepeatedChurn(
                mesh,
                newcomers,
                steps=task.settings.steps,
                batches=task.settings.batches,
                say=log.info,
            )
            update = churning.update
            periodic = Periodic("edl-bench-churn", POLL_S, lambda: update(trained, reader.stats))
            periodic.start()
            stack.callback(periodic.stop)
        loss = distill_loss(task.settings)
        outcome = _train(task, way, reader, loss, reach, lambda: reader.stats)
        if churning is None:
            return outcome
        # On a slow machine the training may end before the last new teacher joins.
        wait_until(lambda: not churning.awaits_newcomer, TEACHERS_TIMEOUT_S, POLL_S)
    return DistillationOutcome(way, outcome.result, churning.killed, churning.joined)


def _train(
    task: Task,
    way: Way,
    batches: object,
    loss: DistillLoss,
    on_batch: Callable[[int], None] = lambda number: None,
    stats: Callable[[], ReaderStats] | None = None,
) -> DistillationOutcome:
    def after_batch(number: int) -> None:
        on_batch(number)
        if number % task.settings.steps == 0:
            done = number // task.settings.steps
            log.info("%s, %s: %d of %d students", task.name, way, done, task.settings.students)

    stream = iter(batches)  # type: ignore[call-overload]
    training = StudentTraining(
        "n_training" if way == "n_training" else "online" if way == "online" else "edl_dist",
        stream,
        loss,
        task.data,
        task.settings,
        task.student,
        task.framework,
    )
    training.run(task.settings.students, after_batch)
    result = training.result
    left = sum(1 for _ in stream)  # statistics of an epoch are complete only after its end
    assert not left, f"{left} batches were left over"
    hits = stats().store_hits if stats is not None else 0
    return DistillationOutcome(way, result, share_from_store=hits / result.stream.samples)


def _reader(task: Task, way: Way, mesh: LocalMesh, store: LabelStore | None) -> DistilReader:
    settings = task.settings
    first = next(iter(task.batches))
    nbytes = 2 * sum(field.nbytes for field in first)  # with soft labels and the buffer's overhead
    return DistilReader(
        task.batches,
        service=task.name,
        coordinator=mesh.url,
        feeds=[0],
        upper_bytes=settings.upper_batches * nbytes,
        lower_bytes=settings.lower_batches * nbytes,
        job=f"accuracy-{way}",
        profiles=None,
        store=store,
        # Request all teachers from the start, as in the demo: until the times that determine their
        # number are known, half of a short run would be over.
        teachers_min=4 * settings.teachers,
        timeouts=Timeouts(wait_s=2 * TEACHERS_TIMEOUT_S),
    )
