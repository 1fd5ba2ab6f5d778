"""docs/explanation/: functions that it names are where it says, settings are what it says."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from edl.scheduler.flow import FlowConfig

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "explanation"
ALGORITHMS = (FOLDER / "algorithms.md").read_text()
NAMED = re.findall(r"\[`(\w+)\.([\w.]+)`\]\(([^)#]+\.py)\)", ALGORITHMS)


def test_functions_are_in_the_files_that_are_named() -> None:
    assert len(NAMED) > 25
    for module, name, path in NAMED:
        file = (FOLDER / path).resolve()
        assert file.stem == module, path
        for part in name.split("."):
            assert re.search(rf"^ *(?:async )?(?:def|class) {part}\b", file.read_text(), re.M), name


def test_each_line_of_both_algorithms_stands_there() -> None:
    for heading, last in (("Algorithm 1", 13), ("Algorithm 2", 8)):
        section = ALGORITHMS.partition(f"\n## {heading}")[2].partition("\n## ")[0]
        lines: set[int] = set()
        for cell in re.findall(r"^\| ([\d, to]+) \|", section, re.M):
            for first, until in re.findall(r"(\d+)(?: to (\d+))?", cell):
                lines.update(range(int(first), int(until or first) + 1))
        assert lines == set(range(1, last + 1)), heading


def test_settings_have_the_defaults_that_are_told() -> None:
    table = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", ALGORITHMS, re.M)
    fields = {field.name: field.default for field in dataclasses.fields(FlowConfig)}
    assert len(table) == 6
    assert [(name, float(shown)) for name, shown in table] == [
        (name, fields[name]) for name, _ in table
    ]


@pytest.mark.parametrize("picture", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_pictures_have_words_for_who_cannot_see_them_and_colours_for_the_dark(
    picture: Path,
) -> None:
    tree = ElementTree.parse(picture).getroot()
    assert [child.tag.partition("}")[2] for child in tree][:2] == ["title", "desc"]
    assert "prefers-color-scheme: dark" in picture.read_text()
