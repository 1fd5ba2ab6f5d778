"""Settings of a training, and the connection that brings them from a supervisor to a rank."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edl.proto.channel import Channel
from edl.proto.dataclass_json import from_plain, to_plain
from edl.runtime.errors import EdlError, GenerationSuperseded, UsageError, WireError
from edl.student import cli, messages
from edl.student.link import RankLink
from edl.student.settings import TrainSettings
from edl.tests.cli_output import refusal_of
from edl.tests.waiting import DEADLINE_S

SETTINGS = TrainSettings(job_file="/job.py", job="job", nodes=(1, 1), epochs=3, teachers=("a:1",))
ORDER = messages.Order(SETTINGS, 4, 1, 2, 1, "node", ("a:1", "b:2"), "/there", ("x", "y"), True)
SAID = (
    messages.Ready(3, 1, 90),
    messages.Progress(
        4, 1, 8, 16, {"total": 0.5}, {"accuracy": 0.1}, 0.1, 0.2, 80.0, 2, 100, "labels"
    ),
    messages.Saved(4),
    messages.Scaled(2, 3),
    messages.Finished(9, {"accuracy": 1.0}),
    messages.Left(9, False, "a peer"),
    messages.Failed(5, 1, [1, 2], "ValueError: no", "Traceback", True),
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, RankLink]]:
    """Of a supervisor, and of a rank that has its order."""
    channel, fd = Channel.pair()
    link = RankLink(fd)
    assert channel.send_all([ORDER.to_json()])
    assert link.order() == ORDER
    yield channel, link
    channel.close()
    link.close()


def test_messages_arrive_as_they_were_sent(ends: tuple[Channel, RankLink]) -> None:
    channel, link = ends
    for word in SAID:
        assert link.send(word)
    assert tuple(map(messages.from_rank, islice(channel, len(SAID)))) == SAID
    for answer in (messages.Leave(), messages.Answer(3, [1, 2])):
        assert messages.from_supervisor(answer.to_json()) == answer


def test_concurrent_requests_get_their_own_answers(ends: tuple[Channel, RankLink]) -> None:
    channel, link = ends
    with ThreadPoolExecutor() as pool:
        leases = [pool.submit(link.lease, epoch) for epoch in range(5)]
        asks: list[Any] = [*map(messages.from_rank, islice(channel, len(leases)))]
        for ask in reversed(asks):
            shard = None if ask.epoch == 3 else [ask.epoch, ask.epoch + 2]
            channel.send_all([messages.Answer(ask.number, shard).to_json()])
        assert [one.result(DEADLINE_S) for one in leases] == [(0, 2), (1, 3), (2, 4), None, (4, 6)]


def test_what_is_refused_is_raised_as_the_same_error(ends: tuple[Channel, RankLink]) -> None:
    channel, link = ends
    with ThreadPoolExecutor() as pool:
        filling = pool.submit(link.fill, 0, [(0, 4)])
        ask: Any = messages.from_rank(next(iter(channel)))
        answer = messages.Answer(ask.number, "there is another world", "GenerationSuperseded")
        channel.send_all([answer.to_json()])
        with pytest.raises(GenerationSuperseded, match="another world"):
            filling.result(DEADLINE_S)


def test_a_request_ends_when_the_supervisor_dies(ends: tuple[Channel, RankLink]) -> None:
    channel, link = ends
    threading.Timer(0.02, channel.close).start()
    with pytest.raises(EdlError, match="supervisor ended"):
        link.lease(0)
    assert link.lost


def test_malformed_messages_are_refused() -> None:
    for message in ({"kind": "leave"}, {"kind": "x"}, {"kind": "saved", "slot": 3}):
        with pytest.raises(WireError):
            messages.from_rank(message)
    with pytest.raises(WireError):
        messages.from_supervisor({"kind": "ready"})


URL = "redis://head:6379"


@pytest.mark.parametrize(
    "given",
    [
        {"nodes": (1, 4), "coordinator": URL, "checkpoint": "s3://runs/a", "deal": "static"},
        {"teachers": ("a:1", "b:2"), "steps": 9, "amp": "bfloat16", "save_every_s": 9.0},
    ],
)
def test_settings_are_json(given: dict[str, Any]) -> None:
    settings = TrainSettings("/jobs/a.py", "a", **{"epochs": 1} | given)
    assert from_plain(TrainSettings, json.loads(json.dumps(to_plain(settings)))) == settings


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"job_file": "job.py"}, "must be absolute"),
        ({"job": "a job"}, "must be 1 to 64 of"),
        ({"epochs": None}, "give --epochs or --steps"),
        ({"total_batch": 0}, "total_batch must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"nodes": (2, 1)}, "1 <= MIN <= MAX"),
        ({"ranks_per_node": 5000}, "1 to 4096 ranks"),
        ({"nodes": (1, 4)}, "needs --redis"),
        ({"nodes": (1, 4), "coordinator": URL}, "needs --checkpoint"),
        ({"coordinator": URL, "teachers": ("a:1",)}, "not both"),
        ({"save_every_s": 0.0}, "above 0 seconds"),
        ({"save_overhead": 1.0}, "from 0 to below 1"),
        ({"hang_s": 0.0}, "above 0 seconds"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TrainSettings(**{"job_file": "/jobs/a.py", "job": "a", "epochs": 1, **wrong})


def test_saving_every_0_seconds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "end_with_parent", lambda: None)
    message = refusal_of(cli.app, "train", "job.py", "--epochs", 1, "--save", "seconds=0")
    assert message == "--save seconds= must be above 0 seconds, not 0.0"


def test_terminal_gets_its_cursor_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda: Console(file=shown, force_terminal=True))
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    monkeypatch.setattr(cli, "end_with_parent", lambda: None)
    monkeypatch.setattr(cli, "configure_logging", lambda *_: None)
    job = tmp_path / "job.py"
    job.write_text("")
    arguments = ["train", str(job), "--steps", "1", "--redis", "nowhere"]
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, UsageError)
    hidden, again = "\x1b[?25l", "\x1b[?25h"
    assert shown.getvalue().count(hidden) == shown.getvalue().count(again) == 1
