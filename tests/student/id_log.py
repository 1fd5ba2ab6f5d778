"""Reads the id logs of a training: which steps survived, and that each sample was trained once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [
        json.loads(line)
        for file in sorted(folder.glob("rank-*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return sorted(found, key=lambda one: (one["generation"], one["step"], one["rank"]))


def surviving(folder: Path, restored: Mapping[int, int]) -> list[dict[str, Any]]:
    """Lines of the steps that no later generation has begun before, of all ranks."""

    def survives(line: dict[str, Any]) -> bool:
        later = [step for number, step in restored.items() if number > line["generation"]]
        return int(line["step"]) <= min(later, default=int(line["step"]))

    return [line for line in lines(folder) if survives(line)]


def check_each_once(folder: Path, restored: Mapping[int, int], rows: int, epochs: int) -> None:
    """Each of `rows` samples was trained exactly once in each epoch of the surviving history."""
    _check_epochs(surviving(folder, restored), [rows] * epochs)


def assert_each_once(folder: Path, sizes: Sequence[int], but: int | None = None) -> None:
    """As above where no step was lost, of epochs of any sizes; steps say how many rows they had.

    An epoch `but` is one that was left: nothing is expected of it.
    """
    found = lines(folder)
    totals: Counter[tuple[int, int]] = Counter()
    for line in found:
        totals[line["generation"], line["step"]] += line["rows"]
    assert dict(totals) == {(one["generation"], one["step"]): one["total"] for one in found}
    _check_epochs([line for line in found if line["epoch"] != but], sizes)


def _check_epochs(of: Iterable[Mapping[str, Any]], sizes: Sequence[int]) -> None:
    """By sample ids: positions alone depend on the seed."""
    trained: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for line in of:
        trained[line["epoch"]].update(line["ids"])
    assert sorted(trained) == list(range(len(sizes)))
    for epoch, size in enumerate(sizes):
        assert trained[epoch] == Counter(range(size)), f"epoch {epoch}"
