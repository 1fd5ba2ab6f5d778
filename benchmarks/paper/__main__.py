"""The command of `make tables`: simulate experiments, store results, write their page."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ...runtime.errors import EdlError, UsageError
from ..cli import experiments
from . import page, picture
from .tables import run_simulation


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Run only these experiments; the page has all stored results."
        ),
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for JSON and PNG files.")
    ] = page.RESULTS,
    page_file: Annotated[
        Path, typer.Option("--page", metavar="FILE", help="File of the page.")
    ] = page.PAGE,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Only write the page, from stored results.")
    ] = False,
) -> None:
    """Simulate experiments, and write the page; exit with 1 if a result contradicts its paper."""
    console, all_agree = Console(), True
    known = experiments()
    if unknown := sorted(set(names or ()) - set(known)):
        raise UsageError(f"there is no experiment {unknown[0]!r}; there are: {', '.join(known)}")
    for name in () if page_only else (names or known):
        module, began_s = importlib.import_module(f".{name}", __package__), time.monotonic()
        report = run_simulation(module, quick=False)
        report.show(console)
        console.print(f"{name} took {time.monotonic() - began_s:.1f} s\n")
        all_agree = all_agree and report.holds
        document = report.to_json()
        target = results / f"paper-{name}.json"
        target.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        getattr(module, "draw", picture.draw)(document, target.with_suffix(".png"))
        if hasattr(module, "files"):
            for ending, text in module.files(document).items():
                (results / f"paper-{name}-{ending}").write_text(text, "utf-8")
    page_file.write_text(page.markdown(page.documents(results)), "utf-8")
    if not all_agree:
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        typer.run(main)
    except EdlError as error:
        raise SystemExit(f"error: {error}") from error
