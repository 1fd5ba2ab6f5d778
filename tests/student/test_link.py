"""The connection of a supervisor and a rank: messages arrive, requests are answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from edl.errors import EdlError, GenerationSuperseded, WireError
from edl.proto.channel import Channel
from edl.student import words
from edl.student.link import RankLink, RankPort
from edl.student.settings import TrainSettings

SETTINGS = TrainSettings(spec="/job.py", job="job", nodes=(1, 1), epochs=3, teachers=("a:1",))
ORDER = words.Order(SETTINGS, 4, 1, 2, 1, "node", ("a:1", "b:2"), "/there", 3, ("x", "y"), 7)
SAID = (
    words.Ready(3, 1, 90),
    words.Progress(
        4, 1, 8, 16, {"total": 0.5}, {"accuracy": 0.1}, 0.1, 0.2, 80.0, 2, 100, "labels"
    ),
    words.Saved(4, 1, 0.001),
    words.Scaled(2, 3),
    words.Finished(9, {"accuracy": 1.0}),
    words.Left(9, False, "a peer"),
    words.Failed(5, 1, [1, 2], "ValueError: no", "Traceback", True),
)


@pytest.fixture
def ends() -> Iterator[tuple[RankPort, RankLink]]:
    port, fd = RankPort.pair()
    link = RankLink.attach(fd)
    yield port, link
    port.close()
    link.close()


def test_messages_arrive_as_they_were_sent(ends: tuple[RankPort, RankLink]) -> None:
    port, link = ends
    assert port.send(ORDER)
    assert link.order() == ORDER
    for word in SAID:
        assert link.tell(word)
    assert tuple(port.receive() for _ in SAID) == SAID
    assert words.from_supervisor(words.Leave().to_json()) == words.Leave()
    assert words.from_supervisor(words.Answer(3, [1, 2]).to_json()) == words.Answer(3, [1, 2])


def test_concurrent_requests_get_their_own_answers(ends: tuple[RankPort, RankLink]) -> None:
    port, link = ends
    port.send(ORDER)
    link.order()
    leased: dict[int, tuple[int, int] | None] = {}

    def lease(epoch: int) -> None:
        leased[epoch] = link.lease(epoch)

    askers = [threading.Thread(target=lease, args=(epoch,)) for epoch in range(5)]
    for asker in askers:
        asker.start()
    asks = [port.receive() for _ in askers]
    for ask in reversed(asks):
        assert isinstance(ask, words.Ask)
        port.answer(ask, None if ask.epoch == 3 else [ask.epoch, ask.epoch + 2])
    for asker in askers:
        asker.join(5)
    assert leased == {0: (0, 2), 1: (1, 3), 2: (2, 4), 3: None, 4: (4, 6)}
    link.done(2, 2, 4)  # nobody waits for its answer
    done = port.receive()
    assert isinstance(done, words.Ask)
    assert (done.what, done.epoch, done.start, done.stop) == ("done", 2, 2, 4)


def test_a_refusal_is_raised_as_the_same_error(ends: tuple[RankPort, RankLink]) -> None:
    port, link = ends
    port.send(ORDER)
    link.order()

    def refuse() -> None:
        ask = port.receive()
        assert isinstance(ask, words.Ask)
        port.refuse(ask, GenerationSuperseded("there is another world"))

    supervisor = threading.Thread(target=refuse)
    supervisor.start()
    with pytest.raises(GenerationSuperseded, match="another world"):
        link.fill(0, [(0, 4)])
    supervisor.join(5)


def test_a_request_ends_when_the_supervisor_dies(ends: tuple[RankPort, RankLink]) -> None:
    port, link = ends
    port.send(ORDER)
    link.order()
    threading.Timer(0.02, port.close).start()
    with pytest.raises(EdlError, match="supervisor was gone"):
        link.lease(0)
    assert link.lost


def test_malformed_messages_are_refused() -> None:
    for kind, meant in (
        ("leave", words.from_rank),
        ("ready", words.from_supervisor),
        ("x", words.from_rank),
    ):
        with pytest.raises(WireError):
            meant({"kind": kind})
    with pytest.raises(WireError):
        words.from_rank({"kind": "saved", "step": 3})
    port, fd = RankPort.pair()
    channel = Channel.attach(fd)
    channel.send("leave")
    with pytest.raises(WireError):
        port.receive()
    channel.close()
    port.close()
