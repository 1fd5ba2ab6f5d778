"""The pins of the images: all that is needed, in versions that are allowed, of known licences."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edl.tests.deploy.container_file import ContainerFile
from edl.tests.deploy.test_containers import FILE, IMAGES, ROOT

FOLDER = ROOT / "deploy" / "constraints"
PINS = dict(re.findall(r"^([^#\n]*)==(.*)$", (FOLDER / "constraints.txt").read_text(), re.M))
#: Licences under which what is linked with ours may be handed on, by words in their names.
ALLOWED = re.compile(
    r"Apache|BSD|MIT\b|ISC|PSF|Python Software Foundation|MPL|Mozilla|HPND|Unlicense|0BSD|Zlib|CC0"
)
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General)")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: The extras that are pinned.
EXTRAS = re.findall(
    r'"([^"]+)"',
    re.findall(r"^EXTRAS.*\((.*)\)$", (FOLDER / "update.py").read_text(), re.MULTILINE)[0],
)


def needed() -> Iterator[Requirement]:
    """What the project itself names, of the extras that are pinned."""
    extras = (PROJECT["optional-dependencies"][extra] for extra in EXTRAS)
    for line in chain(PROJECT["dependencies"], *extras):
        requirement = Requirement(line)
        if requirement.name != "edl-dist":
            yield requirement


def test_extras_of_the_images_exist_and_are_pinned() -> None:
    file = ContainerFile.read(FILE)
    for image in IMAGES:
        steps = [step.text for step in file.stages[f"{image}-packages"].steps]
        (extras,) = (text.removeprefix("EXTRAS=") for text in steps if text.startswith("EXTRAS="))
        named = set(extras.split(","))
        assert named <= PROJECT["optional-dependencies"].keys()
        assert named <= {*EXTRAS, "gpu"}
        assert ("gpu" in named) == (image == "gpu")


def test_what_the_project_names_is_pinned_in_a_version_that_it_takes() -> None:
    for requirement in needed():
        pinned = PINS.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement.name}: run `make constraints`"
        assert requirement.specifier.contains(pinned), f"{requirement}: pinned to {pinned}"


def test_pins_are_exact_and_name_no_address() -> None:
    for line in (FOLDER / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z0-9.-]+==[0-9][A-Za-z0-9.+]*", line), line


def rows() -> list[tuple[str, str, str]]:
    text = (FOLDER / "licenses.md").read_text()
    return re.findall(r"^\| ([a-z0-9.-]+) \| (\d[^ ]*) \| (.+) \|$", text, re.MULTILINE)


def test_each_licence_is_listed() -> None:
    assert {name: version for name, version, _ in rows()} == PINS


@pytest.mark.parametrize(("name", "licence"), [(name, licence) for name, _, licence in rows()])
def test_each_licence_allows_to_hand_it_on(name: str, licence: str) -> None:
    assert ALLOWED.search(licence), f"{name}: {licence}"
    assert not COPYLEFT.search(licence), f"{name}: {licence}"
