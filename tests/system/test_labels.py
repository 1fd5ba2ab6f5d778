"""Labels of several services, and of a service that is upgraded."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from edl.coordinator import upgrade
from edl.distill_reader import DistilReader, EnsemblePolicy
from edl.distill_reader.options import Limits, Timeouts
from edl.proto.arena import Array
from edl.proto.forms import LabelForm, decode, encode, softmax
from edl.runtime.supervise import Process, python_command, start
from edl.tests.distill_reader.readers import numbers_of
from edl.tests.scripted_teacher import logits_of
from edl.tests.system.conftest import (
    FOR_EVER,
    ROWS,
    SPEC,
    Batches,
    Service,
    keeps_what_it_gets,
    taken_until,
)
from edl.tests.system.slow_network import NEXT_MODEL, labels_of
from edl.tests.system.teacher_process import serving
from edl.tests.teacher.linear import CLASSES, weights
from edl.tests.waiting import DEADLINE_S, wait_until

WIDTH = 4
#: The logits of a service are multiplied by its factor.
FACTORS = {"a": 1.0, "b": -2.0}
WEIGHTS = {"a": 0.7, "b": 0.3}
BOUND = {"upper_bytes": 5 * ROWS * (WIDTH + 10) * 4, "lower_bytes": 0}


class Small(Batches):
    """Batches whose softmax is spread over the classes."""

    def at(self, number: int) -> Any:
        values = np.random.default_rng(number).normal(0, 0.1, (ROWS, WIDTH))
        return values.astype(np.float32)


class Teachers:
    """Teachers of both services: processes and addresses by service."""

    def __init__(self, stack: ExitStack, each: int) -> None:
        self.processes: dict[str, list[Process]] = {name: [] for name in FACTORS}
        self.addresses: dict[str, list[str]] = {name: [] for name in FACTORS}
        #: Options of a reader that labels only some batches ahead of its training loop.
        self.ensemble: dict[str, Any] = {"service": WEIGHTS, "teachers": self.addresses, **BOUND}
        for name in [*FACTORS] * each:
            words = ("--seconds", 0.02, "--factor", FACTORS[name])
            process = start(python_command("teacher", "edl.tests.scripted_teacher", *words))
            stack.callback(process.stop, 0.0)
            self.processes[name].append(process)
            self.addresses[name].append(process.expect(r"^ready on (\S+)$", DEADLINE_S)[1])


def mean(x: Array, shares: dict[str, float]) -> Array:
    """Of the services' probabilities."""
    total = np.zeros((ROWS, 10), np.float64)
    for service, share in shares.items():
        total += share * softmax(logits_of(x) * np.float32(FACTORS[service]), 1.0)
    return total


def test_labels_are_the_weighted_mean_whichever_teacher_is_killed(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=2)
    source = Small()
    options = {**teachers.ensemble, "limits": Limits(request_rows=5), "canaries": None}
    with DistilReader(source, **options) as reader:
        iterator = iter(reader)
        batches = []
        for name in WEIGHTS:
            process, address = teachers.processes[name][0], teachers.addresses[name][0]
            served = partial(lambda one: one in dict(reader.stats.served), address)
            batches += taken_until(iterator, served)
            batches += keeps_what_it_gets(process, address, reader, iterator)
            process.kill()
        source.end(after=20)
        batches += iterator
        assert numbers_of(batches) == list(range(source.count))
        for x, _, soft in batches:
            assert soft.dtype == np.float32
            np.testing.assert_allclose(soft, mean(x, WEIGHTS), rtol=0, atol=1e-6)
        assert reader.stats.weights == tuple(WEIGHTS.items())
        assert reader.stats.partly_labelled == reader.stats.unlabelled == 0
        assert reader.stats.resends + reader.stats.hedges > 0


def test_a_missing_service_is_left_out_where_that_is_tolerated(stack: ExitStack) -> None:
    teachers = Teachers(stack, each=1)
    policy = EnsemblePolicy("tolerate", missing_after_s=0.5, with_weights=True)
    with DistilReader(Small(40), ensemble=policy, **teachers.ensemble) as reader:
        iterator = iter(reader)
        batches = [next(iterator) for _ in range(5)]
        teachers.processes["b"][0].kill()
        batches += iterator
        assert reader.stats.partly_labelled > 0
        assert reader.stats.weights == (("a", 1.0),)
    assert numbers_of(batches) == list(range(40))
    alone = 0
    for x, _, soft, used in batches:
        assert used.shape == (ROWS, 2)
        assert (used == used[0]).all()
        shares = dict(zip(WEIGHTS, used[0].tolist(), strict=True))
        alone += shares == {"a": 1.0, "b": 0.0}
        np.testing.assert_allclose(soft, mean(x, shares), rtol=0, atol=1e-6)
    assert alone > 20


