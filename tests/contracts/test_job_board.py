"""One contract, two job boards: nodes, generations, reports, and the shards of an epoch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from edl.coordinator.jobs import JobBoard, open_job_board
from edl.coordinator.jobs.schema import EVENTS_KEPT, KEEP_S
from edl.coordinator.store.redis_store import RedisStore
from edl.runtime.errors import GenerationSuperseded, RedisUnavailable, UsageError
from edl.scheduler.students.shards import Range, Ranges, cut
from edl.tests.contracts.conftest import LONG_S, SHORT_S, Hold, Holds
from edl.tests.stores import of_job
from edl.tests.waiting import DEADLINE_S, wait_until

Boards = Holds[JobBoard]
JOB = "digits"


def begin(board: JobBoard, number: int = 1, job: str = JOB) -> None:
    """Have node "a" publish a generation."""
    board.join(job, "a", {}, LONG_S)
    assert board.lead(job, "a", LONG_S)
    assert board.publish(job, of_job(board, job, "a"), number, {"why": "a test"})


def board_in(url: str) -> closing[JobBoard]:
    return closing(JobBoard(RedisStore(url, timeout_s=DEADLINE_S)))


@pytest.fixture
def boards(hold: Hold) -> Boards:
    return hold(JobBoard)


@pytest.fixture
def begun(boards: Boards) -> Boards:
    """Boards with generation 1."""
    begin(boards.one)
    return boards


def test_a_node_lives_until_its_deadline_which_beats_prolong(boards: Boards) -> None:
    def prolonged() -> bool:
        assert boards.one.beat(JOB, "a", LONG_S)
        return boards.another.nodes(JOB)[0].expires_in_s > LONG_S - 0.1

    assert not boards.one.beat(JOB, "a", LONG_S, {"n": 1})
    boards.one.join(JOB, "a", {"address": "h:1", "ranks": 2}, LONG_S)
    (node,) = boards.another.nodes(JOB)
    assert (node.node_id, node.facts) == ("a", {"address": "h:1", "ranks": 2})
    assert 0 < node.expires_in_s <= LONG_S
    boards.pass_s(0.2)
    wait_until(prolonged)  # once no process was suspended between its two calls
    assert boards.another.nodes(JOB)[0].facts == {"address": "h:1", "ranks": 2}
    assert boards.one.beat(JOB, "a", LONG_S, {"m": "two words, é"})
    assert boards.another.nodes(JOB)[0].facts == {"m": "two words, é"}
    boards.one.join(JOB, "a", {}, SHORT_S)
    boards.pass_s(SHORT_S + 0.01)
    assert not boards.one.beat(JOB, "a", LONG_S), "no beat wakes a dead node"
    assert boards.another.nodes(JOB) == []


def test_nodes_come_in_the_order_in_which_they_joined(boards: Boards) -> None:
    for name in ("c", "a", "b", "c"):
        boards.one.join(JOB, name, {}, LONG_S)
    nodes = boards.another.nodes(JOB)
    assert [node.node_id for node in nodes] == ["a", "b", "c"]
    numbers = [node.joined for node in nodes]
    assert numbers == sorted(set(numbers))
    boards.one.leave(JOB, "a")
    boards.one.leave(JOB, "never-there")
    assert [node.node_id for node in boards.another.nodes(JOB)] == ["b", "c"]


def test_jobs_do_not_see_each_other(boards: Boards) -> None:
    begin(boards.one, job="one")
    boards.one.join("two", "x", {}, LONG_S)
    assert [node.node_id for node in boards.one.nodes("one")] == ["a"]
    assert boards.one.generation("two") is None
    assert boards.another.jobs() == ["one", "two"]
    assert boards.another.nodes("three") == []
    assert boards.another.jobs() == ["one", "two"]  # who looks makes none


def test_one_node_leads_until_its_time_is_over_or_it_resigns(boards: Boards) -> None:
    assert boards.one.lead(JOB, "a", LONG_S)
    assert not boards.another.lead(JOB, "b", LONG_S)
    boards.another.resign(JOB, "b")
    assert not boards.another.lead(JOB, "b", LONG_S)
    assert boards.one.lead(JOB, "a", SHORT_S)
    boards.pass_s(SHORT_S + 0.01)
    assert boards.another.lead(JOB, "b", LONG_S)
    assert not boards.one.lead(JOB, "a", LONG_S)
    boards.another.resign(JOB, "b")
    assert boards.one.lead(JOB, "a", LONG_S)
    boards.one.leave(JOB, "a")
    assert boards.another.lead(JOB, "b", LONG_S)


def test_only_the_leader_publishes_and_only_a_greater_number(boards: Boards) -> None:
    assert boards.one.generation(JOB) is None
    assert not boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 1, {})
    begin(boards.one, 7)  # where none is known any number may begin
    assert not boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 7, {"twice": 1})
    assert not boards.another.publish(JOB, of_job(boards.another, JOB, "b"), 8, {})
    record = boards.another.generation(JOB)
    assert record is not None
    assert (record.number, record.body) == (7, {"why": "a test"})
    assert record.at_ms > 1_600_000_000_000
    assert boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 8, {})
    assert not boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 0, {})
    # Nodes that know a newer generation overrule a board that returned with older data.
    for number in (11, 13):
        assert boards.one.finish(JOB, of_job(boards.one, JOB, "a"), number, {"of": number})
        assert boards.another.outcome(JOB) == {"of": number}
    history = ({"not": "this"}, {"n": 3})
    assert boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 15, {}, history)
    record = boards.another.generation(JOB)
    assert record is not None
    assert (record.number, record.history, boards.one.outcome(JOB)) == (15, {"n": 3}, None)
    assert boards.one.lead(JOB, "a", SHORT_S)
    boards.pass_s(SHORT_S + 0.01)
    assert not boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 16, {}), "its time is over"


def test_a_history_is_replaced_by_who_knows_it_in_the_name_of_the_current_generation(
    boards: Boards,
) -> None:
    def history() -> Any:
        record = boards.another.generation(JOB)
        assert record is not None
        return record.history

    with pytest.raises(GenerationSuperseded, match="there is none now"):
        boards.one.replace_history(JOB, 1, {}, {"n": 1})
    begin(boards.one)
    assert history() == {}
    assert not boards.one.replace_history(JOB, 1, {"n": 0}, {"n": 1})
    assert boards.one.replace_history(JOB, 1, {}, {"n": 1, "names": ["a", "é"]})
    assert not boards.another.replace_history(JOB, 1, {}, {"n": 2})
    assert history() == {"n": 1, "names": ["a", "é"]}
    assert not boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 2, {}, ({}, {"n": 3})), (
        "a save was faster"
    )
    assert boards.one.publish(JOB, of_job(boards.one, JOB, "a"), 2, {}, (history(), {"n": 3}))
    with pytest.raises(GenerationSuperseded, match="generation 2 is"):
        boards.another.replace_history(JOB, 1, {"n": 3}, {"n": 4})
    begin(boards.one, 3)
    assert history() == {"n": 3}, "who does not speak of it leaves it"


def test_reports_are_those_of_the_current_ranks(boards: Boards) -> None:
    assert boards.one.reports(JOB) == []
    assert not boards.one.report(JOB, 1, 0, {})
    begin(boards.one)
    for rank in (10, 2):
        assert boards.one.report(JOB, 1, rank, {"step": rank, "why": "a b"})
    assert boards.one.report(JOB, 1, 2, {"step": 3})
    told = boards.another.reports(JOB)
    assert [(one.generation, one.rank) for one in told] == [(1, 2), (1, 10)]
    assert [one.facts for one in told] == [{"step": 3}, {"step": 10, "why": "a b"}]
    assert all(one.at_ms > 1_600_000_000_000 for one in told)


def test_events_are_read_after_an_id(boards: Boards) -> None:
    assert boards.one.events(JOB) == []
    ids = [boards.one.add_event(JOB, {"number": number}) for number in range(5)]
    assert [event.body["number"] for event in boards.another.events(JOB)] == [0, 1, 2, 3, 4]
    assert [event.entry_id for event in boards.another.events(JOB, count=2)] == ids[:2]
    assert [event.body["number"] for event in boards.another.events(JOB, ids[1], 2)] == [2, 3]
    assert boards.another.events(JOB, ids[-1]) == []
    with pytest.raises(UsageError):
        boards.one.events(JOB, "yesterday")


@pytest.mark.system  # thousands of calls
def test_latest_events_are_kept(boards: Boards) -> None:
    for number in range(EVENTS_KEPT + 5):
        boards.one.add_event(JOB, {"number": number})
    kept = boards.one.events(JOB, count=2 * EVENTS_KEPT)
    assert [event.body["number"] for event in kept] == list(range(5, EVENTS_KEPT + 5))


def test_only_the_leader_of_the_current_generation_ends_a_job(begun: Boards) -> None:
    over = {"kind": "finished"}
    assert not begun.another.finish(JOB, of_job(begun.another, JOB, "b"), 1, over), "it never led"
    assert begun.one.lead(JOB, "a", SHORT_S)
    begun.pass_s(SHORT_S + 0.01)
    assert not begun.one.finish(JOB, of_job(begun.one, JOB, "a"), 1, over), "its time is over"
    begun.another.join(JOB, "b", {}, LONG_S)
    assert begun.another.lead(JOB, "b", LONG_S)
    assert not begun.one.finish(JOB, of_job(begun.one, JOB, "a"), 1, over), "another one leads"
    assert begun.another.publish(JOB, of_job(begun.another, JOB, "b"), 2, {})
    assert not begun.another.finish(JOB, of_job(begun.another, JOB, "b"), 1, over), (
        "that generation is over"
    )
    assert begun.one.outcome(JOB) is None
    assert begun.another.finish(JOB, of_job(begun.another, JOB, "b"), 2, over)


def test_job_ends_once_and_restarts_when_a_node_joins_an_empty_one(begun: Boards) -> None:
    record = begun.one.generation(JOB)
    assert record is not None
    assert begun.one.outcome(JOB) is None
    assert begun.one.finish(JOB, of_job(begun.one, JOB, "a"), 1, {"finished": True})
    assert not begun.another.finish(JOB, of_job(begun.another, JOB, "a"), 1, {"finished": False})
    begun.another.join(JOB, "b", {}, LONG_S)  # "a" is there: still the same run
    assert begun.another.outcome(JOB) == {"finished": True}
    begun.one.leave(JOB, "a")
    begun.another.leave(JOB, "b")
    assert begun.another.outcome(JOB) == {"finished": True}
    begun.another.join(JOB, "b", {}, LONG_S, record.number)
    assert begun.one.outcome(JOB) == {"finished": True}, "it has missed the end of this run"
    begun.another.leave(JOB, "b")
    begun.another.join(JOB, "b", {}, LONG_S, record.number + 1)
    assert begun.one.outcome(JOB) is None, "that was a run before the one that it has seen"
    assert begun.one.lead(JOB, "b", LONG_S)
    assert begun.one.finish(JOB, of_job(begun.one, JOB, "b"), 1, {"finished": True})
    begun.another.leave(JOB, "b")
    begun.another.join(JOB, "b", {}, LONG_S)
    assert begun.another.outcome(JOB) is None


@pytest.mark.parametrize("name", ["", "a b", "{x}", "x" * 129, "é"])
def test_names_that_could_not_stand_in_a_key_are_refused(boards: Boards, name: str) -> None:
    for job in (name, "a:b"):
        with pytest.raises(UsageError, match="name of a job"):
            boards.one.join(job, "a", {}, 1.0)
        with pytest.raises(UsageError, match="name of a job"):
            boards.one.nodes(job)
    with pytest.raises(UsageError, match="id of a node"):
        boards.one.join(JOB, name + "}" * 80, {}, 1.0)
    assert boards.one.jobs() == []


def test_what_is_no_json_is_refused(boards: Boards) -> None:
    with pytest.raises(UsageError, match="JSON"):
        boards.one.join(JOB, "a", {"what": object()}, 1.0)
    with pytest.raises(UsageError, match="more than 1 MiB"):
        boards.one.add_event(JOB, {"text": "x" * (2 << 20)})
    for ttl_s in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(UsageError, match="time to live"):
            boards.one.join(JOB, "a", {}, ttl_s)


def test_every_key_expires_and_lies_in_one_slot(redis: Redis, private_valkey_url: str) -> None:
    with board_in(private_valkey_url) as board:
        begin(board)
        board.fill(JOB, 1, 0, cut(Ranges.of([(0, 9)]), 3))
        for rank in range(2):
            assert board.lease(JOB, 1, 0, rank, 1)
        assert redis.hlen(f"edl:{{job:{JOB}}}:held") == 2, "shards leave nothing behind"
        board.report(JOB, 1, 0, {})
        board.add_event(JOB, {})
        assert board.finish(JOB, of_job(board, JOB, "a"), 1, {})
        names: Any = redis.keys("*")
        assert len(names) == 10  # all of keys.py
        for name in names:
            assert 0 < redis.pttl(name) <= KEEP_S * 1000, name
            assert name == "edl:jobs" or name.startswith("edl:{job:digits}:"), name


def test_a_url_names_the_board() -> None:
    assert open_job_board(None).nodes(JOB) == []
    board = open_job_board("redis://127.0.0.1:1")
    with pytest.raises(RedisUnavailable, match="does not answer"):
        board.beat(JOB, "a", LONG_S)
    board.close()


def test_foreign_contents_are_skipped_or_named(redis: Redis, private_valkey_url: str) -> None:
    with board_in(private_valkey_url) as board:
        begin(board)
        board.report(JOB, 1, 0, {})
        prefix = "edl:{job:digits}:"
        redis.hset(f"{prefix}node:a", "facts", "nonsense")
        redis.hset(f"{prefix}reports", mapping={"x": "y", "1": "no", "2": "{}", "2.at_ms": "x"})
        redis.hset(f"{prefix}reports", mapping={"²": "{}", "².at_ms": "1", "3": "", "3.at_ms": "²"})
        redis.zadd(f"{prefix}nodes", {"b": 9e15, "bad id": 9e15})
        redis.xadd(f"{prefix}events", {"other": "1"})
        redis.zadd("edl:jobs", {"{bad}": 9e15})
        assert [(node.node_id, node.facts) for node in board.nodes(JOB)] == [("a", {})]
        assert [one.rank for one in board.reports(JOB)] == [0]
        assert [event.body for event in board.events(JOB)] == [{}]
        assert board.jobs() == [JOB]
        redis.hdel(f"{prefix}generation", "number")
        assert [one.rank for one in board.reports(JOB)] == [0]
        redis.hset(f"{prefix}generation", "number", "many")
        with pytest.raises(RedisUnavailable, match="is invalid: another program"):
            board.generation(JOB)
        with pytest.raises(GenerationSuperseded):
            board.fill(JOB, 1, 0, [(0, 1)])
        redis.hset(f"{prefix}generation", "number", "1")
        redis.set(f"{prefix}shards", "text")
        with pytest.raises(RedisUnavailable, match="another program"):
            board.fill(JOB, 1, 0, [(0, 1)])


def test_the_first_to_fill_an_epoch_wins_and_its_shards_are_leased_in_order(begun: Boards) -> None:
    shards = cut(Ranges.of([(0, 10), (12, 19)]), 4)
    assert begun.one.fill(JOB, 1, 3, shards)
    assert not begun.another.fill(JOB, 1, 3, [(0, 2), (2, 5)])
    leased: list[Range] = []
    while (shard := begun.another.lease(JOB, 1, 3, len(leased) % 2)) is not None:
        leased.append(shard)
    assert leased == shards == [(0, 4), (4, 8), (8, 10), (12, 16), (16, 19)]
    assert not begun.another.fill(JOB, 1, 3, [(0, 5)])  # nor when all of it is leased
    assert begun.another.lease(JOB, 1, 3, 1) is None
    assert begun.one.fill(JOB, 1, 4, [])  # an epoch of which nothing is left
    assert not begun.one.fill(JOB, 1, 4, [(0, 1)])


def test_epochs_of_thousands_of_shards_lie_beside_each_other(begun: Boards) -> None:
    shards = cut(Ranges.of([(0, 1_280_000)]), 64)
    assert len(shards) == 20_000
    begun.one.fill(JOB, 1, 1, shards)  # False if it is slow: the client has sent it again
    begun.one.fill(JOB, 1, 0, [(4_000_000_000, 4_000_000_009)])
    assert begun.one.lease(JOB, 1, 0, 0) == (4_000_000_000, 4_000_000_009)
    assert begun.one.lease(JOB, 1, 0, 0) is None
    assert [begun.one.lease(JOB, 1, 1, 0) for _ in range(3)] == shards[:3]


def test_a_question_that_is_asked_again_is_answered_by_the_same_shard_or_part(
    begun: Boards,
) -> None:
    begun.one.fill(JOB, 1, 0, cut(Ranges.of([(0, 12)]), 3))
    assert begun.one.lease(JOB, 1, 0, 0, 1) == (0, 3)
    assert begun.another.lease(JOB, 1, 0, 0, 1) == (0, 3), "its answer may have been lost"
    assert begun.one.lease(JOB, 1, 0, 1, 1) == (3, 6), "of another rank"
    assert begun.one.lease(JOB, 1, 0, 0, 2) == (6, 9)
    assert begun.another.lease(JOB, 1, 0, 0, 1) == (6, 9), "it comes late, and nobody listens"
    for epoch, rank, shard in ((0, 1, 3), (0, 2, 2), (1, 1, 2)):  # the board lost what came before
        with pytest.raises(GenerationSuperseded, match="older data"):
            begun.one.lease(JOB, 1, epoch, rank, shard)
    assert begun.one.lease(JOB, 1, 0, 1, 2) == (9, 12)
    assert begun.one.lease(JOB, 1, 0, 1, 3) is None
    begun.one.fill(JOB, 1, 2, [(0, 10), (10, 12)])
    assert begun.one.lease(JOB, 1, 2, 3, 1, 4) == (0, 4)
    assert begun.another.lease(JOB, 1, 2, 3, 1, 4) == (0, 4)
    assert begun.another.lease(JOB, 1, 2, 4, 1, 5) == (4, 9)
    assert begun.one.lease(JOB, 1, 2, 3, 2, 5) == (9, 10)
    assert begun.one.lease(JOB, 1, 2, 3, 3) == (10, 12)
    assert begun.one.lease(JOB, 1, 2, 3, 4, 1) is None


def test_a_generation_that_is_over_gets_and_gives_nothing(begun: Boards) -> None:
    begun.one.fill(JOB, 1, 0, cut(Ranges.of([(0, 9)]), 3))
    begun.one.lease(JOB, 1, 0, 0, 1)
    begun.one.report(JOB, 1, 0, {"step": 1})
    assert begun.another.publish(JOB, of_job(begun.another, JOB, "a"), 2, {})
    for old in (lambda: begun.one.fill(JOB, 1, 0, [(0, 3)]), lambda: begun.one.lease(JOB, 1, 0, 0)):
        with pytest.raises(GenerationSuperseded, match=r"generation 1 .*\(generation 2 is"):
            old()
    assert not begun.one.report(JOB, 1, 0, {"step": 2})
    assert begun.one.reports(JOB) == []
    # Nothing of the old one is left in the new one.
    assert begun.one.fill(JOB, 2, 0, [(0, 9)])
    assert begun.one.lease(JOB, 2, 0, 0, 1) == (0, 9), "its questions begin anew"


def test_what_cannot_be_filled_or_leased_is_refused(boards: Boards) -> None:
    with pytest.raises(GenerationSuperseded, match="there is none now"):
        boards.one.lease(JOB, 1, 0, 0)
    begin(boards.one)
    for wrong in ([(0, 3), (2, 5)], [(3, 3)], [(5, 4)], [(0, 1 << 33)]):
        with pytest.raises(UsageError, match="shards must be"):
            boards.one.fill(JOB, 1, 0, wrong)
    with pytest.raises(UsageError, match="an epoch must be"):
        boards.one.lease(JOB, 1, -1, 0)


def test_ranks_that_lease_at_the_same_time_share_nothing(begun: Boards) -> None:
    shards = cut(Ranges.of([(0, 600)]), 2)

    def take(rank: int) -> list[Range]:
        board = (begun.one, begun.another)[rank % 2]
        board.fill(JOB, 1, 0, shards)
        taken = []
        while (shard := board.lease(JOB, 1, 0, rank)) is not None:
            taken.append(shard)
        return taken

    with ThreadPoolExecutor(4) as ranks:
        taken = list(ranks.map(take, range(4)))
    assert sorted(shard for one in taken for shard in one) == shards
