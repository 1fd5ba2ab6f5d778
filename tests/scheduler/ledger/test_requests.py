"""Which rows go into a request, and to which teacher."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.ledger.state import Piece, count, cut, put_back, runs

from .driver import after, answer, queued, rows_sent, sends, take, whole


class TestMissingRows:
    def test_missing_rows_are_one_request(self) -> None:
        ledger = Ledger()
        out = after(ledger, ev.TeacherJoined("a", 1), ev.Queued(0, 100, 10, ((0, 2), (5, 10))))
        assert out == [ev.Send(1, "a", (ev.Span(0, 0, 2), ev.Span(0, 5, 10)), 1)]
        out = after(ledger, answer("a", 1))
        assert out == [ev.Accept(1, (ev.Span(0, 0, 2), ev.Span(0, 5, 10))), ev.Labelled(0)]
        assert ledger.volume_bytes == 110, "the labels of all rows are held"
        assert ledger.labelled_by(0) == ((ev.Span(0, 0, 2), "a"), (ev.Span(0, 5, 10), "a"))
        ledger = Ledger()
        assert after(ledger, ev.Queued(0, 100, 10, (), row_nbytes=3)) == [ev.Labelled(0)]
        assert (ledger.volume_bytes, ledger.unlabelled, ledger.sent) == (130, 0, 0)
        ledger = Ledger()
        assert after(ledger, *queued(0), ev.Queued(1, 100, 10, ())) == [ev.Labelled(1)]

    @pytest.mark.parametrize("missing", [((0, 11),), ((3, 3),), ((5, 7), (6, 8)), ((-1, 2),)])
    def test_invalid_rows_are_refused(self, missing: tuple[tuple[int, int], ...]) -> None:
        with pytest.raises(ValueError, match="lie within 10 rows"):
            Ledger().handle(ev.Queued(0, 100, 10, missing))

    @pytest.mark.parametrize("missing", [None, ()])
    def test_empty_batch_is_refused(self, missing: tuple[tuple[int, int], ...] | None) -> None:
        with pytest.raises(ValueError, match="at least 1 row, not 0"):
            Ledger().handle(ev.Queued(0, 100, 0, missing))


class TestCutting:
    def test_batch_is_cut_and_shared_by_teachers(self) -> None:
        ledger = Ledger()
        out = after(ledger, ev.TeacherJoined("a", 3, most_rows=4), *queued(0))
        assert rows_sent(out) == [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10)]]
        assert after(ledger, answer("a", 3), answer("a", 1)) == [
            ev.Accept(3, (ev.Span(0, 8, 10),)),
            ev.Accept(1, (ev.Span(0, 0, 4),)),
        ]
        assert (ledger.volume_bytes, ledger.unlabelled, ledger.queued) == (0, 1, 0)
        assert after(ledger, answer("a", 2))[-1] == ev.Labelled(0)
        ledger = Ledger()
        joined = (ev.TeacherJoined(name, 1, most_rows=4) for name in "abc")
        out = after(ledger, *joined, *queued(0))
        assert [send.teacher for send in sends(out)] == ["a", "b", "c"]
        out = after(ledger, answer("b", 2), answer("c", 3), answer("a", 1), *take(0))
        assert out[-1] == ev.Labelled(0)


class TestJoining:
    def test_batches_are_joined_up_to_the_size(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0, 1, 2))
        out = after(ledger, ev.TeacherJoined("a", 2, most_rows=16))
        assert rows_sent(out) == [[(0, 0, 10), (1, 0, 6)], [(1, 6, 10), (2, 0, 10)]]
        assert after(ledger, answer("a", 2)) == [
            ev.Accept(2, (ev.Span(1, 6, 10), ev.Span(2, 0, 10))),
            ev.Labelled(2),
        ]
        assert after(ledger, answer("a", 1))[1:] == [ev.Labelled(0), ev.Labelled(1)]
        ledger = Ledger()
        out = after(ledger, ev.TeacherJoined("a", 2, most_rows=64), *queued(0, 1, 2))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 10)]]
        ledger = Ledger()
        after(ledger, *queued(0, 1))
        assert rows_sent(after(ledger, ev.TeacherJoined("a", 1))) == [[(0, 0, 10)]]
        ledger = Ledger()
        after(ledger, *queued(0), ev.Queued(1, 100, 10, kind=1), *queued(2))
        out = after(ledger, ev.TeacherJoined("a", 3, most_rows=30))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 10)], [(2, 0, 10)]]

    def test_request_size(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0, 1, 2), ev.RequestSizeChanged("a", 20))
        out = after(ledger, answer("a", 1))
        assert rows_sent(out) == [[(1, 0, 10), (2, 0, 10)]]
        assert after(ledger, ev.RequestSizeChanged("x", 3)) == []
        with pytest.raises(ValueError, match="requests of at least 1 row, not 0"):
            ev.TeacherJoined("a", 1, most_rows=0)
        with pytest.raises(ValueError, match="requests of at least 1 row, not 0"):
            ev.RequestSizeChanged("a", 0)


class TestRefusedTogether:
    def test_later_batches_are_joined(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0, 1), ev.TeacherJoined("a", 1, most_rows=20), *queued(2, 3))
        out = after(ledger, ev.Refused("a", 1, "bad"), answer("a", 2), answer("a", 3))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 10)], [(2, 0, 10), (3, 0, 10)]]

    def test_unwanted_and_too_large_requests(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0), ev.TeacherJoined("a", 2, most_rows=5))
        after(ledger, answer("a", 1), answer("a", 2), *queued(1), ev.Refused("a", 3, "bad"))
        assert (ledger.unlabelled, ledger.in_flight) == (0, 1)
        assert after(ledger, answer("a", 4)) == [ev.Discard(4, "a")]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), *queued(0), ev.RequestSizeChanged("a", 5))
        assert rows_sent(after(ledger, ev.Refused("a", 1, "too large"))) == [[(0, 0, 5)]]


ROWS = 40


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """Disjoint pieces in any order, some of them adjacent."""
    ends = sorted(draw(st.sets(st.integers(0, ROWS), max_size=10)))
    keep = draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends)))
    made = [
        (start, stop, stop % 3)
        for start, stop, is_kept in zip(ends, ends[1:], keep, strict=False)
        if is_kept
    ]
    return draw(st.permutations(made))


def rows_of(of: list[Piece]) -> list[int]:
    return [row for start, stop, _ in of for row in range(start, stop)]


class TestPieces:
    @given(pieces(), st.integers(1, ROWS))
    def test_cut_takes_the_first_rows(self, drawn: list[Piece], most_rows: int) -> None:
        waiting: list[Piece] = []
        for piece in drawn:
            put_back(waiting, piece)
        rows = rows_of(waiting)
        assert rows == sorted(rows_of(drawn))
        taken = cut(waiting, most_rows)
        assert rows_of(taken) == rows[:most_rows]
        assert rows_of(waiting) == rows[most_rows:]
        assert count(taken) == min(most_rows, len(rows))

    @given(pieces())
    def test_runs_are_as_few_as_possible(self, drawn: list[Piece]) -> None:
        joined = runs(sorted(drawn))
        assert [row for start, stop in joined for row in range(start, stop)] == rows_of(
            sorted(drawn)
        )
        assert all(stop < start for (_, stop), (start, _) in pairwise(joined))

    def test_rows_keep_their_number_of_attempts(self) -> None:
        waiting = [(0, 4, 0), (4, 9, 2)]
        assert cut(waiting, 6) == [(0, 4, 0), (4, 6, 2)]
        assert waiting == [(6, 9, 2)]


def where(ledger: Ledger, *batches: int, rows: int = 10) -> list[str]:
    return [send.teacher for send in sends(after(ledger, *queued(*batches, rows=rows)))]


class TestPlacement:
    def test_first_to_finish_gets_the_rows(self) -> None:
        ledger = Ledger()
        after(
            ledger, ev.TeacherJoined("slow", 4, None, 0.03), ev.TeacherJoined("fast", 4, None, 0.01)
        )
        assert where(ledger, 0, 1, 2, 3, 4) == ["fast", "fast", "slow", "fast", "fast"]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 4, None, 0.01), ev.TeacherJoined("b", 4, None, 0.01))
        assert where(ledger, 0, rows=30) == ["a"]
        assert where(ledger, 1, 2, 3, 4) == ["b", "b", "b", "a"]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1, None, 0.01), ev.TeacherJoined("b", 1, 5, 0.015))
        assert where(ledger, 0) == ["b", "a"]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 2), ev.TeacherJoined("b", 2))
        assert where(ledger, 0, 1, 2, 3) == ["a", "b", "a", "b"]

    def test_speeds_follow_the_answers(self) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1), ev.TeacherJoined("b", 1), *queued(0, 1))
        after(ledger, answer("a", 1, device_s=0.5), answer("b", 2, device_s=0.1))
        assert where(ledger, 2) == ["b"]
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1, None, 0.01), ev.TeacherJoined("b", 1, None, 0.02))
        for request in range(1, 9):
            after(ledger, *queued(request))
            teacher = "a" if ledger.in_flight_at("a") else "b"
            after(ledger, answer(teacher, request, device_s=0.5 if teacher == "a" else 0.2))
        assert where(ledger, 9) == ["b"]

    @pytest.mark.parametrize("unknown", [0.0, -1.0])
    def test_answers_without_a_time_are_ignored(self, unknown: float) -> None:
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 1, None, 0.03), ev.TeacherJoined("b", 1, None, 0.02))
        after(ledger, *queued(0, 1), answer("a", 2, unknown), answer("b", 1, 0.2))
        assert where(ledger, 2) == ["b"]

    def test_windows(self) -> None:
        with pytest.raises(ValueError, match="window of at least 1"):
            ev.TeacherJoined("a", 0)
        with pytest.raises(ValueError, match="window of at least 1"):
            ev.WindowChanged("a", 0)
        ledger = Ledger()
        after(ledger, ev.TeacherJoined("a", 2), *queued(0, 1, 2, 3))
        out = after(ledger, ev.WindowChanged("a", 1), answer("a", 1))
        assert out == [ev.Accept(1, whole(0)), ev.Labelled(0)]
        assert after(ledger, answer("a", 2))[-1] == ev.Send(3, "a", whole(2), 1)
