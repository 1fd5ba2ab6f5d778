"""One contract, two queues of jobs, within the process and on a real Valkey."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from edl.coordinator.job_queue import (
    ENDED_KEPT,
    EVENTS_KEPT,
    KEEP_S,
    PIECES_KEPT,
    DesiredJobState,
    JobProgress,
    QueueBoard,
    open_queue,
)
from edl.coordinator.store.redis_store import RedisStore
from edl.runtime.errors import RedisUnavailable, UsageError
from edl.tests.contracts.conftest import LONG_S, SHORT_S, Hold, Holds
from edl.tests.stores import of_queue
from edl.tests.waiting import DEADLINE_S

Queues = Holds[QueueBoard]


def in_redis(url: str, queue: str) -> QueueBoard:
    return QueueBoard(RedisStore(url, timeout_s=DEADLINE_S), queue)


def write_progress(
    queue: QueueBoard, name: str, number: int, progress: JobProgress, runner: str = "r"
) -> bool:
    return queue.write_progress(of_queue(queue, runner), name, number, progress)


@pytest.fixture
def queues(hold: Hold) -> Queues:
    return hold(QueueBoard)


def test_jobs_stand_in_the_order_of_their_submission(queues: Queues) -> None:
    numbers = [queues.one.submit(name, {"n": name}) for name in "bac"]
    assert numbers == [1, 2, 3]
    jobs = queues.another.jobs()
    assert [job.name for job in jobs] == [job.spec["n"] for job in jobs] == ["b", "a", "c"]
    assert [job.number for job in jobs] == numbers
    assert all((job.progress.state, job.desired) == ("creating", DesiredJobState()) for job in jobs)
    assert 0 <= queues.one.time_ms() - jobs[0].submitted_ms < 5000


def test_a_name_and_its_wishes_are_kept_until_its_job_has_ended(queues: Queues) -> None:
    number = queues.one.submit("a", {"n": 1})
    assert number
    assert queues.another.submit("a", {"n": 2}) is None
    assert queues.one.lead("r", {}, LONG_S)
    assert queues.one.append_log(of_queue(queues.one, "r"), "a", ["one"])
    for wish in (DesiredJobState(nodes=3), DesiredJobState(nodes=3, stop=True)):
        assert queues.another.set_desired_state("a", wish)
        assert queues.one.jobs()[0].desired == wish
    assert not queues.one.set_desired_state("another", DesiredJobState(stop=True))
    assert write_progress(queues.one, "a", number, JobProgress("failed", reason="it broke"))
    assert not queues.one.set_desired_state("a", DesiredJobState(stop=True)), "it has ended"
    again = queues.another.submit("a", {"n": 3})
    assert again == number + 1
    assert not queues.one.set_desired_state("a", DesiredJobState(stop=True), number)
    (job,) = queues.one.jobs()
    assert (job.spec, job.desired, job.progress) == ({"n": 3}, DesiredJobState(), JobProgress())
    assert queues.one.read_log("a") == []


def test_a_desired_state_is_written_though_others_write_too(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = queues.one.submit("a", {}) or 0
    assert queues.one.lead("r", {}, LONG_S)
    commit, stop = queues.another.store.commit, DesiredJobState(stop=True)
    writes: list[Callable[[], bool]] = [
        lambda: queues.one.set_desired_state("a", stop),
        lambda: write_progress(queues.one, "a", number, JobProgress("running")),
    ]

    def meanwhile(*transaction: Any) -> int:
        with monkeypatch.context() as undo:  # both queues may have one store
            undo.setattr(queues.another.store, "commit", commit)
            if writes:
                assert writes.pop()()
            return commit(*transaction)

    monkeypatch.setattr(queues.another.store, "commit", meanwhile)
    assert queues.another.set_desired_state("a", DesiredJobState(nodes=2))
    assert queues.one.jobs()[0].desired == DesiredJobState(2, stop=True), "a stop is final"
    writes[:] = [lambda: write_progress(queues.one, "a", number, JobProgress("succeeded"))]
    assert not queues.another.set_desired_state("a", DesiredJobState())
    assert queues.one.jobs()[0].desired == DesiredJobState(2, stop=True)


def test_one_runner_has_the_queue_until_its_time_is_over_or_it_resigns(queues: Queues) -> None:
    assert queues.one.runner() is None
    assert queues.one.lead("r1", {"slots": 2}, LONG_S)
    assert queues.one.lead("r1", {"slots": 3}, LONG_S)
    assert not queues.another.lead("r2", {}, LONG_S)
    runner = queues.another.runner()
    assert runner is not None
    assert (runner.runner_id, runner.facts) == ("r1", {"slots": 3})
    assert 0 < runner.expires_in_s <= LONG_S
    queues.another.resign("r2")
    assert not queues.another.lead("r2", {}, LONG_S)
    assert queues.one.lead("r1", {}, SHORT_S)
    queues.pass_s(SHORT_S + 0.01)
    assert queues.one.runner() is None
    assert queues.another.lead("r2", {}, LONG_S)
    assert not queues.one.lead("r1", {}, LONG_S)
    queues.another.resign("r2")
    assert queues.one.lead("r1", {}, LONG_S)


def test_only_the_runner_says_how_a_job_does_and_only_of_the_one_it_means(queues: Queues) -> None:
    number = queues.one.submit("a", {}) or 0
    progress = JobProgress("running", 2, 1, "one is starting", 17, failures=1, slots=(0, 3))
    assert not write_progress(queues.one, "a", number, progress), "nobody has the queue"
    assert not queues.one.append_log(of_queue(queues.one, "r"), "a", ["no"])
    assert queues.one.lead("r", {}, LONG_S)
    assert write_progress(queues.one, "a", number, progress)
    assert queues.another.jobs()[0].progress == progress
    assert not write_progress(queues.one, "a", number + 1, JobProgress())
    assert not write_progress(queues.one, "b", number, JobProgress())
    assert not write_progress(queues.another, "a", number, JobProgress(), "q")
    assert not queues.another.append_log(of_queue(queues.another, "q"), "a", ["no"])
    assert not queues.one.append_log(of_queue(queues.one, "r"), "b", ["no"])
    assert queues.one.lead("r", {}, SHORT_S)
    queues.pass_s(SHORT_S + 0.01)
    assert not write_progress(queues.one, "a", number, JobProgress())
    assert queues.another.jobs()[0].progress == progress


def test_of_ended_jobs_the_last_are_kept(queues: Queues) -> None:
    queues.one.lead("r", {}, 600.0)
    queues.one.submit("goes-on", {})
    for n in range(ENDED_KEPT + 3):
        number = queues.one.submit(f"j{n}", {}) or 0
        assert write_progress(queues.one, f"j{n}", number, JobProgress("succeeded"))
    assert queues.one.append_log(of_queue(queues.one, "r"), "j3", ["still there"])
    queues.one.submit("last", {})
    names = [job.name for job in queues.one.jobs()]
    assert (names[:2], names[-1], len(names)) == (["goes-on", "j3"], "last", ENDED_KEPT + 2)
    assert len(queues.one.read_log("j3")) == 1


def test_a_reservation_lives_as_long_as_it_is_prolonged(queues: Queues) -> None:
    first = queues.one.reserve("web", 1, 20.0)  # a wait may last longer than asked
    second = queues.another.reserve("api", 2, LONG_S)
    assert second > first
    web, api = queues.another.reservations()
    assert (web.name, web.slots, web.number) == ("web", 1, first)
    assert (api.name, api.slots, api.number) == ("api", 2, second)
    assert 0 < web.expires_in_s <= 20.0
    assert queues.one.reserve("web", 3, LONG_S) == first
    prolonged = queues.one.reservations()
    assert [one.slots for one in prolonged] == [3, 2]
    assert prolonged[0].expires_in_s > 20.0
    assert queues.one.reserve("web", 3, SHORT_S) == first
    queues.pass_s(SHORT_S + 0.01)
    assert [one.name for one in queues.one.reservations()] == ["api"]
    assert queues.one.reserve("web", 1, LONG_S) > second, "who comes again is a new one"
    queues.another.unreserve("api")
    queues.another.unreserve("nobody")
    assert [one.name for one in queues.one.reservations()] == ["web"]
    with pytest.raises(UsageError, match="1 to"):
        queues.one.reserve("web", 0, LONG_S)


def test_logs_and_events_are_read_after_an_id(queues: Queues) -> None:
    queues.one.submit("a", {})
    queues.one.lead("r", {}, 600.0)
    for n in range(5):
        assert queues.one.append_log(of_queue(queues.one, "r"), "a", [f"line {n}", "é"])
        queues.one.add_event({"kind": "k", "n": n})
    pieces = queues.another.read_log("a", count=2)
    assert [piece.body["lines"][0] for piece in pieces] == ["line 0", "line 1"]
    rest = queues.another.read_log("a", pieces[-1].entry_id)
    assert [piece.body["lines"][0] for piece in rest] == ["line 2", "line 3", "line 4"]
    events = queues.another.events(count=4)
    assert [event.body["n"] for event in events] == [0, 1, 2, 3]
    assert [event.body["n"] for event in queues.one.events(events[-1].entry_id)] == [4]
    assert queues.one.read_log("nobody") == []
    with pytest.raises(UsageError, match="id of an event"):
        queues.one.read_log("a", "yesterday")


@pytest.mark.system  # thousands of calls
def test_what_is_kept_is_bounded(queues: Queues) -> None:
    queues.one.submit("a", {})
    queues.one.lead("r", {}, 600.0)
    for n in range(PIECES_KEPT + 5):
        queues.one.append_log(of_queue(queues.one, "r"), "a", [str(n)])
    assert EVENTS_KEPT == PIECES_KEPT
    for n in range(EVENTS_KEPT + 5):
        queues.one.add_event({"n": n})
    pieces = queues.one.read_log("a", count=2 * PIECES_KEPT)
    assert [pieces[0].body["lines"], len(pieces)] == [["5"], PIECES_KEPT]
    events = queues.one.events(count=2 * EVENTS_KEPT)
    assert [events[0].body["n"], len(events)] == [5, EVENTS_KEPT]


def test_a_spec_that_is_not_json_is_refused(queues: Queues) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for spec in ({"x": object()}, {"x": deep}):
        with pytest.raises(UsageError, match="must be JSON"):
            queues.one.submit("a", spec)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a{b}", "x" * 65])
def test_a_name_that_cannot_stand_in_a_key_is_refused(queues: Queues, name: str) -> None:
    for call in (
        lambda: queues.one.submit(name, {}),
        lambda: queues.one.set_desired_state(name, DesiredJobState()),
        lambda: queues.one.reserve(name, 1, 1.0),
        lambda: queues.one.unreserve(name),
        lambda: queues.one.lead(name, {}, 1.0),
        lambda: queues.one.read_log(name),
    ):
        with pytest.raises(UsageError, match="begin with a letter or digit"):
            call()


def test_what_strangers_wrote_is_passed_over(redis: Redis, private_valkey_url: str) -> None:
    with closing(in_redis(private_valkey_url, "main")) as queue:
        assert queue.submit("a", {"n": 1}) == 1
        redis.hset("edl:{queue:main}:specs", mapping={"x y": "1 2 {}", "b": "nothing"})
        redis.hset("edl:{queue:main}:specs", mapping={"c": "² 2 {}", "d": f"1 {'9' * 5000} {{}}"})
        odd = '{"state":"odd","target":"2","slots":["x",1]}'
        redis.hset("edl:{queue:main}:progress", "a", f"0 {odd}")
        redis.zadd("edl:{queue:main}:reservations", {"web": 9e15})
        (job,) = queue.jobs()
        assert (job.name, job.progress) == ("a", JobProgress(slots=(1,)))
        assert queue.reservations() == []


def test_each_key_of_a_queue_has_an_expiry(redis: Redis, private_valkey_url: str) -> None:
    with closing(in_redis(private_valkey_url, "other")) as queue:
        number = queue.submit("a", {}) or 0
        assert queue.lead("r", {}, LONG_S)
        assert queue.set_desired_state("a", DesiredJobState(nodes=1))
        fence = of_queue(queue, "r", "other")
        assert queue.write_progress(fence, "a", number, JobProgress("running"))
        assert queue.append_log(fence, "a", ["x"])
        queue.add_event({})
        queue.reserve("web", 1, 1.0)
        found = set(redis.keys("*"))
        names = (
            "specs", "wishes", "progress", "runner", "events", "log:a",
            "reservations", "reservation:web",
        )  # fmt: skip
        assert found == {f"edl:{{queue:other}}:{name}" for name in names}
        assert all(0 < redis.pttl(key) <= KEEP_S * 1000 for key in found)


def test_a_queue_is_opened_by_its_url() -> None:
    away = open_queue("redis://127.0.0.1:1")
    with pytest.raises(RedisUnavailable, match="does not answer"):
        away.jobs()
    away.close()
    with pytest.raises(UsageError):
        open_queue("ftp://nobody")
    with pytest.raises(UsageError, match="name of a queue"):
        open_queue("redis://127.0.0.1:1", "no such")
