"""Environments of others' programs: made once, again when their list changes, and well reported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edl.tests.interop import environments
from edl.tests.interop.environments import Environment

pytestmark = pytest.mark.interop

SMALL = Environment("small", newest=13, about_mib=10)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "made")
    monkeypatch.setattr(environments, "LISTS", tmp_path)
    SMALL.requirements.write_text("# nothing\n")


def test_one_is_made_by_who_comes_first_and_again_for_another_list(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with ThreadPoolExecutor(2) as threads:
        for made in [threads.submit(SMALL.make) for _ in range(2)]:
            made.result()
    assert SMALL.program("pip").is_file()
    assert capfd.readouterr().err.count("making") == 1
    (mark := SMALL.folder / "mark").touch()
    SMALL.make()
    assert mark.exists(), "it was as its list wants it"
    SMALL.requirements.write_text("# nothing else\n")
    SMALL.make()
    assert not mark.exists()


def test_a_failure_of_pip_is_shown_and_leaves_nothing_that_counts_as_made() -> None:
    SMALL.requirements.write_text("nothing-there @ file:///nowhere.whl\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"pip install .* ended with 1(.|\n)*nowhere\.whl"):
            SMALL.make()
    assert "nowhere.whl" in SMALL.log.read_text()


def test_without_a_python_that_is_old_enough_it_says_which() -> None:
    with pytest.raises(RuntimeError, match=r"needs Python 3\.11 to 3\.10.*put python3\.10 on PATH"):
        Environment("small", newest=10, about_mib=1).make()


def test_an_unknown_name_is_answered_with_the_known_ones(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert environments.main(["tritno"]) == 2
    assert "name some of triton, mlserver, kserve, envoy, paddle-serving" in capfd.readouterr().err
