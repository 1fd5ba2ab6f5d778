"""`edl store inspect|disown|export`: commands for label stores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...runtime.errors import LabelStoreUnavailable
from ...runtime.structured_option import AsJson, Given, Key, StructuredOption

if TYPE_CHECKING:
    from .exporting import Inventory

app = typer.Typer(
    no_args_is_help=True,
    help="Label stores, the files in which readers keep soft labels: inspect, export, delete rows.",
)

#: A size at which nothing is evicted, because the readers' `max_bytes` is unknown here.
NO_LIMIT_BYTES = 1 << 44

StorePath = Annotated[
    str, typer.Argument(metavar="PATH", help="Path of the store, as in LabelStore(PATH, ...).")
]


@dataclass(frozen=True, slots=True)
class FormKeys:
    """Keys of `--form`."""

    form: Annotated[
        str,
        Key(
            "float32, bfloat16, float16 or topk:K. "
            "Default: float32 with a temperature, else as stored."
        ),
    ] = ""
    temperature: Annotated[
        float | None, Key("convert logits to their softmax at this temperature.")
    ] = None
    dense: Annotated[
        bool, Key("decode labels that have a form to float32 of all classes; change no others.")
    ] = False


FORM: Final = StructuredOption("--form", FormKeys, first="form")


@app.command()
def inspect(
    path: StorePath,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check every row and the pages of the file, and show no content; exit code 65 if "
            "any is damaged. Meanwhile, readers may be unable to store new labels.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of a store: rows, bytes, models, forms, hits, age.

    A row is the label of one sample, by one model. Readers may use the store meanwhile. The command
    changes nothing; damaged rows are deleted by readers that find them.
    """
    from .database import Database
    from .exporting import inventory_of
    from .exporting import verify as verify_rows

    with Database(path) as database:
        inventory = inventory_of(database)
        if verify:
            with _progress("verifying", inventory.rows) as on_progress:
                rows = verify_rows(database, on_progress)
            result = {"rows": rows, "damaged": 0}
            typer.echo(json.dumps(result) if as_json else f"{rows} rows, none damaged")
            return
    if as_json:
        typer.echo(json.dumps(_to_json(inventory), indent=2))
    else:
        _show(inventory)


@app.command()
def disown(
    path: StorePath,
    teacher: Annotated[
        str,
        typer.Argument(
            metavar="TEACHER",
            help="Id of the teacher; for one named by teachers=[...], its address.",
        ),
    ],
) -> None:
    """Delete all rows that a teacher has labelled, alone or with others.

    Readers have those samples labelled anew.
    """
    from . import LabelStore
    from .database import Database
    from .store import LabelDatabase

    Database(path).close()  # raises if there is no store; `LabelDatabase` would create one
    with LabelDatabase(LabelStore(path, NO_LIMIT_BYTES)) as store:
        store.disown(teacher)
        stats = store.stats
    if stats.trouble or not store.writable:
        raise LabelStoreUnavailable(stats.trouble or f"the label store {path} can only be read")
    typer.echo(f"{stats.disowned} rows of {teacher} deleted")


@app.command()
def export(
    path: StorePath,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder to write to; created if missing.")
    ],
    content: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="content_id of the model, or the name that `edl store inspect` shows if several "
            "have that content_id. Default: the only model.",
        ),
    ] = "",
    form: Annotated[
        list[Given] | None, FORM.option("Form of the labels, as in topk:8,temperature=2.")
    ] = None,
    rows_per_file: Annotated[int, typer.Option(min=1, help="Maximum rows of a .npz.")] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Write keys, ids and labels to numpy files: labels-00000.npz and so on, and labels.json.

    The files serve for training without a reader, or with another tool. labels.json is written
    last: if it exists, all files are complete.
    """
    from ...proto.forms import LabelForm
    from .database import Database
    from .exporting import LabelExport, find_model_id, inventory_of

    keys = FORM.read(form)
    requested = LabelForm.parse(keys.form or None, keys.temperature)
    with Database(path) as database:
        inventory = inventory_of(database)
        model = find_model_id(inventory, content)
        labels = LabelExport(folder, model, requested, keys.dense, rows_per_file)
        with _progress("exporting", inventory.rows) as on_progress:
            exported = labels.write(database, on_progress)
    if as_json:
        typer.echo(json.dumps(exported, indent=2))
    else:
        skipped = f"{exported['skipped']} skipped (damaged, or not available in this form)"
        typer.echo(f"{exported['rows']} rows to {folder}, {skipped}")


@contextmanager
def _progress(what: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=rows)
        yield lambda done: bar.update(task, completed=done)


def _to_json(inventory: Inventory) -> dict[str, Any]:
    layouts = [
        {
            **(group.layout.model_id._asdict() if group.layout else {"content_id": None}),
            "outputs": _outputs(group.layout),
            "rows": group.rows,
            "bytes": group.nbytes,
            "made": list(group.made_s),
            "used": list(group.used_s),
        }
        for group in inventory.groups
    ]
    return {
        "rows": inventory.rows,
        "disk_bytes": inventory.disk_bytes,
        "used_bytes": inventory.used_bytes,
        "kinds": layouts,
        "services": inventory.services,
        "counters": inventory.counters,
    }


def _outputs(layout: Any) -> list[str]:
    """Describe each output, as in `logits float16 T=2 FP16[1000]`."""
    if layout is None:
        return ["damaged"]
    return [
        " ".join(
            [
                entry.output,
                *([str(entry.form)] if entry.form else []),
                *(
                    [f"T={entry.form.temperature:g}"]
                    if entry.form and entry.form.temperature
                    else []
                ),
                *(f"{piece.datatype}{list(piece.shape)}" for piece in entry.pieces),
            ]
        )
        for entry in layout.entries
    ]


def _show(inventory: Inventory) -> None:
    from rich.console import Console
    from rich.table import Table

    console, now = Console(markup=False, emoji=False, highlight=False), time.time()
    table = Table("content", "outputs", "rows", "MiB", "made", "used")
    for group in inventory.groups:
        content = str(group.layout.model_id) if group.layout else "damaged"
        made, used = (_ago(now - at) for at in (group.made_s[0], group.used_s[1]))
        size = f"{group.nbytes / 2**20:,.1f}"
        table.add_row(
            content, "\n".join(_outputs(group.layout)), f"{group.rows:,}", size, made, used
        )
    console.print(table)
    counters = inventory.counters
    hits, lookups = counters.get("hits", 0), counters.get("hits", 0) + counters.get("misses", 0)
    share = f"{100 * hits / lookups:.1f} % of {lookups:,}" if lookups else "no lookups"
    console.print(
        f"{inventory.rows:,} rows, {inventory.disk_bytes / 2**20:,.1f} MiB on disk; hits: {share}"
    )
    for name in ("written", "evicted", "damaged", "disowned", "dropped"):
        console.print(f"{name}: {counters.get(name, 0):,}")
    for service, content_id in inventory.services.items():
        console.print(f"service {service}: content {content_id}")


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0, seconds):.0f} s ago"
