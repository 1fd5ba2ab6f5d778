"""How whoever comes first on a machine asks its agent for it: by a file, which needs no mesh.

Folder `agents/NAME` of the cache, readable by the agent's user alone: `lock` is held by the agent
that runs as NAME, `yield` says until when the machine is asked for, `state` what the agent does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ...errors import ProcessFailed, UsageError

_POLL_S: Final = 0.05


class Corner:
    """The folder of one agent.

    Args:
        cache: the agents' folder.
        machine_id: the agent's name.
    """

    def __init__(self, cache: Path, machine_id: str) -> None:
        self.machine_id = machine_id
        self._folder = cache / "agents" / quote(machine_id, safe="").replace(".", "%2E")  # ".." too

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the agent of this name on this machine.

        Raises:
            UsageError: another one is, or the folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self._folder / "lock").open("w")
        except OSError as error:
            raise UsageError(f"{self._folder} cannot be written: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"an agent runs as machine {self.machine_id} here already: name another one "
                    "by --machine, with other --devices"
                ) from None
            self.tell({})
            yield

    @property
    def runs(self) -> bool:
        """Whether an agent of this name runs."""
        try:
            with (self._folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def ask(self, for_s: float | None) -> None:
        """Ask for the machine, for so long; None: until `give_up`. Raises UsageError."""
        until = None if for_s is None else time.time() + for_s
        try:
            _write(self._folder / "yield", {"until": until})
        except OSError as error:
            raise UsageError(
                f"the agent {self.machine_id} cannot be asked: {error.strerror}; run this as the "
                "user that it runs as"
            ) from None

    def give_up(self) -> None:
        """Not to ask for it any more."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / "yield").unlink()

    def asked_for_s(self) -> float | None:
        """Seconds for which it is still asked for; inf: until further notice; None: it is not."""
        told = _read(self._folder / "yield")
        if told is None:
            return None
        until = told.get("until")
        if until is None:
            return math.inf
        left_s = float(until) - time.time() if isinstance(until, int | float) else 0.0
        return left_s if left_s > 0 else None

    def tell(self, state: Mapping[str, Any]) -> None:
        """Say what the agent does, to whoever asked; what cannot be written is not said."""
        with contextlib.suppress(OSError):
            _write(self._folder / "state", dict(state))

    def told(self) -> Mapping[str, Any]:
        """What the agent said last."""
        return _read(self._folder / "state") or {}


def corners(cache: Path, machine_id: str | None) -> list[Corner]:
    """Of the agents that run here, or of the one that is named.

    Raises:
        UsageError: there is none.
    """
    from urllib.parse import unquote

    names = [machine_id] if machine_id is not None else []
    if machine_id is None:
        with contextlib.suppress(OSError):
            names = sorted(unquote(entry.name) for entry in (cache / "agents").iterdir())
    found = [corner for name in names if (corner := Corner(cache, name)).runs]
    if not found:
        who = "no agent" if machine_id is None else f"no agent of the name {machine_id}"
        raise UsageError(
            f"{who} runs here with its cache in {cache}: name the folder that 'edl agent' was "
            "given by --cache"
        )
    return found


def wait_given_back(found: list[Corner], timeout_s: float, tell: Callable[[str], None]) -> None:
    """Return when none of the agents has anything running on this machine.

    Raises:
        ProcessFailed: one still has after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    for corner in found:
        while corner.runs and corner.told().get("state") != "yielded":
            if time.monotonic() >= deadline:
                state = corner.told().get("state", "unknown")
                raise ProcessFailed(
                    f"{corner.machine_id} has not given the machine back within {timeout_s:g} s: "
                    f"it is {state}"
                )
            time.sleep(_POLL_S)
        tell(f"{corner.machine_id} has given this machine back")


def _write(file: Path, value: Mapping[str, Any]) -> None:
    """All of it or nothing."""
    part = file.with_name(f".{file.name}-{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(file)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
