"""What is remembered of a run: written whole, read whatever lies there, and never in the way."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from edl.distill_reader.config import DEFAULT_JOB, DEFAULT_PROFILES, ReaderConfig, profiles_of
from edl.distill_reader.engine.ensemble_member import core_config
from edl.distill_reader.engine.inbox import Inbox
from edl.distill_reader.engine.profiles import MOST_BYTES, ProfileFile, ProfileRecorder
from edl.runtime.errors import UsageError
from edl.scheduler.reader_core import ReaderCore
from edl.scheduler.reader_core.events import ProfileLoaded, Pulled, Tick
from edl.scheduler.stream_stats import SETTLED_STEPS, Measured, StreamProfile
from edl.tests.waiting import wait_until

PROFILE = StreamProfile(0.05, 0.01, "c", 1e9)


def test_a_profile_is_found_under_its_service_and_job(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert ProfileFile(folder, "s", "j").read() is None
    ProfileFile(folder, "s", "j").write(PROFILE)
    assert ProfileFile(folder, "s", "j").read() == PROFILE
    for service, job in (("s", "k"), ("t", "j"), ("s/j", "")):
        assert ProfileFile(folder, service, job).read() is None
    os.replace(ProfileFile(folder, "s", "j").path, ProfileFile(folder, "s", "k").path)
    assert ProfileFile(folder, "s", "k").read() is None, "it is of another job"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"service": "s"}', "\udcff", '{"job": "j"} ' + "x" * MOST_BYTES],
)
def test_what_is_no_profile_is_nothing(tmp_path: Path, text: str) -> None:
    file = ProfileFile(tmp_path, "s", "j")
    file.path.write_bytes(text.encode(errors="surrogateescape"))
    assert file.read() is None
    file.write(PROFILE)
    assert file.read() == PROFILE


def test_readers_that_write_at_once_leave_a_whole_one(tmp_path: Path) -> None:
    written = [StreamProfile(0.05 + n, 0.01, "c" * n, 1e9) for n in range(4)]

    def write(profile: StreamProfile) -> None:
        for _ in range(50):
            ProfileFile(tmp_path, "s", "j").write(profile)

    threads = [threading.Thread(target=write, args=(profile,)) for profile in written]
    for thread in threads:
        thread.start()
    seen = {ProfileFile(tmp_path, "s", "j").read() for _ in range(200)}
    for thread in threads:
        thread.join()
    assert seen <= {None, *written}
    assert ProfileFile(tmp_path, "s", "j").read() in written
    assert len(list(tmp_path.iterdir())) == 1, "nothing half written is left"


def test_failed_write_keeps_old_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ProfileFile(tmp_path, "s", "j")
    file.write(PROFILE)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="no space"):
        file.write(StreamProfile(1.0, 1.0, "", 2e9))
    assert file.read() == PROFILE
    assert len(list(tmp_path.iterdir())) == 1


# --- in an engine


class Run:
    """The memory of one run, and the measurements that it is made of."""

    def __init__(self, folder: Path | str) -> None:
        self.inbox = Inbox()
        config = ReaderConfig("s", coordinator="memory://m", job="j", profiles=str(folder))
        self.core = ReaderCore(core_config(config), random)
        self.memory = ProfileRecorder(config, self.inbox, self.measured, self.remembered)
        self.memory.start()
        if folder:  # let what was read arrive
            for event in self.inbox.next(60.0) or ():
                event()

    def remembered(self, profile: StreamProfile | None) -> None:
        self.core.handle(ProfileLoaded(profile, time.time()), 0.0)

    def measured(self) -> Measured:
        return self.core.measured("c")

    def want(self) -> int:
        self.core.handle(Tick(), 0.0)
        return self.core.decision.want

    def measure(self, t_t_s: float, times: int) -> None:
        for _ in range(times):
            self.core.stats.answer("t", t_t_s, 1)
            self.core.stats.step(0.01, 1)
        self.core.handle(Pulled(0.0, 1, 1), 0.0)


def test_the_second_run_asks_for_n_at_once(tmp_path: Path) -> None:
    first = Run(tmp_path)
    assert first.want() == 1
    first.measure(0.05, SETTLED_STEPS)
    first.memory.close()
    wait_until(lambda: ProfileFile(tmp_path, "s", "j").read())
    second = Run(tmp_path)
    assert second.want() == 5
    second.measure(0.02, SETTLED_STEPS)
    assert second.want() == 2, "what is measured counts, once it stands on enough"
    second.memory.close()


def test_without_a_usable_folder_nothing_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    run = Run("")
    run.memory.save_if_due(1.0)
    run.memory.close()
    config = ReaderConfig("s", coordinator="memory://m", job="j", profiles=str(tmp_path / "file"))
    memory = ProfileRecorder(config, run.inbox, run.measured, run.remembered)
    memory.start()
    run.measure(0.05, SETTLED_STEPS)
    memory.save_if_due(1.0)
    memory.close()
    assert run.want() == 5


def test_nothing_is_remembered_where_it_would_mean_nothing(tmp_path: Path) -> None:
    assert profiles_of(tmp_path, "redis://r", "imagenet") == str(tmp_path)
    assert profiles_of(None, "redis://r", "imagenet") == ""
    assert profiles_of(tmp_path, None, "imagenet") == ""
    assert profiles_of(tmp_path, "redis://r", DEFAULT_JOB) == ""
    assert profiles_of(DEFAULT_PROFILES, "redis://r", "imagenet").startswith(str(Path.home()))
