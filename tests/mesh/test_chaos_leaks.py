"""What a chaos run leaves behind is found, and nothing of anybody else."""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.mesh.chaos.leaks import MARK, SHARED_MEMORY, Belongings
from edl.supervise import start
from edl.tests.ground.programs import DOCILE, python


@pytest.fixture
def segment() -> Iterator[Path]:
    path = SHARED_MEMORY / f"edl-test-{secrets.token_hex(8)}"
    yield path
    path.unlink(missing_ok=True)


def test_a_process_of_the_run_is_found_until_it_ends() -> None:
    mark = secrets.token_hex(8)
    before = Belongings.before(mark)
    stranger = start(python(DOCILE, env={MARK: secrets.token_hex(8)}))
    ours = start(python(DOCILE, env={MARK: mark}))
    try:
        ours.expect("ready", 20)
        stranger.expect("ready", 20)
        (left,) = before.left(settle_s=0.0)
        assert left.startswith(f"process {ours.pid}: ")
        ours.kill()
        assert before.left(settle_s=10.0) == ()
    finally:
        ours.stop()
        stranger.stop()


def test_shared_memory_that_is_new_and_that_nobody_uses_is_found(segment: Path) -> None:
    before = Belongings.before(secrets.token_hex(8))
    segment.write_bytes(bytes(mmap.PAGESIZE))
    assert f"shared memory {segment}" in before.left(settle_s=0.0)
    segment.unlink()
    assert f"shared memory {segment}" not in before.left(settle_s=0.0)


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_shared_memory_that_a_living_process_uses_is_somebody_elses(
    segment: Path, how: str
) -> None:
    code = """
        import mmap, os, sys, time
        fd = os.open(sys.argv[1], os.O_RDWR)
        if sys.argv[2] == "mapped":
            memory = mmap.mmap(fd, 0)
            os.closerange(3, 256)  # that of the mapping, too
        print("ready")
        time.sleep(60)
    """
    before = Belongings.before(secrets.token_hex(8))
    segment.write_bytes(bytes(mmap.PAGESIZE))
    stranger = start(python(code, segment, how))
    try:
        stranger.expect("ready", 20)
        assert f"shared memory {segment}" not in before.left(settle_s=0.0)
    finally:
        stranger.stop()


def test_shared_memory_that_was_there_before_is_not_the_runs(segment: Path) -> None:
    segment.write_bytes(b"x")
    before = Belongings.before(secrets.token_hex(8))
    assert f"shared memory {segment}" not in before.left(settle_s=0.0)
