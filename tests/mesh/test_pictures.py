"""Pictures of simulations and of plans: in the format that their names ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from edl.mesh.plan.cli import plan
from edl.mesh.simulate.cli import simulate
from edl.tests.mesh.plan.test_plan import FILES
from edl.tests.mesh.simulate.test_simulate import SMALL

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("command", "options", "name"),
    [
        (plan, ("--what-if", "teachers=24..56/16"), "plan.png"),
        (plan, (), "plan.svg"),
        (simulate, (), "run.png"),
        (simulate, (), "run.svg"),
    ],
)
def test_a_plot_has_the_format_of_its_name(
    tmp_path: Path, command: Callable[..., None], options: tuple[str, ...], name: str
) -> None:
    app = typer.Typer()
    app.command()(command)
    small = tmp_path / "small.yaml"
    small.write_text(SMALL)
    files = FILES if command is plan else (str(small),)
    words = [*files, *options, "--plot", str(tmp_path / "out" / name)]
    (tmp_path / "out").mkdir()
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (drawn,) = (tmp_path / "out").iterdir()
    assert (b"<svg" if name.endswith("svg") else b"\x89PNG") in drawn.read_bytes()[:1000]
