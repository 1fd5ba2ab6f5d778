"""Spoilt results of the transport: what each lie does, and what the reader makes of it."""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import RetryableError, WireError
from edl.mesh.chaos.lies import LIES, Liar
from edl.proto.arena import Array
from edl.proto.clients import Answer, Request
from edl.proto.transport import frames
from edl.proto.transport.connection import Connection
from edl.proto.transport.frames import Description, Tensor
from edl.proto.transport.offer import REPLY_BYTES

ROWS, CLASSES = 4, 6
LABELS = np.arange(ROWS * CLASSES, dtype=np.float32).reshape(ROWS, CLASSES)
DESCRIPTION = Description(
    (Tensor("soft", "FP32", 2),), {"teacher_id": "t1", "incarnation": "1700000000001"}
)
PROOF = bytes(range(REPLY_BYTES))


def result(number: int, labels: Array = LABELS, *, described: bool = False) -> bytes:
    """A teacher's answer to a request, as it goes over the wire."""
    told = DESCRIPTION.to_bytes() if described else b""
    pieces = frames.result(number, {"soft": labels}, told, device_s=0.01, draining=False)
    return b"".join(bytes(one) for one in pieces)


REFUSED = frames.error(9, RetryableError("busy"))
#: What a teacher sends by one connection: only its first result has the description.
SAID = PROOF + result(1, described=True) + REFUSED + result(2) + frames.goodbye()


def heard(said: bytes, *numbers: int) -> dict[int, Answer]:
    """The answers that a reader takes from these frames. Raises WireError where they are none."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        ours.setblocking(False)
        connection = Connection(ours, "chaos", None)
        for number in numbers:
            connection.put(number, Request({"x": np.zeros((ROWS, 2), np.float32)}), 9.0, {})
        connection.send()
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        answers: dict[int, Answer] = {}
        with closing(connection), suppress(ConnectionError):
            while len(answers) < len(numbers):
                for one in connection.hear():
                    assert isinstance(one.outcome, Answer)
                    answers[one.number] = one.outcome
        return answers


def spoilt(kind: str, seed: int = 1, labels: Array = LABELS) -> Answer:
    liar = Liar(seed)
    liar.tell(kind)
    said = liar.connection()(PROOF + result(1, labels, described=True))
    return heard(said[REPLY_BYTES:], 1)[1]


def test_each_lie_spoils_an_answer_in_its_way() -> None:
    labels = spoilt("answer-nan").outputs["soft"]
    assert (np.isnan(labels).sum(), labels.shape) == (1, LABELS.shape)
    np.testing.assert_array_equal(spoilt("answer-shape").outputs["soft"], LABELS[1:])
    np.testing.assert_array_equal(
        spoilt("answer-other").outputs["soft"], np.roll(LABELS, -1, axis=0)
    )
    told = spoilt("answer-instance").parameters
    assert (told["incarnation"], told["teacher_id"]) == ("1700000000002", "t1")


def test_a_single_sample_does_not_keep_its_labels_either() -> None:
    labels = spoilt("answer-other", labels=LABELS[:1]).outputs["soft"]
    np.testing.assert_array_equal(labels, np.roll(LABELS[:1], -1, axis=1))


def test_a_flipped_bit_never_makes_a_wrong_label_that_looks_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, right = Random(), result(1, described=True)
    # All but the labels and the eight bytes of the number.
    bits = 8 * (len(right) - LABELS.nbytes - 8)
    fates = set()
    for bit in range(bits):
        monkeypatch.setattr(rng, "randrange", lambda count, bit=bit: bit if count == bits else None)
        liar = Liar(0)
        monkeypatch.setattr(liar, "_rng", rng)
        liar.tell("answer-flip")
        said = liar.connection()(PROOF + right)[REPLY_BYTES:]
        assert sum((a ^ b).bit_count() for a, b in zip(said, right, strict=True)) == 1
        try:
            answers = heard(said, 1)
        except WireError:
            fates.add("unreadable")
            continue
        fates.add("readable" if answers else "never whole")
        for answer in answers.values():
            for labels in answer.outputs.values():
                if labels.shape == LABELS.shape and labels.dtype == LABELS.dtype:
                    np.testing.assert_array_equal(labels, LABELS)
    assert fates == {"unreadable", "readable", "never whole"}


def test_a_liar_lies_only_while_it_is_told_to() -> None:
    liar = Liar(seed=1)
    through = liar.connection()
    assert through(PROOF + result(1, described=True)) == PROOF + result(1, described=True)
    liar.tell("answer-instance")
    spoilt = through(result(2))
    assert liar.spoilt == 1
    liar.tell(None)
    honest = through(result(3)) + through(result(4))
    assert liar.spoilt == 1
    answers = heard(result(1, described=True) + spoilt + honest, 1, 2, 3, 4)
    told = [answers[number].parameters["incarnation"] for number in (1, 2, 3, 4)]
    assert told == ["1700000000001", "1700000000002", "1700000000001", "1700000000001"]


@given(st.sampled_from([None, *LIES]), st.lists(st.integers(1, 40)))
def test_frames_come_through_whole_however_they_arrive(kind: str | None, sizes: list[int]) -> None:
    def sent(pieces: list[bytes]) -> bytes:
        liar = Liar(seed=1)
        liar.tell(kind)
        through = liar.connection()
        return b"".join(through(one) for one in pieces)

    pieces, rest = [], SAID
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert sent([*pieces, rest]) == sent([SAID])
    assert (sent([SAID]) == SAID) == (kind is None)


@pytest.mark.parametrize("kind", sorted(LIES))
def test_only_results_are_spoilt(kind: str) -> None:
    liar = Liar(seed=1)
    liar.tell(kind)
    said = PROOF + REFUSED + frames.goodbye()
    assert liar.connection()(said) == said
    assert liar.spoilt == 0
