"""Parses container files, and runs their steps without a container engine.

    file = ContainerFile.read(path)
    image = Build(file, context, folder).stage("cpu")

A folder takes the place of `/`: absolute paths in RUN and COPY steps are moved below it. Steps find
only the programs that they are given; those that would change a system (`apt-get`, `useradd`) are
noted and not run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import Self

NOTED = ("apt-get", "groupadd", "useradd")
#: Programs of this machine that steps may run, besides the Python of the tests.
_FOUND = ("sh", "rm", "mkdir", "sed")
#: An absolute path: no part of a word, a URL or an option's name stands before it.
_ABSOLUTE = re.compile(r"(?<![\w./}{$)~-])/(?=[a-z])")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_INSTRUCTION = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction: its word, the rest of it with its lines joined, where it begins."""

    word: str
    text: str
    line: int

    @property
    def argv(self) -> list[str]:
        """Of an instruction in exec form, as ENTRYPOINT; AssertionError: it is in shell form."""
        assert self.text.startswith("["), f"line {self.line}: {self.word} goes through a shell"
        words: list[str] = json.loads(self.text)
        return words


@dataclass(frozen=True, slots=True)
class Stage:
    """What stands between two FROM."""

    base: str
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ContainerFile:
    path: Path
    stages: dict[str, Stage]

    @classmethod
    def read(cls, path: Path) -> Self:
        arguments: dict[str, str] = {}
        stages: dict[str, Stage] = {}
        for step in _steps(path.read_text()):
            if step.word == "FROM":
                base, _, name = step.text.partition(" AS ")
                stages[name] = stage = Stage(expand(base, arguments))
            elif stages:
                stage.steps.append(step)
            else:
                assert step.word == "ARG", f"line {step.line}: {step.word} before FROM"
                name, _, arguments[name] = step.text.partition("=")
        return cls(path, stages)

    def all_steps(self, name: str) -> list[Step]:
        """The steps of a stage, after those of the stages that it stands on."""
        stage = self.stages[name]
        before = self.all_steps(stage.base) if stage.base in self.stages else []
        return [*before, *stage.steps]

    def last(self, name: str, word: str) -> Step:
        """The instruction that counts, of those with this word, in the image of a stage."""
        return [step for step in self.all_steps(name) if step.word == word][-1]

    def environment(self, name: str, before: Mapping[str, str]) -> dict[str, str]:
        """The variables that the image of a stage sets, on top of those of its base."""
        found = dict(before)
        for step in self.all_steps(name):
            if step.word == "ENV":
                for pair in shlex.split(step.text):
                    key, _, value = pair.partition("=")
                    found[key] = expand(value, found)
        return found


def _steps(text: str) -> Iterator[Step]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line.strip()
        while whole.endswith("\\"):
            whole = f"{whole[:-1].rstrip()} {next(lines)[1].strip()}"
        match = _INSTRUCTION.fullmatch(whole)
        assert match is not None, f"line {number}: {line}"
        yield Step(match[1], match[2], number)


def expand(text: str, values: Mapping[str, str]) -> str:
    """`text` with `$NAME` and `${NAME}` replaced; what is not known is empty."""
    return _VARIABLE.sub(lambda found: values.get(found[1] or found[2], ""), text)


