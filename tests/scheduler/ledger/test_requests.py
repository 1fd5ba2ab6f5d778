"""What requests are made of: the rows that one batch lacks, or rows cut and joined to a size."""

from __future__ import annotations

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Accept,
    Deliver,
    Discard,
    Failed,
    Poison,
    Queued,
    Refused,
    RequestSizeChanged,
    Resumed,
    Send,
    Span,
    Taken,
    TeacherJoined,
    TeacherLost,
)

from .telling import after, answer, queued, rows_sent, sends


class TestOnlyWhatIsMissing:
    def test_the_missing_rows_are_one_request(self) -> None:
        ledger = Ledger()
        out = after(ledger, TeacherJoined("a", 1), Queued(0, 100, 10, ((0, 2), (5, 10))))
        assert out == [Send(1, "a", (Span(0, 0, 2), Span(0, 5, 10)), 1)]
        out = after(ledger, answer("a", 1))
        assert out == [Accept(1, (Span(0, 0, 2), Span(0, 5, 10))), Deliver(0)]
        assert ledger.volume_bytes == 110, "the labels of all rows are held"
        assert ledger.labelled_by(0) == ((Span(0, 0, 2), "a"), (Span(0, 5, 10), "a"))

    def test_with_nothing_missing_it_is_labelled_at_once(self) -> None:
        ledger = Ledger()
        assert after(ledger, Queued(0, 100, 10, (), row_nbytes=3)) == [Deliver(0)]
        assert (ledger.volume_bytes, ledger.unlabelled, ledger.sent) == (130, 0, 0)

    def test_and_waits_for_the_earlier_ones(self) -> None:
        ledger = Ledger()
        assert after(ledger, *queued(0), Queued(1, 100, 10, ())) == []
        assert after(ledger, TeacherJoined("a", 1), answer("a", 1))[-2:] == [Deliver(0), Deliver(1)]

    @pytest.mark.parametrize("missing", [((0, 11),), ((3, 3),), ((5, 7), (6, 8)), ((-1, 2),)])
    def test_rows_that_cannot_be_are_refused(self, missing: tuple[tuple[int, int], ...]) -> None:
        with pytest.raises(ValueError, match="lie within 10 rows"):
            Ledger().handle(Queued(0, 100, 10, missing))

    @pytest.mark.parametrize("missing", [None, ()])
    def test_a_batch_has_rows(self, missing: tuple[tuple[int, int], ...] | None) -> None:
        with pytest.raises(ValueError, match="at least 1 row, not 0"):
            Ledger().handle(Queued(0, 100, 0, missing))


class TestCutting:
    def test_a_batch_is_cut_and_delivered_when_all_of_it_has_come(self) -> None:
        ledger = Ledger()
        out = after(ledger, TeacherJoined("a", 3, most_rows=4), *queued(0))
        assert rows_sent(out) == [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10)]]
        assert after(ledger, answer("a", 3), answer("a", 1)) == [
            Accept(3, (Span(0, 8, 10),)),
            Accept(1, (Span(0, 0, 4),)),
        ]
        assert (ledger.volume_bytes, ledger.unlabelled, ledger.queued) == (0, 1, 0)
        assert after(ledger, answer("a", 2))[-1] == Deliver(0)

    def test_teachers_share_the_rows_of_one_batch(self) -> None:
        ledger = Ledger()
        joined = (TeacherJoined(name, 1, most_rows=4) for name in "abc")
        out = after(ledger, *joined, *queued(0))
        assert [send.teacher for send in sends(out)] == ["a", "b", "c"]
        out = after(ledger, answer("b", 2), answer("c", 3), answer("a", 1), Taken(0))
        assert out[-1] == Deliver(0)

    def test_lost_pieces_are_put_together_again(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 3, most_rows=4), *queued(0), answer("a", 2))
        out = after(ledger, TeacherLost("a"), TeacherJoined("b", 1))
        assert out == [Send(4, "b", (Span(0, 0, 4), Span(0, 8, 10)), 2)]
        after(ledger, TeacherLost("b"))
        assert after(ledger, TeacherJoined("c", 1, most_rows=9)) == [
            Send(5, "c", (Span(0, 0, 4), Span(0, 8, 10)), 3)
        ]

    def test_adjacent_pieces_are_one_run(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 2, most_rows=4), *queued(0))
        out = after(ledger, TeacherLost("a"), TeacherJoined("b", 1, most_rows=9))
        assert out == [Send(3, "b", (Span(0, 0, 9),), 2)]


