"""Resuming and sharding with a real engine: killed trainers, several ranks, generators."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edl.distill_reader import Batched, DistilReader
from edl.errors import UsageError
from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_for, wait_gone
from edl.tests.leaks import remove_paddles_segments
from edl.tests.scripted_teacher import ScriptedTeacher, logits_of

SAMPLES, EPOCHS = 50, 2


class Rows:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return np.full(3, index, np.float32), np.int64(index)


def reader_of(source: Any, teacher: ScriptedTeacher, **options: Any) -> DistilReader:
    return DistilReader(source, service="s", teachers=[teacher.address], **options)


def ids_of(batch: Any) -> list[int]:
    x, ids, soft = batch
    np.testing.assert_array_equal(x[:, 0], ids)
    np.testing.assert_array_equal(soft, logits_of(x))
    return [int(i) for i in ids]


def trained(checkpoint: Path, teacher: str, kills: list[int]) -> Any:
    """What a training saw that is killed after so many steps of each of its lives."""
    for steps in [*kills, None]:
        program = "edl.tests.distill_reader.resumed_program"
        command = python_command(
            "trainer", program, str(checkpoint), teacher, str(EPOCHS), str(steps or 0)
        )
        trainer = start(command)
        try:
            if steps is None:
                trainer.expect("trained", 90)
                assert trainer.wait(10) == 0
                continue
            trainer.expect(f"step {steps}$", 60)
            trainer.send_signal(signal.SIGSTOP)  # so that it forks no more workers
            children = psutil.Process(trainer.pid).children(recursive=True)
            descendants = [child.pid for child in children]
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(10)
            wait_gone(descendants)
            remove_paddles_segments(descendants)
        finally:
            trainer.stop()
    return json.loads(checkpoint.read_text())["seen"]


def test_a_training_that_is_killed_sees_what_one_sees_that_is_not(
    tmp_path: Path, teacher: ScriptedTeacher, rng: random.Random
) -> None:
    whole = trained(tmp_path / "whole", teacher.address, [])
    for epoch in whole:
        assert sorted(i for ids, _ in epoch for i in ids) == list(range(SAMPLES))
    kills = [rng.randrange(1, 8), rng.randrange(1, 12)]
    assert trained(tmp_path / "killed", teacher.address, kills) == whole, kills


def test_ranks_share_an_epoch_and_go_on_with_one_more(teacher: ScriptedTeacher) -> None:
    def rank(number: int, world: int) -> DistilReader:
        source = Batched(Rows(), 3, shuffle=True)
        return reader_of(source, teacher, rank=number, world_size=world, seed=9)

    seen, states = [], []
    for number in range(2):
        with rank(number, 2) as reader:
            iterator = iter(reader)
            seen += [i for _ in range(4) for i in ids_of(next(iterator))]
            states.append(json.loads(json.dumps(reader.state_dict())))
    for number in range(3):
        with rank(number, 3) as reader:
            reader.load_state_dict(states)
            seen += [i for batch in reader for i in ids_of(batch)]
    assert sorted(seen) == list(range(SAMPLES))


def test_what_lies_in_the_buffer_is_not_delivered(teacher: ScriptedTeacher) -> None:
    with reader_of(Batched(Rows(), 5), teacher) as reader:
        iterator = iter(reader)
        ids_of(next(iterator))
        wait_for(lambda: reader.stats.yielded >= 5)
        state = reader.state_dict()
    assert (state["batches"], state["samples"]) == (1, 5)


def test_loading_leaves_the_epoch_that_is_read(teacher: ScriptedTeacher) -> None:
    with reader_of(Batched(Rows(), 5, shuffle=True), teacher) as reader:
        iterator = iter(reader)
        state = reader.state_dict()
        first = [ids_of(next(iterator)) for _ in range(4)]
        reader.load_state_dict(state)
        with pytest.raises(UsageError, match="left unfinished"):
            next(iterator)
        assert [ids_of(batch) for batch in reader][:4] == first


def samples() -> Iterator[Any]:
    rows = Rows()
    yield from (rows[number] for number in range(11))


def test_the_three_kinds_of_generators(teacher: ScriptedTeacher) -> None:
    options: dict[str, Any] = {"service": "s", "teachers": [teacher.address]}
    lists = lambda: iter([[*samples()], [*samples()][:2]])  # noqa: E731
    batches = lambda: iter([(np.zeros((2, 3), np.float32), np.zeros(2, int))])  # noqa: E731
    for reader, sizes in (
        (DistilReader.from_sample_generator(samples, batch_size=4, **options), [4, 4, 3]),
        (
            DistilReader.from_sample_generator(samples, batch_size=4, drop_last=True, **options),
            [4, 4],
        ),
        (DistilReader.from_sample_list_generator(lists, **options), [11, 2]),
        (DistilReader.from_batch_generator(batches, **options), [2]),
    ):
        with reader:
            for _ in range(2):
                assert [len(ids_of(batch)) for batch in reader] == sizes


def test_a_generators_reader_is_resumed(teacher: ScriptedTeacher) -> None:
    def make() -> DistilReader:
        return DistilReader.from_sample_generator(
            samples, batch_size=2, service="s", teachers=[teacher.address]
        )

    with make() as reader:
        iterator = iter(reader)
        had = [ids_of(next(iterator)) for _ in range(2)]
        state = json.loads(json.dumps(reader.state_dict()))
    with make() as reader:
        reader.load_state_dict(state)
        assert had + [ids_of(batch) for batch in reader] == [
            [0, 1],
            [2, 3],
            [4, 5],
            [6, 7],
            [8, 9],
            [10],
        ]
