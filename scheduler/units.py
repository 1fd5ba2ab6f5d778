"""Units and bounds of the numbers in files such as descriptions of clusters and jobs.

A dataclass field that is read from a file is annotated with one of the names below, or with
`Annotated[float, Number(...)]`. Type checkers see the plain type. Parsers of files (`mesh/files/`)
see the unit and the bounds: they read `bandwidth_bytes_per_s: 10 Gbit/s` as a number, and report
`price_per_hour: -1` as an error with its line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

#: Unit -> accepted suffix of a number -> factor.
SPELLINGS: dict[str, dict[str, float]] = {
    "s": {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
    "bytes": {
        "B": 1.0,
        "kB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "TB": 1e12,
        "KiB": 2.0**10,
        "MiB": 2.0**20,
        "GiB": 2.0**30,
        "TiB": 2.0**40,
    },
    "bytes/s": {
        "B/s": 1.0,
        "kB/s": 1e3,
        "MB/s": 1e6,
        "GB/s": 1e9,
        "MiB/s": 2.0**20,
        "GiB/s": 2.0**30,
        "kbit/s": 125.0,
        "Mbit/s": 125e3,
        "Gbit/s": 125e6,
    },
    "samples/s": {"/s": 1.0, "samples/s": 1.0},
    "share": {"%": 0.01},
}
#: Examples for error messages, by unit.
EXAMPLES = {
    "s": "80 ms",
    "bytes": "16 GiB",
    "bytes/s": "10 Gbit/s",
    "samples/s": "240 /s",
    "share": "5 %",
}


#: Largest accepted magnitude; its inverse is the smallest. Numbers beyond them are mistakes.
LARGEST = 1e18


def sensible(value: float) -> bool:
    """Whether a number is 0 or within the range of plausible magnitudes."""
    return value == 0 or 1 / LARGEST <= abs(value) <= LARGEST


@dataclass(frozen=True, slots=True)
class Number:
    """The numbers that a field accepts, in `Annotated[float, Number(...)]` or with `int`.

    Attributes:
        unit: a unit of `SPELLINGS`; empty: numbers have no suffix.
        above: exclusive lower bound.
        at_least: lower bound.
        at_most: upper bound.
    """

    unit: str = ""
    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    def takes(self, value: float) -> bool:
        """Whether the value is within the bounds, and `sensible`."""
        return (
            sensible(value)
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
        )

    def bounds(self) -> str:
        """Return the bounds as text that begins with a space; empty: there are none."""
        low = "" if self.above is None else f" above {self.above:g}"
        low += "" if self.at_least is None else f" of at least {self.at_least:g}"
        high = "" if self.at_most is None else f" of at most {self.at_most:g}"
        return f"{low}{' and' if low and high else ''}{high}"


#: Seconds, above 0 or from 0 on: `0.08`, `80 ms`, `2 min`.
Seconds = Annotated[float, Number("s", above=0)]
SecondsOrZero = Annotated[float, Number("s", at_least=0)]
#: Bytes: `4816896`, `4.8 MB`, `16 GiB`.
Bytes = Annotated[float, Number("bytes", above=0)]
BytesOrZero = Annotated[float, Number("bytes", at_least=0)]
#: Bytes per second: `125e6`, `1 Gbit/s`.
BytesPerSecond = Annotated[float, Number("bytes/s", above=0)]
#: Samples per second: `240`, `240 /s`.
SamplesPerSecond = Annotated[float, Number("samples/s", above=0)]
#: A share of a whole, 0 to 1: `0.05`, `5 %`.
Share = Annotated[float, Number("share", at_least=0, at_most=1)]
#: Numbers without a unit.
Positive = Annotated[float, Number(above=0)]
NotNegative = Annotated[float, Number(at_least=0)]
#: Counts.
Count = Annotated[int, Number(at_least=1)]
CountOrZero = Annotated[int, Number(at_least=0)]