@pytest.mark.parametrize(
    ("model", "options"), [("good", []), ("softmax", []), ("softmax", ["--no-self-test"])]
)
def test_labels_travel_in_compact_forms_and_come_dense(
    model: str, options: tuple[str, ...]
) -> None:
    """Of a model that ends in a softmax, probabilities at a temperature are those of its logits."""
    with serving(*options, model=f"edl.tests.teacher.linear:{model}") as teacher:
        forms: list[Any] = [("topk:2", 2.0), ("bfloat16", None), (None, 4.0)]
        for text, temperature in forms if model == "good" else forms[-1:]:
            form = LabelForm.parse(text, temperature)
            assert form is not None
            asked: dict[str, Any] = {"label_form": text, "temperature": temperature}
            addresses = [teacher.address]
            with DistilReader(Small(10), service="m", teachers=addresses, **asked) as reader:
                batches = list(reader)
            for x, _, soft in batches:
                assert soft.dtype == np.float32
                sent = encode("logits", x @ weights(), form)
                dense = decode("logits", sent, form, form.parameters(CLASSES))
                # The last bit of a sum may differ, and so that of a bfloat16.
                np.testing.assert_allclose(soft, dense, rtol=1e-2, atol=1e-3)


@dataclass
class Upgrading:
    """A service with a teacher of the content `old` and one of `new`, and a reader on the old."""

    service: Service
    source: Batches
    reader: DistilReader
    old: str = ""
    new: str = ""

    def begin(self) -> tuple[Iterator[Any], list[Any]]:
        """An epoch that goes on until its rest is asked for, and its first batches."""
        self.source.count = FOR_EVER
        iterator = iter(self.reader)
        return iterator, [next(iterator) for _ in range(10)]

    def offsets(self, batches: list[Any]) -> list[int]:
        """The content that labelled each batch: 1 the old one, 2 the next; all else is checked."""
        assert numbers_of(batches) == list(range(self.source.count))
        found = []
        for x, numbers, soft in batches:
            np.testing.assert_array_equal(x, self.source.at(int(numbers[0])))
            offset = 2 if np.array_equal(soft, labels_of(x, 2.0)) else 1
            np.testing.assert_array_equal(soft, labels_of(x, offset))
            found.append(offset)
        return found

    def epoch_is_new(self) -> bool:
        """Whether an epoch has labels of the next content; they are of one content."""
        (offset,) = set(self.offsets(list(self.reader)))
        return offset == 2


@pytest.fixture
def upgrading(service: Service, set_pace: Callable[[float], None]) -> Iterator[Upgrading]:
    service.add("old")
    set_pace(0.02 / ROWS)
    with ExitStack() as undo:
        source, bounds = Batches(60), {"upper_bytes": 4000, "timeouts": Timeouts(wait_s=60.0)}
        reader = undo.enter_context(service.reader(source, **bounds))
        found = Upgrading(service, source, reader)
        assert set(found.offsets(list(reader))) == {1}
        service.add("new", spec=replace(SPEC, model=NEXT_MODEL))
        wait_until(lambda: len(service.status.teachers) == 2)
        contents = {one.teacher_id: one.content_id for one in service.status.teachers}
        found.old, found.new = (contents[f"{service.name}-{name}"] for name in ("old", "new"))
        assert found.old != found.new
        yield found


def test_an_upgrade_at_the_epoch_and_one_at_once_mix_nothing(upgrading: Upgrading) -> None:
    reader, service = upgrading.reader, upgrading.service
    iterator, batches = upgrading.begin()
    upgrade(service.url, service.name, upgrading.new, "epoch")
    batches += taken_until(iterator, lambda: service.status.next_content_id == upgrading.new)
    os.kill(reader.engine_pid, signal.SIGKILL)  # the next engine keeps to the old content
    batches += [next(iterator) for _ in range(50)]
    batches += upgrading.source.rest(iterator)
    assert set(upgrading.offsets(batches)) == {1}
    upgrading.source.count = 60
    wait_until(upgrading.epoch_is_new)
    assert upgrading.epoch_is_new()
    assert reader.stats.content_id == upgrading.new
    wait_until(lambda: dict(service.status.content_students).get(upgrading.old, 0) == 0)

    iterator, batches = upgrading.begin()
    wait_until(lambda: not service.status.next_content_id)
    upgrade(service.url, service.name, upgrading.old, "now")
    batches += taken_until(iterator, lambda: reader.stats.content_id == upgrading.old)
    batches += [next(iterator) for _ in range(20)]  # more than the buffer has
    batches += upgrading.source.rest(iterator)
    found = upgrading.offsets(batches)
    assert found == sorted(found, reverse=True), "the stream changes over at one batch"
    assert (found[0], found[-1]) == (2, 1)
    assert set(upgrading.offsets(list(reader))) == {1}
