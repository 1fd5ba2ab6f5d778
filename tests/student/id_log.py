"""Reads the id logs of a training: which steps survived, and that each sample was trained once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def lines(folder: Path) -> list[dict[str, Any]]:
    """All lines of all ranks, by generation and step."""
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


def _trained(of: Iterable[Mapping[str, Any]]) -> dict[int, Counter[int]]:
    """Epoch -> how often each sample id was trained; positions alone depend on the seed."""
    trained: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for line in of:
        trained[line["epoch"]].update(line["ids"])
    return dict(trained)


def check_each_once(folder: Path, restored: Mapping[int, int], rows: int, epochs: int) -> None:
    """Each of `rows` samples was trained exactly once in each epoch of the surviving history."""
    trained = _trained(surviving(folder, restored))
    assert sorted(trained) == list(range(epochs))
    for epoch, counts in trained.items():
        assert set(counts) == set(range(rows)), f"epoch {epoch} lacks samples"
        assert set(counts.values()) == {1}, f"epoch {epoch} has samples twice"


def assert_each_once(folder: Path, sizes: Sequence[int], but: int | None = None) -> None:
    """As above where no step was lost, of epochs of any sizes; steps say how many rows they had.

    An epoch `but` is one that was left: nothing is expected of it.
    """
    found = lines(folder)
    totals: Counter[tuple[int, int]] = Counter()
    for line in found:
        totals[line["generation"], line["step"]] += line["rows"]
    assert dict(totals) == {(one["generation"], one["step"]): one["total"] for one in found}
    trained = _trained(found)
    assert sorted(epoch for epoch in trained if epoch != but) == list(range(len(sizes)))
    for epoch, size in enumerate(sizes):
        assert trained[epoch] == Counter(range(size)), f"epoch {epoch}"
