"""What a paper says, cell by cell, and what we have for it: the words of all reproductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: What a cell is to us. "calibrates": the model was fitted to it, so that it agrees says nothing.
#: "free": judged and counted. "derived": printed, follows from other cells; judged, not counted.
#: "contested": excluded by another statement of the same paper (`Contradiction`); shown only.
Use = Literal["calibrates", "free", "derived", "contested"]
#: Row and column of a cell.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """One published figure.

    Attributes:
        row: what was varied, as "8 cores"; rows stand in the order of their first cell.
        column: what was measured, as "EDL-Dist".
        value: the figure, above 0. Gains and savings are turned into ratios (+23.5 % is 1.235): the
            relative error of a difference near 0 says nothing.
        unit: as "img/s", "s", "x" for ratios.
        use: what it is to us.
        source: where it is printed; for a figure that the text states, how it follows from it.
    """

    row: str
    column: str
    value: float
    unit: str
    use: Use
    source: str

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"{self.row}, {self.column}: a figure above 0, not {self.value}")

    @property
    def key(self) -> Key:
        """Row and column."""
        return self.row, self.column


@dataclass(frozen=True, slots=True)
class ExpectedOrder:
    """What a paper states of more and less, beyond what its cells show.

    Attributes:
        falling: keys of ours, each figure more than the next.
        source: where it is said.
    """

    falling: tuple[Key, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two statements of a paper that cannot both be so.

    Attributes:
        one: the first, with its place.
        other: the second, with its place.
        because: why not both, with the arithmetic.
        chosen: what the reproduction does about it.
    """

    one: str
    other: str
    because: str
    chosen: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table, figure or statement that is reproduced.

    Attributes:
        name: of the module, as "table1".
        title: in a line.
        source: which paper, where in it.
        setting: what ran on what, as published.
        calibration: what was fitted to which cells, and what was taken from elsewhere, in words.
        cells: the published figures.
        ranked: columns with one unit, compared with each other in each row, and row with row; in
            the paper's order wherever its figures differ by more than `tie`.
        orders: statements of more and less besides.
        contradictions: where the paper contradicts itself.
        least_free: so many free cells are owed.
        tie: figures that differ by less (relative) count as equal in the paper.
        within: most that a free cell may be off, relative.
    """

    name: str
    title: str
    source: str
    setting: str
    calibration: str
    cells: tuple[Cell, ...]
    ranked: tuple[str, ...] = ()
    orders: tuple[ExpectedOrder, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    least_free: int = 3
    tie: float = 0.02
    within: float = 0.10

    def __post_init__(self) -> None:
        keys = [cell.key for cell in self.cells]
        if len(set(keys)) != len(keys):
            raise ValueError(f"{self.name}: a row and column name one cell")
        if missing := set(self.ranked) - {column for _, column in keys}:
            raise ValueError(f"{self.name}: ranked columns without a cell: {sorted(missing)}")

    @property
    def rows(self) -> list[str]:
        """The rows, in their order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """The columns, in their order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def value(self, row: str, column: str) -> float:
        """The paper's figure.

        Raises:
            KeyError: it has none there.
        """
        for cell in self.cells:
            if cell.key == (row, column):
                return cell.value
        raise KeyError((row, column))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reproduction found.

    Attributes:
        values: our figure for each cell of the experiment, in its unit, and for each key of its
            orders; others may be there too.
        model: what devices were taken for, name to figure or words; shown, and kept in the JSON.
        series: curves for a picture or a table besides: name -> figures; all of JSON's types.
        notes: what a reader has to know, a sentence each.
    """

    values: Mapping[Key, float]
    model: Mapping[str, float | str] = field(default_factory=dict)
    series: Mapping[str, Sequence[float | str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
