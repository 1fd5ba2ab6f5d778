"""What teachers do to a ledger: they come and go, answer, fail, refuse, are late, or lie."""

from __future__ import annotations

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from edl.scheduler.ledger import events as ev

from .ledger_world import ROW_NBYTES, Worker, World

NAMES = ("a", "b", "c", "d")

names = st.sampled_from(NAMES)
windows = st.integers(1, 3)
sizes = st.none() | st.integers(1, 12)
speeds = st.none() | st.sampled_from([0.1, 0.2, 1.0])
nth = st.integers(0, 30)  # picks from whatever there is, modulo its length
seldom = st.sampled_from([False, False, False, True])  # what undoes much of what was built up


class LedgerTeachers(RuleBasedStateMachine):
    world: World

    @rule(
        name=names,
        window=windows,
        most=sizes,
        seconds=speeds,
        trial=st.booleans(),
        labelled=st.booleans(),
    )
    def a_teacher_joins(
        self,
        name: str,
        window: int,
        most: int | None,
        seconds: float | None,
        trial: bool,
        labelled: bool = False,
    ) -> None:
        """`labelled`: over a connection that was lost, if there is none."""
        worker = self.world.workers.setdefault(name, Worker(window, labels=labelled))
        worker.window, worker.most_rows = window, most
        worker.revoked = worker.resting = False
        worker.on_trial = trial and window == 2  # less often than not
        self.world.forgive(name)
        trial = worker.on_trial
        self.world.tell(ev.TeacherJoined(name, window, most, seconds, trial, labelled))

    @rule(teachers=st.sampled_from([0, 0, 1, 3]))
    def so_many_are_awaited(self, teachers: int) -> None:
        self.world.awaited = teachers
        self.world.tell(ev.Awaited(teachers))

    @rule(name=names, now=seldom)
    def a_teacher_is_lost(self, name: str, now: bool) -> None:
        if not now:
            return
        worker = self.world.workers.pop(name, Worker(1))
        self.world.forgive(name)
        for request in worker.requests:
            self.world.gives_up(name, request)
            self.world.ghosts.append((name, request))
        self.world.tell(ev.TeacherGone(name))

    @rule(name=names, size=sizes, window=windows, how=st.sampled_from(["window", "size"]))
    def a_figure_changes(self, name: str, size: int | None, window: int, how: str) -> None:
        worker = self.world.workers.get(name, Worker(1))
        if how == "window":
            worker.window = window
            self.world.tell(ev.WindowChanged(name, window))
        else:
            worker.most_rows = size
            self.world.tell(ev.RequestSizeChanged(name, size))

    @rule(name=names, how=st.sampled_from(["revoked", "rested", "ejected", "readmitted"]))
    def its_standing_changes(self, name: str, how: str) -> None:
        worker = self.world.workers.get(name, Worker(1))
        match how:
            case "revoked":
                worker.revoked = True
                if not worker.requests:
                    self.world.workers.pop(name, None)
                self.world.tell(ev.TeacherRevoked(name))
            case "rested":
                worker.resting = False
                self.world.tell(ev.Resumed(name))
            case "ejected":
                worker.on_trial = True
                self.world.tell(ev.Ejected(name))
            case "readmitted":
                worker.on_trial = False
                self.world.tell(ev.Readmitted(name))

    @rule(name=names, released=st.booleans(), now=seldom)
    def a_teacher_is_found_to_lie(self, name: str, released: bool, now: bool) -> None:
        """One that has labelled what the student may take already, or what it may not take yet."""
        world = self.world
        if not now:
            return
        if released:
            world.release()
        batches = world.student if released else world.line
        labelled = [world.books[batch] for batch in batches if world.books[batch].told]
        labellers = [one for book in labelled for one in book.labellers if one in NAMES]
        name = next(iter(labellers), name)
        if any(name in world.books[batch].labellers for batch in world.student):
            event("a liar's labels are released")
        if name in world.workers:
            world.workers[name].on_trial = True
            for request in world.workers[name].requests:
                world.gives_up(name, request)
        for book in (world.books[batch] for batch in world.line):
            if book.condemned or book.forgone:
                continue
            if name in book.makers:
                book.makers.clear()
                book.void(range(len(book.rows)))
            book.void([row for row, labeller in enumerate(book.rows) if labeller == name])
        world.tell(ev.InvalidateTeacher(name))

    @property
    def busy(self) -> list[str]:
        workers = self.world.workers
        return [name for name in NAMES if name in workers and workers[name].requests]

    @precondition(lambda self: self.busy)
    @rule(
        which=nth,
        index=nth,
        how=st.sampled_from(["answer", "answer", "fail", "refuse", "refuse", "crash", "cancel"]),
    )
    def a_request_ends(self, which: int, index: int, how: str) -> None:
        world = self.world
        name = self.busy[which % len(self.busy)]
        worker = world.workers[name]
        request = worker.requests[index % len(worker.requests)]
        match how:
            case "answer":
                world.is_answered(name, request)
            case "fail":
                world.ends(name, request)
                worker.resting = True
                world.gives_up(name, request)
                world.tell(ev.AttemptFailed(name, request))
            case "refuse":
                self.is_refused(name, worker, request)
            case "crash":
                self.is_refused(name, worker, request, crash=True)
            case "cancel":
                world.ends(name, request)
                world.gives_up(name, request)
                world.tell(ev.Cancelled(name, request))

    @precondition(lambda self: self.busy)
    @rule(count=st.integers(1, 8))
    def the_oldest_requests_are_answered(self, count: int) -> None:
        for _ in range(count):
            at = {self.world.workers[name].requests[0]: name for name in self.busy}
            if at:
                oldest = min(at)
                self.world.is_answered(at[oldest], oldest)

    @precondition(lambda self: self.busy and self.world.line)
    @rule(times=st.integers(1, 4))
    def the_head_is_refused(self, times: int) -> None:
        """By all that have it now, and by those that it goes to then."""
        world = self.world
        head = world.line[0]
        for _ in range(times):
            for name in self.busy:
                worker = world.workers[name]
                for request in list(worker.requests):
                    if any(span.batch == head for span in world.asked[request].spans):
                        self.is_refused(name, worker, request)

    def is_refused(self, name: str, worker: Worker, request: int, *, crash: bool = False) -> None:
        world = self.world
        batches = {span.batch for span in world.asked[request].spans}
        rows = sum(span.rows for span in world.asked[request].spans)
        if world.ends(name, request):
            for batch in {batch for batch, _ in world.rows_of(request)}:
                if len(batches) > 1:
                    world.books[batch].alone = True
                elif worker.most_rows is None or rows <= worker.most_rows:
                    world.books[batch].refuse(name, "bad shape", worker.labels, crash)
        worker.resting |= crash
        world.gives_up(name, request)
        if crash:
            world.tell(ev.AttemptFailed(name, request, "bad shape"))
        else:
            world.tell(ev.Refused(name, request, "bad shape"))

    @precondition(lambda self: self.busy)
    @rule(which=nth, index=nth, other=st.none() | names)
    def a_request_is_late(self, which: int, index: int, other: str | None) -> None:
        requests = self.world.workers[self.busy[which % len(self.busy)]].requests
        request = requests[index % len(requests)]
        if other is None and self.world.is_partly_over(request):
            for name in list(self.world.asked[request].counts):
                self.world.gives_up(name, request)
        else:
            self.world.asked[request].wished += 1
        if other is not None:
            self.world.named.add((request, other))
        self.world.tell(ev.Hedge(request, other))

    @precondition(lambda self: self.world.ghosts)
    @rule(index=nth)
    def a_dead_teacher_answers(self, index: int) -> None:
        name, request = self.world.ghosts.pop(index % len(self.world.ghosts))
        if request not in self.world.workers.get(name, Worker(1)).requests:
            out = self.world.tell(ev.Answered(name, request, ROW_NBYTES, 0.1))
            assert ev.Discard(request, name) in out
