"""Pictures of simulations and of plans: in the format that their names ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from edl.tests.cli_output import output_of
from edl.tests.mesh.plan.test_plan import FILES, PLAN
from edl.tests.mesh.simulate.test_simulate import SIMULATE, SMALL

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("app", "options", "name"),
    [
        (PLAN, ("--what-if", "teachers=24..56/16"), "plan.png"),
        (PLAN, (), "plan.svg"),
        (SIMULATE, (), "run.png"),
        (SIMULATE, (), "run.svg"),
        (SIMULATE, (), "run.pdf"),
    ],
)
def test_a_plot_has_the_format_of_its_name(
    tmp_path: Path, app: typer.Typer, options: tuple[str, ...], name: str
) -> None:
    small = tmp_path / "small.yaml"
    small.write_text(SMALL)
    files = FILES if app is PLAN else (small,)
    (tmp_path / "out").mkdir()
    output_of(app, *files, *options, "--plot", tmp_path / "out" / name)
    (drawn,) = (tmp_path / "out").iterdir()
    begins = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert begins[name[-3:]] in drawn.read_bytes()[:1000]
