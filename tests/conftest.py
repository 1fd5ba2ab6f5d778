"""What holds for every test: nothing is left behind, and every random choice can be repeated."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from edl.tests.leaks import Belongings, leaked_since, mark_this_process

SEED_VARIABLE = "EDL_TEST_SEED"
# In the environment, so that the workers of a parallel run draw from the same seed.
SEED = int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32))))

hypothesis.settings.register_profile("test", deadline=None, print_blob=True)
hypothesis.settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("EDL_TEST_PROFILE", "test"))


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    mark_this_process()
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What has none of the few tests of a mark need not be imported, which takes longest."""
    asked = re.search(r" and (serial|forks)$", config.option.markexpr)
    if asked is None or not collection_path.match("test_*.py"):
        return None
    return f"mark.{asked[1]}" not in collection_path.read_text() or None


def pytest_report_header() -> str:
    return f"random seed: {SEED} (repeat with {SEED_VARIABLE}={SEED})"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random choices of one test, which differ from run to run; the header names the seed."""
    return random.Random(f"{SEED}/{request.node.nodeid}")


@pytest.fixture(autouse=True, scope="module")
def module_leaves_nothing_behind() -> Iterator[None]:
    """Fails a module whose shared fixtures leave threads, processes or shared memory."""
    before = Belongings.now()
    yield
    _fail_on_leaks(before)


@pytest.fixture(autouse=True)
def test_leaves_nothing_behind(module_leaves_nothing_behind: None) -> Iterator[None]:
    """Fails a test that leaves threads, processes or shared memory behind."""
    before = Belongings.now()
    yield
    _fail_on_leaks(before)


def _fail_on_leaks(before: Belongings) -> None:
    __tracebackhide__ = True
    if leaks := leaked_since(before):
        pytest.fail("left behind:\n  " + "\n  ".join(leaks), pytrace=False)
