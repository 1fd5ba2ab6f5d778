"""A service moves to another model, at the epoch or at once: nothing mixed, lost or stranded."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.coordinator import fetch_status, upgrade
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import ROWS, SPEC, Batches
from edl.tests.system.slow_network import NEXT_MODEL, labels_of

PACE_S = 0.02 / ROWS
NEXT_SPEC = replace(SPEC, model=NEXT_MODEL)
SOURCE = Batches(60)


def offsets(batches: list[Any]) -> list[int]:
    """Which content each batch was labelled by: 1 the old one, 2 the next; all else is checked."""
    assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(SOURCE.count))
    found = []
    for x, numbers, soft in batches:
        np.testing.assert_array_equal(x, SOURCE.at(int(numbers[0])))
        offset = 2 if np.array_equal(soft, labels_of(x, 2.0)) else 1
        np.testing.assert_array_equal(soft, labels_of(x, offset))
        found.append(offset)
    return found


def contents(mesh: LocalMesh) -> dict[str, str]:
    """Teacher -> content, of those that live."""
    (service,) = fetch_status(mesh.url, "slow").services
    return {teacher.teacher_id: teacher.content_id for teacher in service.teachers}


def is_told(reader: DistilReader, content: str) -> bool:
    """Whether the reader knows that it moves to this content at its next epoch."""
    left = reader._pipeline.engine._legacies["slow"]
    return bool(left["assigned"]["advice"]["next_content_id"] == content)


def students_on(mesh: LocalMesh) -> dict[str, int]:
    (service,) = fetch_status(mesh.url, "slow").services
    return dict(service.content_students)


@pytest.fixture
def upgrading(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> Iterator[tuple[LocalMesh, str, str, DistilReader]]:
    """A mesh with a teacher of the old content and one of the next, and a reader on the old."""
    mesh.add_teacher("old", SPEC)
    set_pace(PACE_S)
    reader = DistilReader(
        SOURCE, service="slow", coordinator=mesh.url, upper_bytes=4000, wait_timeout_s=30.0
    )
    with reader:
        assert offsets(list(reader)) == [1] * SOURCE.count
        mesh.add_teacher("new", NEXT_SPEC)
        wait_for(lambda: set(contents(mesh)) == {"old", "new"})
        now = contents(mesh)
        assert now["old"] != now["new"]
        yield mesh, now["old"], now["new"], reader


def test_at_the_epoch_the_running_one_ends_on_the_old_content(
    upgrading: tuple[LocalMesh, str, str, DistilReader],
) -> None:
    mesh, old, new, reader = upgrading
    iterator = iter(reader)
    batches = [next(iterator) for _ in range(10)]
    upgrade(mesh.url, "slow", new, "epoch")
    wait_for(lambda: is_told(reader, new))  # the buffer is bounded: the epoch goes on
    batches += iterator
    assert offsets(batches) == [1] * SOURCE.count
    for _ in range(2):
        assert offsets(list(reader)) == [2] * SOURCE.count
    assert reader.stats.content_id == new
    assert reader.stats.resends == 0
    wait_for(lambda: students_on(mesh).get(old, 0) == 0)


def test_at_once_the_stream_changes_over_at_one_batch(
    upgrading: tuple[LocalMesh, str, str, DistilReader],
) -> None:
    mesh, _, new, reader = upgrading
    iterator = iter(reader)
    batches = [next(iterator) for _ in range(10)]
    upgrade(mesh.url, "slow", new, "now")
    wait_for(lambda: reader.stats.content_id == new)  # the buffer is bounded: the epoch goes on
    batches += iterator
    found = offsets(batches)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 2)
    assert offsets(list(reader)) == [2] * SOURCE.count


def test_a_dead_engine_does_not_mix_an_epoch(
    upgrading: tuple[LocalMesh, str, str, DistilReader],
) -> None:
    mesh, _, new, reader = upgrading
    iterator = iter(reader)
    batches = [next(iterator) for _ in range(10)]
    upgrade(mesh.url, "slow", new, "epoch")
    os.kill(reader.engine_pid, signal.SIGKILL)
    wait_for(lambda: is_told(reader, new))
    batches += iterator
    assert offsets(batches) == [1] * SOURCE.count
    assert offsets(list(reader)) == [2] * SOURCE.count


def test_the_next_content_loses_its_only_teacher_and_gets_another(
    upgrading: tuple[LocalMesh, str, str, DistilReader],
) -> None:
    mesh, _, new, reader = upgrading
    iterator = iter(reader)
    batches = [next(iterator) for _ in range(5)]
    upgrade(mesh.url, "slow", new, "now")
    wait_for(lambda: reader.stats.content_id == new)
    mesh.kill("new")
    mesh.add_teacher("newer", NEXT_SPEC)
    batches += iterator
    found = offsets(batches)
    assert found == sorted(found)
    assert found[-1] == 2
