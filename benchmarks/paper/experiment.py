"""Types of reproductions: a paper's published figures and statements, and our figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: The use of a cell. "calibrates": the model was fitted to it, so its agreement proves nothing.
#: "free": judged and counted. "derived": follows from other cells; judged but not counted.
#: "contested": excluded by another statement of the same paper (`Contradiction`); only shown.
Use = Literal["calibrates", "free", "derived", "contested"]
#: Row and column of a cell.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """One published figure.

    Attributes:
        row: the varied condition, as "8 cores"; rows have the order of their first cells.
        column: the measured quantity, as "EDL-Dist".
        value: the figure, above 0. Gains and savings are converted to ratios (+23.5 % is 1.235), as
            the relative error of a difference near 0 means nothing.
        unit: as "img/s", "s", or "x" for ratios.
        use: use of the cell.
        source: where it is printed; for a figure from the text, also how it follows.
    """

    row: str
    column: str
    value: float
    unit: str
    use: Use
    source: str

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(
                f"{self.row}, {self.column}: expects a figure above 0, got {self.value}"
            )

    @property
    def key(self) -> Key:
        """Row and column."""
        return self.row, self.column


@dataclass(frozen=True, slots=True)
class ExpectedOrder:
    """An order of figures that a paper states, beyond the order of its cells.

    Attributes:
        falling: keys of our figures in falling order.
        source: where the paper states it.
    """

    falling: tuple[Key, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two statements of a paper that cannot both be true.

    Attributes:
        one: the first statement, with its section.
        other: the second statement, with its section.
        because: the reason, with the arithmetic.
        chosen: how the reproduction deals with it.
    """

    one: str
    other: str
    because: str
    chosen: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table, figure or statement to reproduce.

    Attributes:
        name: name of the module, as "table1".
        title: title in one line.
        source: the paper, and the place in it.
        setting: the published models, devices and sizes.
        calibration: describes the fitted parameters with the cells to which they are fitted, and
            values from other sources.
        cells: the published figures.
        ranked: columns with one unit. Their order within each row, and the order of rows in each of
            them, must be the paper's wherever its figures differ by more than `tie_tolerance`.
        orders: further statements of order.
        contradictions: contradictions within the paper.
        min_free_cells: least number of free cells.
        tie_tolerance: figures of the paper with a smaller relative difference count as equal.
        max_error: greatest relative error of a judged cell.
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
    min_free_cells: int = 3
    tie_tolerance: float = 0.02
    max_error: float = 0.10

    def __post_init__(self) -> None:
        keys = [cell.key for cell in self.cells]
        if len(set(keys)) != len(keys):
            raise ValueError(f"{self.name}: two cells have the same row and column")
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a reproduction.

    Attributes:
        values: our figure for each cell of the experiment, in its unit, and for each key of its
            orders; there may be others.
        model: assumptions about devices: name -> figure or text; shown, and stored in the JSON.
        series: curves for a picture or another table: name -> figures, of JSON types.
        notes: remarks for the reader, one sentence each.
    """

    values: Mapping[Key, float]
    model: Mapping[str, float | str] = field(default_factory=dict)
    series: Mapping[str, Sequence[float | str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
