"""The pages about hosts and containers: commands that `edl` takes; files, units, ports."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import edl
from edl.tests.deploy.command_lines import WrongCommand, check, is_ours

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "deploy": ROOT / "docs" / "deploy.md",
    "containers": ROOT / "deploy" / "containers" / "README.md",
    "compose": ROOT / "deploy" / "compose" / "README.md",
}


def commands(page: Path) -> list[str]:
    """Of its blocks of shell: each command in one line, without comments and redirections."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"(\s+#.*|\s+>>? .*)$", "", line).strip() for line in lines if line.strip()]


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_those_of_edl(name: str) -> None:
    found = [shlex.split(line) for line in commands(PAGES[name])]
    ours = [words for words in found if is_ours(words)]
    run = [words for words in found if words[:2] == ["docker", "run"]]
    for words in run:
        image = next(at for at, word in enumerate(words) if word.startswith("edl-dist:"))
        assert words[image] == f"edl-dist:{edl.__version__}"
        env = dict(one.split("=", 1) for at, one in enumerate(words) if words[at - 1] == "--env")
        ours.append(["edl", *words[image + 1 :]])
        check(ours[-1], env)
    for words in ours:
        if words not in [["edl", "teacher", "serve"]]:  # whose model is in its environment
            check(words)
    assert ours or name == "compose"
    for command in re.findall(r"`(edl [a-z]+[^`]*)`", PAGES[name].read_text()):
        if "..." not in command and not re.search(r"[A-Z]{3}", command):
            check_words(command)


def check_words(command: str) -> None:
    """A command named in a sentence, whose arguments may be left out."""
    try:
        check(shlex.split(command))
    except WrongCommand as error:
        if not re.search(r"Missing (argument|option|parameter)", str(error)):
            raise


@pytest.mark.parametrize("name", PAGES)
def test_files_of_the_repository_exist(name: str) -> None:
    text = PAGES[name].read_text()
    for path in re.findall(r"(?<![\w/.-])(deploy/[\w@/.*-]+[\w/])", text):
        assert list(ROOT.glob(path)), path


def test_units_and_ports_are_those_of_the_files() -> None:
    text = PAGES["deploy"].read_text()
    units = {
        unit.name.removesuffix(".service") for unit in (ROOT / "deploy/systemd").glob("*.service")
    }
    for named in re.findall(r"systemctl (?:\w+ )(?:--now )?(edl-[\w@-]+)", text):
        assert re.sub(r"@.*", "@", named) in units, named
    examples = "".join(path.read_text() for path in (ROOT / "deploy/systemd/env").iterdir())
    for port in re.findall(r"^EDL_(?:PORT|HTTP|METRICS_LISTEN)=(\d+)$", examples, re.MULTILINE):
        assert re.search(rf"^\| [\d, ]*\b{port}\b", text, re.MULTILINE), port
    wheel = f"edl_dist-{edl.__version__}-py3-none-any.whl"
    assert wheel in text
