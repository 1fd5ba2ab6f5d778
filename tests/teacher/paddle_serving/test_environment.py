"""Which steps make an environment, and when none is taken; pip itself is stood in for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edl.errors import ProcessFailed, UsageError
from edl.teacher.paddle_serving import environment
from edl.teacher.paddle_serving.environment import main, make, recipe


class Steps:
    """Stands in for venv and pip: keeps what was asked, and makes the folders they would make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken: list[tuple[str, ...]] = []
        self.fails = ""

    def __call__(self, name: str, *argv: str, cwd: Path | None = None) -> None:
        self.taken.append((name, *argv))
        if name == self.fails:
            raise ProcessFailed(f"{name} ended with exit code 1: no such release")
        if name == "venv":
            (self.folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
            (self.folder / "bin").mkdir()
            (self.folder / "bin" / "python").symlink_to(sys.executable)
        if "--target" in argv:
            client = Path(argv[argv.index("--target") + 1]) / "paddle_serving_client"
            client.mkdir()
            (client / "httpclient.py").write_text("")
            (client / "serving_client.so").write_text("")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps(tmp_path / "serving")
    monkeypatch.setattr(environment, "_run", steps)
    return steps


def test_an_environment_is_made_once(steps: Steps, tmp_path: Path) -> None:
    told: list[str] = []
    python = make(steps.folder, recipe(), told.append)
    assert python == steps.folder / "bin" / "python"
    assert [name for name, *_ in steps.taken] == ["venv", "pip", "pip", "pip", "check"]
    assert ["--no-deps" in step for step in steps.taken[1:4]] == [False, True, True]
    site = steps.folder / "lib" / "python3.11" / "site-packages"
    assert [file.name for file in (site / "paddle_serving_client").iterdir()] == ["httpclient.py"]
    compile((site / "sitecustomize.py").read_text(), "sitecustomize.py", "exec")
    assert str(python) in told[-1]
    steps.taken.clear()
    assert make(steps.folder, recipe(), told.append) == python
    assert not steps.taken
    assert "up to date" in told[-1]


@pytest.mark.parametrize("step", ["venv", "pip", "check"])
def test_a_failed_step_makes_it_again(steps: Steps, step: str) -> None:
    steps.fails = step
    with pytest.raises(ProcessFailed, match="no such release"):
        make(steps.folder, recipe(), print)
    steps.fails = ""
    steps.taken.clear()
    make(steps.folder, recipe(), print)
    assert [name for name, *_ in steps.taken] == ["venv", "pip", "pip", "pip", "check"]


def test_other_folders_are_left_alone(steps: Steps) -> None:
    steps.folder.mkdir()
    (steps.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds something else"):
        make(steps.folder, recipe(), print)
    assert (steps.folder / "thesis.tex").exists()
    assert not steps.taken


def test_the_command_and_its_errors(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(steps.folder)]) == 0
    steps.taken.clear()
    assert main([str(steps.folder), "--gpu"]) == 0, "another recipe makes it anew"
    assert "paddle-serving-server-gpu==0.9.0.post1028" in steps.taken[2]
    assert "paddlepaddle-gpu==2.6.2" in capsys.readouterr().out
    steps.folder = steps.folder.with_name("other")
    steps.fails = "pip"
    assert main([str(steps.folder)]) == 1
    assert capsys.readouterr().err == "edl: pip ended with exit code 1: no such release\n"
