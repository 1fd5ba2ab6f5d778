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
from pathlib import Path, PurePosixPath
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
        if not line.strip() or line.startswith("#"):
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
    """Runs the steps of one stage, and of those that it needs.

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
        """Build a stage; its `/`."""
        stage = self.file.stages[name]
        copied = re.findall(r"--from=(\S+)", " ".join(step.text for step in stage.steps))
        for needed in (stage.base, *copied):
            if needed in self.file.stages and not self._built(needed).exists():
                self.stage(needed)
        shutil.rmtree(self.root, ignore_errors=True)
        if stage.base in self.file.stages:
            _clone(self._built(stage.base), self.root)
        for folder in ("tmp", "var/lib/apt/lists", "usr/local/bin"):
            self.path(folder).mkdir(parents=True, exist_ok=True)
        values: dict[str, str] = {}
        where = self.root
        for step in stage.steps:
            if step.word == "ARG":
                key, _, default = step.text.partition("=")
                if value := self.arguments.get(key, default):
                    values[key] = value
            elif step.word == "WORKDIR":
                where = self.path(step.text)
                where.mkdir(parents=True, exist_ok=True)
            elif step.word == "COPY":
                self._copy(step, where)
            elif step.word == "RUN":
                self._run(step, where, values)
        _clone(self.root, self._built(name))
        return self.root

    def _built(self, name: str) -> Path:
        return self.folder / "stages" / name

    def path(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def text(self, inside: str) -> str:
        """`inside` with all absolute paths in it turned into ours."""
        return _ABSOLUTE.sub(f"{self.root}/", inside)

    def _copy(self, step: Step, where: Path) -> None:
        words = shlex.split(step.text)
        options = dict(one[2:].split("=", 1) for one in words if one.startswith("--"))
        source, target = (one for one in words if not one.startswith("--"))
        to = self.path(target) if target.startswith("/") else where / target
        if stage := options.get("from"):
            _clone(self._built(stage) / source.lstrip("/"), to)
            return
        names = [name for name in self.context_files() if Path(name).is_relative_to(source)]
        assert names, f"line {step.line}: nothing of {source} is in the context"
        for name in names:
            into_folder = name == source and target.endswith("/")
            place = to / (Path(name).name if into_folder else Path(name).relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.context / name, place, follow_symlinks=False)
        if "chmod" in options:
            to.chmod(int(options["chmod"], 8))

    def context_files(self) -> list[str]:
        """Files and links that an engine would be sent, by their paths in the context."""
        ignored = self.file.path.with_name(self.file.path.name + ".dockerignore").read_text()
        rules = [line for line in ignored.splitlines() if line and not line.startswith("#")]
        found = []
        for folder, folders, files in os.walk(self.context):
            inside = PurePosixPath(folder).relative_to(self.context)
            # Nothing in the others is ever sent, and they are large.
            folders[:] = [one for one in folders if one[0] != "." and one != "__pycache__"]
            links = [one for one in folders if os.path.islink(os.path.join(folder, one))]
            found += [str(inside / one) for one in (*files, *links) if _sent(inside / one, rules)]
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


def _clone(source: Path, target: Path) -> None:
    """A copy whose files are the same ones: nobody writes into them, all are replaced."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link, dirs_exist_ok=True)


def _sent(name: PurePosixPath, rules: list[str]) -> bool:
    """Whether an ignore file lets this file through: the last rule that matches counts."""
    # A rule takes whatever is below what it names, too; only after `**/` that may be anywhere.
    places = [PurePosixPath("/", one) for one in (name, *name.parents)]
    sent = True
    for rule in rules:
        glob = rule.removeprefix("!")
        pattern = glob.removeprefix("**/") if glob.startswith("**/") else f"/{glob.strip('/')}"
        if any(one.match(pattern) for one in places):
            sent = rule.startswith("!")
    return sent
