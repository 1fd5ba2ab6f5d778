"""Counters, and the wait for quiet, in time that the test decides or threads that it holds."""

from __future__ import annotations

import threading

import pytest

from edl.teacher.traffic import Traffic


def test_requests_in_flight_are_counted_also_when_they_fail() -> None:
    traffic = Traffic()

    def fail() -> None:
        with traffic.request():
            assert traffic.in_flight == 2
            raise ValueError

    with traffic.request():
        assert traffic.in_flight == 1
        with pytest.raises(ValueError):
            fail()
        assert traffic.in_flight == 1
    assert traffic.in_flight == 0


def test_answers_make_a_rate() -> None:
    now = 100.0
    traffic = Traffic(lambda: now)
    assert traffic.samples_per_second == 0.0
    for _ in range(10):
        traffic.count_answer(samples=8, device_seconds=0.16)
        now += 0.4
    assert traffic.answered == 10
    assert traffic.samples_per_second == pytest.approx(20, rel=0.2)


def test_who_wants_to_know_of_each_batch_is_told() -> None:
    told: list[tuple[int, float]] = []
    traffic = Traffic(on_labelled=lambda samples, seconds: told.append((samples, seconds)))
    traffic.count_answer(8, 0.25)
    assert (told, traffic.answered) == ([(8, 0.25)], 1)


def test_quiet_comes_when_the_last_request_has_been_answered_for_a_while() -> None:
    traffic = Traffic()
    arrived, go = threading.Event(), threading.Event()

    def answer() -> None:
        with traffic.request():
            arrived.set()
            go.wait(10)

    thread = threading.Thread(target=answer)
    thread.start()
    assert arrived.wait(10)
    assert not traffic.wait_quiet(quiet_s=0.01, timeout_s=0.05)
    go.set()
    assert traffic.wait_quiet(quiet_s=0.01, timeout_s=10)
    thread.join()


def test_requests_that_keep_coming_are_not_waited_for_longer_than_allowed() -> None:
    traffic = Traffic()
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            with traffic.request():
                pass

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        assert not traffic.wait_quiet(quiet_s=10, timeout_s=0.05)
    finally:
        stop.set()
        thread.join()