class TestJoining:
    def test_batches_are_joined_up_to_the_size(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0, 1, 2))
        out = after(ledger, TeacherJoined("a", 2, most_rows=16))
        assert rows_sent(out) == [[(0, 0, 10), (1, 0, 6)], [(1, 6, 10), (2, 0, 10)]]
        assert after(ledger, answer("a", 2)) == [Accept(2, (Span(1, 6, 10), Span(2, 0, 10)))]
        assert after(ledger, answer("a", 1))[1:] == [Deliver(0), Deliver(1), Deliver(2)]

    def test_an_idle_window_does_not_wait_for_more(self) -> None:
        ledger = Ledger()
        out = after(ledger, TeacherJoined("a", 2, most_rows=64), *queued(0, 1, 2))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 10)]]

    def test_without_a_size_batches_stay_apart(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0, 1))
        assert rows_sent(after(ledger, TeacherJoined("a", 1))) == [[(0, 0, 10)]]

    def test_kinds_stay_apart(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0), Queued(1, 100, 10, kind=1), *queued(2))
        out = after(ledger, TeacherJoined("a", 3, most_rows=30))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 10)], [(2, 0, 10)]]

    def test_the_size_may_change(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), *queued(0, 1, 2), RequestSizeChanged("a", 20))
        out = after(ledger, answer("a", 1))
        assert rows_sent(out) == [[(1, 0, 10), (2, 0, 10)]]
        assert after(ledger, RequestSizeChanged("x", 3)) == []

    def test_a_request_has_rows(self) -> None:
        with pytest.raises(ValueError, match="requests of at least 1 row, not 0"):
            TeacherJoined("a", 1, most_rows=0)
        with pytest.raises(ValueError, match="requests of at least 1 row, not 0"):
            RequestSizeChanged("a", 0)


class TestRefusedTogether:
    def test_they_are_sent_again_batch_by_batch_and_one_is_found_to_blame(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0, 1, 2), TeacherJoined("a", 1, most_rows=20))
        out = after(ledger, Refused("a", 1, "bad"))
        assert rows_sent(out) == [[(0, 0, 10)]], "nobody is to blame yet, so `a` may try again"
        assert rows_sent(after(ledger, answer("a", 2))) == [[(1, 0, 10)]]
        out = after(ledger, Refused("a", 3, "bad"))
        assert out[0] == Poison(1, ("a: bad",))
        assert rows_sent(out) == [[(2, 0, 10)]]

    def test_what_comes_behind_is_joined_as_ever(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0, 1), TeacherJoined("a", 1, most_rows=20), *queued(2, 3))
        out = after(ledger, Refused("a", 1, "bad"), answer("a", 2), answer("a", 3))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 10)], [(2, 0, 10), (3, 0, 10)]]

    def test_part_of_a_batch_refused_is_the_batch_refused(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("resting", 1), *queued(0), Failed("resting", 1))
        after(ledger, TeacherJoined("a", 2, most_rows=5), *queued(1))
        assert rows_sent(after(ledger, Refused("a", 2, "bad"))) == [[(1, 0, 5)]]
        assert after(ledger, answer("a", 3))[0] == Accept(3, (Span(0, 5, 10),)), "it still counts"
        assert after(ledger, Resumed("resting"), answer("resting", 6))[:3] == [
            Send(6, "resting", (Span(0, 0, 5),), 3),
            Accept(6, (Span(0, 0, 5),)),
            Deliver(0),
        ]

    def test_of_a_poisoned_batch_nothing_counts_and_of_its_neighbour_all(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0, 1, 2), TeacherJoined("a", 2, most_rows=15))
        assert ledger.in_flight_at("a") == (1, 2)
        out = after(ledger, Refused("a", 1, "bad"), answer("a", 3))
        assert rows_sent(out) == [[(0, 0, 10)], [(1, 0, 5)]]
        assert after(ledger, Refused("a", 4, "bad")) == [Poison(1, ("a: bad",))]
        out = after(ledger, answer("a", 2))
        assert out == [Accept(2, (Span(2, 0, 10),)), Deliver(2)]

    def test_a_request_of_which_nothing_is_wanted_is_discarded(self) -> None:
        ledger = Ledger()
        after(ledger, *queued(0), TeacherJoined("a", 2, most_rows=5), Refused("a", 1, "bad"))
        assert (ledger.unlabelled, ledger.in_flight) == (0, 1)
        assert after(ledger, answer("a", 2)) == [Discard(2, "a")]

    def test_a_request_too_large_for_its_teacher_is_no_batchs_fault(self) -> None:
        ledger = Ledger()
        after(ledger, TeacherJoined("a", 1), *queued(0), RequestSizeChanged("a", 5))
        assert rows_sent(after(ledger, Refused("a", 1, "too large"))) == [[(0, 0, 5)]]
