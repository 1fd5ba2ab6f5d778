"""`edl bench accuracy`: its statistics and data, and one run in which everything happens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.benchmarks import accuracy
from edl.benchmarks.distilling import reviews, vision
from edl.benchmarks.distilling.churning import Churning
from edl.benchmarks.distilling.pairs import Paired
from edl.benchmarks.distilling.ways import WAYS, Outcome, Way
from edl.distill_reader import ReaderStats
from edl.errors import UsageError
from edl.mesh.demo.modes import ModeResult
from edl.mesh.demo.stream_check import StreamFacts
from edl.mesh.local import TeacherSpec
from edl.tests.examples.data import write_mnist, write_reviews


def test_pairs_are_compared_by_students_t() -> None:
    found = Paired.of([3, 5, 4, 6], [1, 2, 3, 2])  # differences 2 3 1 4; by a table t(3) is 3.182
    half = 3.182 * np.std([2, 3, 1, 4], ddof=1) / 2
    assert found.mean == 2.5
    assert (found.low, found.high) == pytest.approx((2.5 - half, 2.5 + half), abs=1e-3)
    assert 0.02 < found.p < 0.05  # t is 3.87
    assert Paired.of([1, 2], [1, 2]) == Paired(0, 0, 0, 1)
    assert Paired.of([2, 3], [1, 2]).p == 0
    with pytest.raises(ValueError, match="pairs are needed"):
        Paired.of([1], [2])


def outcome(way: Way, *points: float, killed: int = 0, joined: int = 0) -> Outcome:
    facts = StreamFacts(1, 1, 0, 0, "ab" * 32)
    values = tuple(point / 100 for point in points)
    result = ModeResult("edl_dist", values, 1.0, 1.0, facts)
    return Outcome(way, result, killed, joined, from_store=1.0 if way == "offline" else 0.0)


def outcomes(**given: Outcome) -> dict[Way, Outcome]:
    good: dict[Any, Outcome] = {way: outcome(way, 90, 91, 92.5, 91) for way in WAYS}
    good["n_training"] = outcome("n_training", 80, 82, 81, 82)
    good["churn"] = outcome("churn", 90, 91, 92.5, 91, killed=2, joined=2)
    return {**good, **given}


@pytest.mark.parametrize(
    ("given", "goal"),
    [
        ({}, None),
        ({"n_training": outcome("n_training", 89, 92, 92.5, 91)}, "above N-training"),
        ({"n_training": outcome("n_training", 98, 99, 99, 98)}, "above N-training"),
        ({"churn": outcome("churn", 85, 86, 87, 86, killed=1, joined=1)}, "steady, p"),
        ({"churn": outcome("churn", 60, 91, 92, 91, killed=1, joined=1)}, "steady, points"),
        ({"churn": outcome("churn", 90, 91, 92.5, 91, killed=1)}, "killed"),
        ({"offline": replace(outcome("offline", 90, 91, 92, 91), from_store=0.9)}, "store"),
    ],
)
def test_each_goal_can_fail(given: dict[str, Outcome], goal: str | None) -> None:
    goals = accuracy._goals(vision.digits(4, quick=True), outcomes(**given))
    failed = [one.name for one in goals if not one.holds]
    assert len(goals) == 5
    assert (not failed) if goal is None else any(goal in name for name in failed)


def test_mnist_is_found_and_read_wherever_it_lies(tmp_path: Path) -> None:
    assert vision.mnist(tmp_path, 2, quick=True) is None
    folder = tmp_path / "package" / "data"
    folder.mkdir(parents=True)
    write_mnist(folder, rows=120)
    task = vision.mnist(tmp_path, 2, quick=True)
    assert task is not None
    assert task.data.train_image.shape == (120, 1, 28, 28)
    assert task.data.train_label[:4].tolist() == [0, 1, 2, 3]
    image, label, _ = next(iter(task.batches))
    assert (image.shape, label.shape) == ((64, 1, 28, 28), (64,))
    (folder / vision.IDX_FILES[0]).write_bytes(b"\0\0\x08\x01\0\0\0\x09only")
    with pytest.raises(UsageError, match="should hold"):
        vision.mnist(tmp_path, 2, quick=True)
    (folder / vision.IDX_FILES[0]).write_bytes(b"GIF89a")
    with pytest.raises(UsageError, match="no IDX file"):
        vision.mnist(tmp_path, 2, quick=True)


def test_reviews_are_split_without_a_text_in_both_parts(tmp_path: Path) -> None:
    write_reviews(tmp_path)
    task = reviews.reviews(tmp_path, 2, quick=True)
    assert task is not None
    train, test = task.data.train_image, task.data.test_image
    assert (len(train), len(test)) == (300, 100)
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}
    varied = task.vary(np.random.default_rng(0), train)
    changed = (varied != train).sum() / (train != reviews.END).sum()
    assert changed == pytest.approx(reviews.LEFT_OUT, abs=0.02)
    assert ((varied == reviews.END) == (train == reviews.END)).all()


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names a folder"):
        accuracy.run(quick=True, data=tmp_path / "no")
    with pytest.raises(UsageError, match="neither MNIST"):
        accuracy.run(quick=True, data=tmp_path)
    with pytest.raises(UsageError, match="there are: digits"):
        accuracy.run(quick=True, task="mnist")


class Teachers:
    """In the place of a mesh: what was done to which teacher."""

    def __init__(self) -> None:
        self.alive = ["a", "b"]
        self.told: list[str] = []

    def suspend(self, name: str) -> None:
        self.told.append(f"hold {name}")

    def kill(self, name: str) -> None:
        self.alive.remove(name)
        self.told.append(f"kill {name}")

    def start_teacher(self, name: str, spec: Any) -> None:
        self.alive.append(name)
        self.told.append(f"start {name}")


def test_teachers_are_killed_and_replaced_round_after_round() -> None:
    teachers: Any = Teachers()
    now = iter(range(10_000))
    churning = Churning(
        teachers,
        TeacherSpec("s", "m"),
        steps=30,
        batches=90,
        say=lambda text: None,
        clock=lambda: float(next(now)),
    )
    for batch in range(90):
        stats = ReaderStats(teachers=tuple(teachers.alive), resends=1)
        for _ in range(4):
            churning.look(batch, stats)
    assert churning.killed == churning.joined == 3
    assert not churning.awaits_newcomer
    assert len(teachers.alive) == 2
    assert [word.split()[0] for word in teachers.told] == ["hold", "kill", "start"] * 3


@pytest.mark.nightly  # four trainings: most of a minute
@pytest.mark.timeout(240)
def test_all_ways_give_the_same_labels_but_one_that_has_none(tmp_path: Path) -> None:
    picture = tmp_path / "accuracy.png"
    report = accuracy.run(quick=True, picture=picture, task="digits")
    assert picture.read_bytes().startswith(b"\x89PNG")
    json.dumps(report.to_json())
    n_training, online, steady, churn, offline = report.rows
    assert online["stream"] == steady["stream"] == churn["stream"] == offline["stream"]
    assert online["stream"] != n_training["stream"]
    assert online["by seed"] == churn["by seed"] != n_training["by seed"]
    assert int(churn["killed"]) >= 1
    assert int(churn["joined"]) >= 1
    assert (steady["from store"], offline["from store"]) == (0, 1)
