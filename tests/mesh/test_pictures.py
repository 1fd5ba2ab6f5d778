"""Pictures of the demo, of simulations and of plans: in the format that their names ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from edl.mesh.demo.picture import draw
from edl.mesh.plan import cli as plan_cli
from edl.mesh.simulate import cli as simulate_cli
from edl.tests.mesh.plan.test_plan import FILES
from edl.tests.mesh.simulate.test_simulate import SMALL
from edl.tests.mesh.test_demo_report import report

pytestmark = pytest.mark.system
COMMANDS: dict[str, Callable[..., None]] = {
    "plan": plan_cli.plan,
    "simulate": simulate_cli.simulate,
}


@pytest.mark.parametrize(
    ("command", "options", "name"),
    [
        ("plan", ("--what-if", "teachers=24..56/16"), "plan.png"), ("plan", (), "plan.svg"),
        ("simulate", (), "run.png"), ("simulate", ("--fluid",), "run.svg"),
    ],
)  # fmt: skip
def test_a_plot_has_the_format_of_its_name(
    tmp_path: Path, command: str, options: tuple[str, ...], name: str
) -> None:
    app = typer.Typer()
    app.command()(COMMANDS[command])
    small = tmp_path / "small.yaml"
    small.write_text(SMALL)
    files = FILES if command == "plan" else (str(small),)
    words = [*files, *options, "--plot", str(tmp_path / "out" / name)]
    (tmp_path / "out").mkdir()
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (drawn,) = (tmp_path / "out").iterdir()
    assert (b"<svg" if name.endswith("svg") else b"\x89PNG") in drawn.read_bytes()[:1000]


def test_the_picture_of_the_demo_is_a_png_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    draw(report(), path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["picture"]
