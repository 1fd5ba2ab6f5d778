"""Descriptions in YAML: what is read, and that every mistake is one error with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import hypothesis
import pytest
from hypothesis import strategies as st

from edl.mesh.files import parse, parse_kinds, read, write
from edl.runtime.errors import UsageError
from edl.scheduler.units import Bytes, BytesPerSecond, Count, NotNegative, Seconds, Share


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    price_per_hour: NotNegative = 0.0
    tenure: Literal["spot", "dedicated"] = "dedicated"
    memory_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class Described:
    devices: tuple[Device, ...]
    bandwidth_bytes_per_s: BytesPerSecond = 1.0
    period_s: Seconds = 1.0
    lost: Share = 0.0
    count: Count = 3
    quick: bool = False
    pair: tuple[float, float] = (0.0, 1.0)
    extra: Mapping[str, float] = field(default_factory=dict)
    size: int | Literal["auto"] = 1
    file: Path | None = None
    batch: Count | tuple[Count, ...] = 1

    def __post_init__(self) -> None:
        if self.count > 100:
            raise ValueError("count is above 100: that many are not there")


BASE = "devices:\n  - name: a\n"


def test_everything_that_a_description_may_hold(tmp_path: Path) -> None:
    text = BASE + (
        "    memory_bytes: 16 GiB\n"
        "    tenure: spot\n"
        "  - {name: '7', price_per_hour: 1e-1}\n"
        "bandwidth_bytes_per_s: 10 Gbit/s\nperiod_s: 80 ms\nlost: 5 %\ncount: 1_00\nquick: yes\n"
        "pair: [1, -2.5e0]\nextra: {x: 3}\nsize: auto\nfile: sub/there.yaml\nbatch: [8, 16]\n"
    )
    (tmp_path / "c.yaml").write_text(text)
    assert read(tmp_path / "c.yaml", Described) == Described(
        devices=(Device("a", 0.0, "spot", 2.0**34), Device("7", 0.1)),
        bandwidth_bytes_per_s=1.25e9,
        period_s=0.08,
        lost=0.05,
        count=100,
        quick=True,
        pair=(1.0, -2.5),
        extra={"x": 3.0},
        size="auto",
        file=tmp_path / "sub/there.yaml",
        batch=(8, 16),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "c.yaml is empty: expects a mapping"),
        ("devices: [", "c.yaml:2: not YAML: "),
        ("a:\n\tb: 1", "c.yaml:2: not YAML: "),
        ("- 1", "c.yaml:1: expects a mapping, `key: value` a line, got a list"),
        ("devices: 3", "c.yaml:1: devices: expects a list"),
        ("devices:\n  - 3", "c.yaml:2: devices[0]: expects a mapping"),
        ("count: 3", "c.yaml:1: 'devices' is missing"),
        ("devices:\n- {}", "c.yaml:2: devices[0]: 'name' is missing"),
        ("devices: [{name: a, prise: 3}]", "devices[0].prise: unknown key; did you mean 'price_"),
        ("'': 1", "c.yaml:1: '': unknown key; there are: devices"),
        (BASE + "zzz: 1", "c.yaml:3: zzz: unknown key; there are: devices, bandwidth"),
        (BASE + "count: ten", "c.yaml:3: count: expects a whole number of at least 1, got 'ten'"),
        (BASE + "count: 0", "expects a whole number of at least 1, got '0'"),
        (BASE + "count: 1" + "0" * 30, "expects a whole number"),
        (BASE + "count: 101", "c.yaml:1: count is above 100: that many are not there"),
        (BASE + "lost: .nan", "c.yaml:3: lost: expects a number of at least 0 and of at most 1"),
        (BASE + "period_s: .inf", "expects a number above 0, in s or as `80 ms`"),
        (BASE + "period_s: 1e999", "got '1e999'; absolute values are 0, or from 1e-18 to 1e+18"),
        (BASE + "period_s: 1e-300", "got '1e-300'; absolute values are 0, or from 1e-18 to 1e+18"),
        (BASE + "lost: 50", "expects a number of at least 0 and of at most 1"),
        (BASE + "batch: [8, x]", "c.yaml:3: batch[1]: expects a whole number of at least 1"),
        (BASE + "batch: x", "batch: expects a whole number of at least 1 or a list"),
        (BASE + "period_s: 3 parsecs", "got '3 parsecs'"),
        (BASE + "period_s:", "expects a number above 0, in s or as `80 ms` (us, ms, s, min, h, d)"),
        (BASE + "bandwidth_bytes_per_s: 3 s", "(B/s, kB/s, MB/s"),
        (BASE + "quick: 1", "quick: expects true or false, got '1'"),
        (BASE + "pair: [1]", "pair: expects a list of 2, got 1"),
        (BASE + "extra: [1]", "extra: expects a mapping"),
        (BASE + "extra: {x: y}", "extra.x: expects a number, got 'y'"),
        (BASE + "size: big", "size: expects a whole number or 'auto', got 'big'"),
        (BASE + "count: 1\ncount: 2", "c.yaml:4: count: duplicate key, first used at line 3"),
        ("devices: [{name: 3}]", "devices[0].name: expects text, got '3': put it in quotes"),
        ("devices: [{name: }]", "devices[0].name: expects text, got nothing"),
        ("devices: [{name: a, tenure: sport}]", "tenure: expects 'spot' or 'dedicated', got 's"),
        ("? [a]\n: 3", "c.yaml:1: a key is text"),
        ("devices: &x [{name: a}]", "c.yaml:1: anchors (& and *) are not supported"),
        ("devices: !!python/object/apply:os.system [id]", "c.yaml:1: the tag"),
        (BASE + "---\n" + BASE, "c.yaml:3: document 2: expects one"),
        ("[" * 1000, "c.yaml:1: nested deeper than 32"),
        ("a: " + "{b: " * 500, "nested deeper than 32"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, Described, "c.yaml")
    assert str(raised.value).startswith("c.yaml")
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    large, broken = tmp_path / "large.yaml", tmp_path / "broken.yaml"
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    broken.write_bytes(b"devices: []\nname: \xff\n")
    for path, error in (
        (tmp_path, "is a directory"),
        (tmp_path / "none.yaml", "no such file"),
        (large, "larger than 1 MiB"),
        (broken, "broken.yaml:2: not text: expects YAML in UTF-8"),
        (tmp_path / "a\0b", "cannot read"),
    ):
        with pytest.raises(UsageError, match=error):
            read(path, Described)


def test_a_text_is_limited_in_bytes() -> None:
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        parse(BASE + "# " + "\u20ac" * 400_000, Described)
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        parse_kinds("#" * (1 << 20) + "\nkind: x\n", {"x": Described}, "c.yaml")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    value = Described((Device("a", 1.5), Device("7")), 2.5e-7, extra={"yes": 1e17}, batch=(1, 2))
    write(tmp_path / "c.yaml", value, "two lines\nof comment")
    assert read(tmp_path / "c.yaml", Described) == value
    assert (tmp_path / "c.yaml").read_text().startswith("# two lines\n# of comment\n")
    assert list(tmp_path.iterdir()) == [tmp_path / "c.yaml"]
    with pytest.raises(UsageError, match="cannot write"):
        write(tmp_path / "none" / "c.yaml", value)
    write(tmp_path / "c.yaml", Described((Device("a"),)))
    assert (tmp_path / "c.yaml").read_text() == "devices:\n- name: a\n", "no defaults"


NAMES = st.sampled_from([*Described.__dataclass_fields__, *Device.__dataclass_fields__, "other"])
PIECES = st.one_of(
    NAMES,
    st.sampled_from([*":-[]{}&*!|>#?'\",\n", ": ", "- ", "\n  ", "1", "ten", ".nan", "5 %", "~"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)


@hypothesis.given(st.lists(PIECES, max_size=30).map("".join))
def test_whatever_stands_there_is_read_or_refused(text: str) -> None:
    found: object
    try:
        found = parse(text, Described, "c.yaml")
    except UsageError as error:
        found = error
    assert isinstance(found, Described) or str(found).startswith("c.yaml")
