"""Rules for all tests: they leave nothing behind, and their random choices can be repeated.

Tiers (`tests/run.py`): `make test` leaves out tests marked `system` and those in SYSTEM_FOLDERS.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

from edl.tests.leaks import ProcessResources, leaked_since, shared_by_tests, watch_descendants

#: The tier that runs; empty if pytest was started by hand, which leaves no test out.
TIER = os.environ.get("EDL_TEST_TIER", "")
TIERS = ("test", "test-system", "nightly", "interop", "gpu")
SYSTEM_FOLDERS = ("examples", "gpu", "hostile", "interop", "release", "system")
SEED_VARIABLE = "EDL_TEST_SEED"
# In the environment, so that the workers of a parallel run draw from the same seed.
SEED = int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32))))
# Idle threads of OpenMP spin, which takes CPU time from other processes on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: A file with one of these has tests for `make test-system`.
SYSTEM_WORDS = re.compile(r"mark\.system|^(from|import) hypothesis", re.MULTILINE)
ALL_SYSTEM = re.compile(r"^pytestmark = .*mark\.system\b", re.MULTILINE)

# Shrinking a counterexample can take minutes, so only nightly runs do it. The others print the
# choices, which `hypothesis.reproduce_failure` repeats.
NO_SHRINKING = tuple(phase for phase in Phase if phase is not Phase.shrink)
for profile, examples, phases in (
    ("test", 25, NO_SHRINKING),
    ("test-system", 200, NO_SHRINKING),
    ("nightly", 2000, tuple(Phase)),
):
    hypothesis.settings.register_profile(
        profile, deadline=None, print_blob=True, max_examples=examples, phases=phases
    )
hypothesis.settings.load_profile(TIER if TIER in ("test-system", "nightly") else "test")


class SessionFixtures:
    """Marks resources of session fixtures as shared.

    A plugin, because hooks of a conftest in a subfolder do not see fixtures of the session.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Do not count what a session fixture starts as a leak of the test that uses it first."""
        if fixturedef.scope != "session":
            return (yield)
        with shared_by_tests():
            return (yield)


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    if TIER and TIER not in TIERS:
        raise pytest.UsageError(f"EDL_TEST_TIER={TIER} is none of {', '.join(TIERS)}")
    watch_descendants()
    config.pluginmanager.register(SessionFixtures())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Background jobs of a shell ignore Ctrl-C, and programs that tests start inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip files without tests of the tier: importing them would take most of the start-up time."""
    if TIER not in ("test", "test-system") or not collection_path.match("test_*.py"):
        return None
    if _in_system_folder(collection_path):
        return True if TIER == "test" else None
    words = ALL_SYSTEM if TIER == "test" else SYSTEM_WORDS
    found = words.search(collection_path.read_text()) is not None
    return (found if TIER == "test" else not found) or None


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    # The longest tests first, so that no worker still has several when the others have finished.
    items.sort(key=lambda item: not _in_system_folder(item.path))
    for item in items:
        if _in_system_folder(item.path):
            item.add_marker("system")
        if _shares_a_fixture(item):  # on one worker, so that the fixture is made once
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    yield
    for item in items:
        # xdist 3.8 appends the group to `_nodeid`, which pytest 9.2 no longer reads.
        if (grouped := getattr(item, "_nodeid", item.nodeid)) != item.nodeid:
            item._id = type(item._id).parse(grouped)  # noqa: SLF001 - there is no public way


def _in_system_folder(path: Path) -> bool:
    return path.relative_to(Path(__file__).parent).parts[0] in SYSTEM_FOLDERS


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Whether a test uses a fixture with the scope of its module, package or class."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs  # noqa: SLF001 - pytest has no public access
    return any(
        definitions[-1].scope in ("module", "package", "class")
        for name, definitions in fixtures.items()
        if name != "module_leaves_nothing_behind"
    )


def pytest_report_header() -> str:
    return f"random seed: {SEED} (repeat with {SEED_VARIABLE}={SEED})"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode
) -> None:
    """Print the seed after failures if `-q` suppressed the header."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED and terminalreporter.verbosity < 0:
        terminalreporter.write_line(pytest_report_header())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report a test by the id that selects it, without the group that xdist appends."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        group = Path(report.nodeid.partition("::")[0]).stem
        report.nodeid = report.nodeid.removesuffix(f"@{group}")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers for one test, different in each run; the header has the seed."""
    return random.Random(f"{SEED}/{request.node.path.name}/{request.node.name}")


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """URL of a Valkey that the tests of one worker share: use unique service names, never flush."""
    from edl.coordinator.embedded import start_embedded

    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture(autouse=True, scope="module")
def module_leaves_nothing_behind() -> Iterator[list[ProcessResources]]:
    """Fail a module if its shared fixtures leave threads, processes or shared memory behind."""
    known = [ProcessResources.now()]
    yield known
    if leaks := leaked_since(known[-1]):
        pytest.fail(f"the module left behind: {'; '.join(leaks)}", pytrace=False)


@pytest.fixture(autouse=True)
def test_leaves_nothing_behind(
    module_leaves_nothing_behind: list[ProcessResources],
) -> Iterator[None]:
    """Fail a test that leaves threads, processes or shared memory behind."""
    before = ProcessResources.now()
    yield
    if leaks := leaked_since(before):
        module_leaves_nothing_behind.append(ProcessResources.now())  # reported once
        pytest.fail(f"left behind: {'; '.join(leaks)}", pytrace=False)


@pytest.fixture(autouse=True)
def process_settings_end_with_the_test() -> Iterator[None]:
    """Restore what commands set for their process: the handlers of signals, and logging."""
    of_signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    level, of_logs = root.level, list(root.handlers)
    yield
    for number, handler in of_signals.items():
        if handler is not None:  # of a C library: Python cannot restore it
            signal.signal(number, handler)
    root.setLevel(level)
    for added in [one for one in root.handlers if one not in of_logs]:
        root.removeHandler(added)
