"""The commands `edl checkpoint list` and `edl checkpoint prune`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...runtime.errors import CheckpointDamaged, UsageError
from ...runtime.structured_option import AsJson

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .repository import Repository

app = typer.Typer(no_args_is_help=True, help="Checkpoints of trainings: list, verify, prune.")

Where = Annotated[
    str,
    typer.Argument(
        metavar="PLACE", help="Folder or URL (s3://, gs://, hdfs://, ...) of checkpoints."
    ),
]


@app.command("list")
def list_(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="Folder or URL of checkpoints, or of one of them."),
    ],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Read every byte and compare it with the checksums; exit code 65 if a checkpoint"
            " is damaged.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List checkpoints, the newest first.

    Without --verify, this reads only MANIFEST.json, JOINED.json and the lengths of the other files.
    It changes nothing and may run beside a training, which skips damaged checkpoints at its start.
    """
    from .repository import located

    repository, named = located(place)
    checkpoints = repository.list() if named is None else [named]
    if verify and not checkpoints:
        raise UsageError(f"there is no checkpoint at {place}")
    if verify:
        checkpoints = list(_verified(repository, checkpoints))
    if as_json:
        typer.echo(json.dumps([_to_json(one) for one in checkpoints], indent=2))
    elif verify:
        for one in checkpoints:
            typer.echo(one.problem or f"{one.name}: whole")
    elif checkpoints:
        _print_table(checkpoints)
    else:
        typer.echo(f"there is no checkpoint at {place}")
    damaged = sum(bool(one.problem) for one in checkpoints)
    if verify and damaged:
        raise CheckpointDamaged(f"{damaged} of {len(checkpoints)} checkpoints are damaged")


def _verified(repository: Repository, checkpoints: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    """Read the checkpoints; yield each with its problem, unless it was pruned meanwhile."""
    for one in checkpoints:
        try:
            repository.verify(one)
            yield replace(one, problem="")
        except CheckpointDamaged as error:
            if repository.find(one.name) is not None:
                yield replace(one, problem=str(error))


@app.command()
def prune(
    place: Where,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Number of whole checkpoints to keep.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed; remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove all checkpoints but the newest whole ones.

    A damaged checkpoint is removed once N newer whole ones exist. An elastic training adds
    JOINED.json to a checkpoint that joins its history. A checkpoint that has not joined does not
    count. It is removed once N whole ones exist and a day has passed since its save began. The
    coordinator is not involved: a running training continues, and its next start takes the newest
    remaining checkpoint. Keep 2 or more while a training runs.
    """
    from .repository import Repository

    removed = Repository(place, keep).prune(dry_run)
    if as_json:
        typer.echo(json.dumps([_to_json(one) for one in removed], indent=2))
        return
    for checkpoint in removed:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {checkpoint.location}")
    if not removed:
        typer.echo("nothing to remove")


def _to_json(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "name": checkpoint.name,
        "location": checkpoint.location,
        "step": checkpoint.step,
        "world": checkpoint.world,
        "made_s": checkpoint.made_s,
        "bytes": checkpoint.nbytes,
        "problem": checkpoint.problem,
        "sequence": checkpoint.sequence,
        "eligible": checkpoint.eligible,
        "fingerprint": dict(checkpoint.provenance.fingerprint),
        "accepted": [dict(change) for change in checkpoint.provenance.accepted],
    }


def _print_table(checkpoints: Sequence[Checkpoint]) -> None:
    from rich.console import Console
    from rich.table import Table

    now = time.time()
    table = Table("name", "step", "age", "world", "MiB", "valid")
    for one in checkpoints:
        age = _age(now - one.made_s) if one.made_s else "?"
        world, size = str(one.world or "?"), f"{one.nbytes / 2**20:,.1f}"
        problem = one.problem or ("" if one.eligible else "it has not joined the history")
        valid = f"no: {problem}" if problem else "yes"
        table.add_row(one.name, str(one.step), age, world, size, valid)
    Console().print(table)


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