@dataclass(slots=True)
class Build:
    """Runs the steps of stages.

    `folder` is an empty one for everything that is made; `arguments` are those of `--build-arg`;
    steps see `environment` of this machine.
    """

    file: ContainerFile
    context: Path
    folder: Path
    arguments: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The `/` of the stage that was built last."""
        return self.folder / "root"

    @property
    def noted(self) -> list[str]:
        """The words of all commands that were not run."""
        return (self.folder / "noted").read_text().split()

    def stage(self, name: str) -> Path:
        self._build(name)
        self._begin(name)
        return self.root

    def _kept(self, name: str) -> Path:
        return self.folder / "stages" / name

    def _begin(self, base: str) -> None:
        """Make the root that of a stage that was built; empty if it is none."""
        shutil.rmtree(self.root, ignore_errors=True)
        if base in self.file.stages:
            self._clone(self._kept(base), self.root)

    def _build(self, name: str) -> None:
        """Build and keep a stage, unless it is kept already."""
        if self._kept(name).exists():
            return
        stage = self.file.stages[name]
        copied = re.findall(r"--from=(\S+)", " ".join(step.text for step in stage.steps))
        for needed in (stage.base, *copied):
            if needed in self.file.stages:
                self._build(needed)
        self._begin(stage.base)
        for folder in ("tmp", "var/lib/apt/lists", "usr/local/bin"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        values: dict[str, str] = {}
        where = self.root
        for step in stage.steps:
            if step.word == "ARG":
                key, _, default = step.text.partition("=")
                if key in self.arguments or default:
                    values[key] = self.arguments.get(key, default)
            elif step.word == "WORKDIR":
                where = self.path(step.text)
                where.mkdir(parents=True, exist_ok=True)
            elif step.word == "COPY":
                self._copy(step, where)
            elif step.word == "RUN":
                self._run(step, where, values)
        self._clone(self.root, self._kept(name))

    def path(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def text(self, inside: str) -> str:
        """`inside` with all absolute paths in it turned into ours."""
        return _ABSOLUTE.sub(f"{self.root}/", inside)

    def _copy(self, step: Step, where: Path) -> None:
        words = shlex.split(step.text)
        options = dict(one[2:].split("=", 1) for one in words if one.startswith("--"))
        *sources, target = [one for one in words if not one.startswith("--")]
        to = self.path(target) if target.startswith("/") else where / target
        for source in sources:
            if stage := options.get("from"):
                found = self._kept(stage) / source.lstrip("/")
                assert found.exists(), f"line {step.line}: {source} is not in {stage}"
                self._clone(found, to)
                continue
            places = {name: os.path.relpath(name, source) for name in self.context_files()}
            places = {name: at for name, at in places.items() if not at.startswith("..")}
            assert places, f"line {step.line}: nothing of {source} is in the context"
            for name, at in places.items():
                if at == ".":
                    at = os.path.basename(name) if target.endswith("/") else ""
                (to / at).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.context / name, to / at, follow_symlinks=False)
            if "chmod" in options:
                to.chmod(int(options["chmod"], 8))

    def context_files(self) -> list[str]:
        """Files and links that an engine would be sent, by their paths in the context."""
        ignored = self.file.path.with_name(self.file.path.name + ".dockerignore").read_text()
        rules = [
            (line.startswith("!"), _pattern(line.lstrip("!").strip("/")))
            for line in map(str.strip, ignored.splitlines())
            if line and not line.startswith("#")
        ]
        found = []
        for folder, folders, files in os.walk(self.context):
            inside = os.path.relpath(folder, self.context)
            # Nothing in the others is ever sent, and they are large.
            folders[:] = [one for one in folders if one[0] != "." and one != "__pycache__"]
            links = [one for one in folders if os.path.islink(os.path.join(folder, one))]
            names = (os.path.normpath(os.path.join(inside, one)) for one in (*files, *links))
            found += [name for name in names if _kept(name, rules)]
        return sorted(found)

    def _run(self, step: Step, where: Path, values: Mapping[str, str]) -> None:
        programs = self._programs()
        # What pip has fetched before stands for the network, as nothing else of an index would.
        command = [str(programs / "sh"), "-ec", self.text(step.text).replace("--no-cache-dir ", "")]
        env = {**self.environment, **values, "PATH": str(programs)}
        done = subprocess.run(
            command, cwd=where, env=env, capture_output=True, text=True, timeout=1500
        )
        what = f"{self.file.path.name}, line {step.line}"
        assert done.returncode == 0, f"{what}: {done.stdout[-3000:]}{done.stderr[-3000:]}"

    def _programs(self) -> Path:
        """A folder with what steps may run."""
        folder = self.folder / "programs"
        if folder.exists():
            return folder
        folder.mkdir()
        for name in _FOUND:
            (folder / name).symlink_to(shutil.which(name) or name)
        notes = shlex.quote(str(self.folder / "noted"))
        scripts = {name: f'echo {name} "$@" >>{notes}' for name in NOTED}
        # No link: its environment lies beside it.
        scripts["python"] = f'exec {shlex.quote(sys.executable)} "$@"'
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder

    @staticmethod
    def _clone(source: Path, target: Path) -> None:
        """A copy whose files are the same ones: nobody writes into them, all are replaced."""
        shutil.copytree(source, target, symlinks=True, copy_function=os.link, dirs_exist_ok=True)


def _pattern(glob: str) -> re.Pattern[str]:
    """A line of an ignore file: what it matches, and whatever is below."""
    anywhere = glob.startswith("**/")
    inside = translate(glob.removeprefix("**/")).removeprefix("(?s:").removesuffix(r")\Z")
    inside = inside.replace(".*", "[^/]*")
    return re.compile(f"{'(?:.*/)?' if anywhere else ''}{inside}(?:/.*)?", re.DOTALL)


def _kept(name: str, rules: list[tuple[bool, re.Pattern[str]]]) -> bool:
    """The last rule that matches counts, as engines have it."""
    kept = True
    for exception, pattern in rules:
        if pattern.fullmatch(name):
            kept = exception
    return kept
