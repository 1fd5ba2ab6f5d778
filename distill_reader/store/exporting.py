"""A store as plain files of numpy, for those who train from labels that lie there.

```
labels.json          {"content_id", "numerics_id", "rows", "skipped", "files": [{"file", "rows"}]}
labels-00000.npz     sample_key       uint8 [n, 16]: what `keys.keys_of` says of the sample
                     sample_id.0 ...  [n, ...]: the user's ids, where the store was filled by them
                     OUTPUT           [n, ...]: labels, or OUTPUT.values, .indices, .tail of top-k
```

A file holds rows whose labels have one shape and one form; `labels.json` is written last. bfloat16,
which files of numpy do not know, becomes float32.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...errors import RequestRefused, StoreUnavailable, UsageError
from ...proto.datatypes import Array
from ...proto.form_arrays import decode
from ...proto.forms import Form
from .database import Database
from .looking import each_row, take_stock
from .richness import covers, derived
from .rows import Content, Layout, Row, unpack


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is exported.

    Attributes:
        content: whose labels.
        form: in which form; None: as they are kept.
        dense: top-k as dense float32.
        rows_per_file: at most so many.
    """

    content: Content
    form: Form | None = None
    dense: bool = False
    rows_per_file: int = 10_000


@dataclass(slots=True)
class _Shards:
    """Rows on their way into files, those of one layout together."""

    folder: Path
    wanted: Wanted
    rows: int = 0
    skipped: int = 0
    files: list[dict[str, object]] = field(default_factory=list)
    waiting: dict[Layout, list[tuple[bytes, Row]]] = field(default_factory=dict)

    def add(self, key: bytes, row: Row) -> None:
        some = self.waiting.setdefault(row.layout, [])
        some.append((key, row))
        if len(some) == self.wanted.rows_per_file:
            self.write(row.layout)

    def write(self, layout: Layout) -> None:
        some = self.waiting.pop(layout)
        try:
            arrays = _arrays([row for _, row in some], self.wanted)
        except RequestRefused:  # no row of this layout can have that form
            self.skipped += len(some)
            return
        keys = np.frombuffer(b"".join(key for key, _ in some), np.uint8).reshape(len(some), -1)
        name = f"labels-{len(self.files):05}.npz"
        _write_npz(self.folder / name, {"sample_key": keys, **arrays})
        self.files.append({"file": name, "rows": len(some)})
        self.rows += len(some)


def content_of(database: Database, content_id: str) -> Content:
    """The content of that id, or the only one; bits may differ by numerics, so one is named.

    Raises:
        UsageError: there is none, or more than one.
    """
    layouts = [kind.layout for kind in take_stock(database).kinds if kind.layout is not None]
    contents = list(dict.fromkeys(layout.content for layout in layouts))
    chosen = [one for one in contents if content_id in ("", one.content_id, "/".join(one))]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join("/".join(one).rstrip("/") for one in contents) or "none"
    raise UsageError(f"name one content of the store by --content; there are: {known}")


def export(
    database: Database, folder: Path, wanted: Wanted, on_progress: Callable[[int], None]
) -> dict[str, object]:
    """Write all rows of one content into `folder`, which is made.

    Returns:
        What stands in labels.json.

    Raises:
        UsageError: an export is there already.
        StoreDamaged: the file is broken; rows that are damaged are skipped.
        StoreUnavailable: the folder cannot be written.
    """
    index = folder / "labels.json"
    if index.exists():
        raise UsageError(f"{folder} holds an export already: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shards = _Shards(folder, wanted)
        looked = 0
        for some, damaged in each_row(database):
            shards.skipped += damaged
            for key, row in some:
                if row.layout.content == wanted.content:
                    shards.add(key, row)
            looked += len(some) + damaged
            on_progress(looked)
        for layout in list(shards.waiting):
            shards.write(layout)
        told: dict[str, object] = {
            **wanted.content._asdict(),
            "rows": shards.rows,
            "skipped": shards.skipped,
            "files": shards.files,
        }
        index.with_suffix(".part").write_text(json.dumps(told, indent=2) + "\n")
        os.replace(index.with_suffix(".part"), index)
    except OSError as error:
        raise StoreUnavailable(f"{folder} cannot be written: {error}") from None
    return told


def _arrays(rows: list[Row], wanted: Wanted) -> dict[str, Array]:
    """The arrays of one file by name.

    Raises:
        RequestRefused: an output cannot have the form that is wanted.
    """
    layout, arrays = rows[0].layout, unpack(rows)
    made = {f"sample_id.{place}": arrays[place] for place in range(len(layout.ids))}
    at = len(layout.ids)
    left = dict.fromkeys(layout.outputs)
    for entry in layout.entries:
        own, at = arrays[at : at + len(entry.pieces)], at + len(entry.pieces)
        form = wanted.form if wanted.form is not None else entry.form
        if entry.output not in left or not covers(entry, form):
            continue
        del left[entry.output]
        parts = derived(entry, own, form)
        if wanted.dense and form is not None:
            classes = entry.classes or entry.pieces[0].shape[-1]
            parts = {entry.output: decode(entry.output, parts, form, form.parameters(classes))}
        made |= parts
    if left:
        raise RequestRefused(
            f"outputs {list(left)} are not kept in a form that gives {wanted.form}"
        )
    return made


def _write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """As numpy.savez does, for outputs of whatever name."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(np.float32) if array.dtype.kind == "V" else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, plain, allow_pickle=False)
