"""Files by which the owner of a machine asks its agent to yield, without the mesh.

They are in the folder `agents/NAME` of the cache, which only the agent's user can open. The agent
that runs as NAME holds `lock` and writes `state`; `yield` contains the time until which the agent
has to yield.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from ...runtime.errors import ProcessFailed, UsageError
from ...runtime.files import replacing

_POLL_S: Final = 0.05


class AgentDirectory:
    """The folder of one agent.

    Args:
        cache: cache folder of agents.
        machine_id: name of the agent.
    """

    def __init__(self, cache: Path, machine_id: str) -> None:
        self.machine_id = machine_id
        self._folder = cache / "agents" / quote(machine_id, safe="").replace(".", "%2E")  # ".." too

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of this name while the body runs.

        Raises:
            UsageError: another agent holds it, or the folder cannot be written.
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
                    f"an agent named {self.machine_id} already runs on this machine: give another"
                    " --machine and other --devices"
                ) from None
            self.write_state("unknown")
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

    def request_yield(self, for_s: float | None) -> None:
        """Ask the agent to yield for `for_s` seconds; None: until `cancel_yield`.

        Raises:
            UsageError: the folder cannot be written.
        """
        until = None if for_s is None else time.time() + for_s
        try:
            _write(self._folder / "yield", {"until": until})
        except UsageError as error:
            raise UsageError(
                f"the agent {self.machine_id} cannot be asked: {error}; run this as the user that"
                " it runs as"
            ) from None

    def cancel_yield(self) -> None:
        """Let the agent lend the machine again."""
        (self._folder / "yield").unlink(missing_ok=True)

    def yield_left_s(self) -> float | None:
        """Return the seconds that the agent still has to yield; inf: no end; None: no request."""
        request = _read(self._folder / "yield")
        if request is None:
            return None
        until = request.get("until")
        if until is None:
            return math.inf
        left_s = float(until) - time.time() if isinstance(until, int | float) else 0.0
        return left_s if left_s > 0 else None

    def write_state(self, state: str) -> None:
        """Write the state of the agent's teacher; ignore errors of the file system."""
        with contextlib.suppress(UsageError):
            _write(self._folder / "state", {"state": state})

    def read_state(self) -> str:
        """Return the latest state of the agent's teacher; "unknown" without one."""
        return str((_read(self._folder / "state") or {}).get("state", "unknown"))


def running_agents(cache: Path, machine_id: str | None) -> list[AgentDirectory]:
    """Return the directories of the agents that run here, or only that of `machine_id`.

    Raises:
        UsageError: there is no such agent.
    """
    there = sorted(unquote(entry.name) for entry in (cache / "agents").glob("*"))
    names = there if machine_id is None else [machine_id]
    found = [agent for name in names if (agent := AgentDirectory(cache, name)).runs]
    if not found:
        who = "no agent" if machine_id is None else f"no agent named {machine_id}"
        raise UsageError(
            f"{who} runs here with its cache in {cache}: use the same --cache as for 'edl agent'"
        )
    return found


def wait_until_yielded(
    agents: list[AgentDirectory], timeout_s: float, say: Callable[[str], None]
) -> None:
    """Wait until no teacher of these agents runs.

    Args:
        agents: directories of the agents.
        timeout_s: seconds to wait for all of them.
        say: called with a line for each agent that has yielded.

    Raises:
        ProcessFailed: a teacher still runs after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    for agent in agents:
        while agent.runs and agent.read_state() != "yielded":
            if time.monotonic() >= deadline:
                raise ProcessFailed(
                    f"{agent.machine_id} has not given the machine back within {timeout_s:g} s: "
                    f"it is {agent.read_state()}"
                )
            time.sleep(_POLL_S)
        say(f"{agent.machine_id} has given this machine back")


def _write(file: Path, value: Mapping[str, Any]) -> None:
    """Write a file atomically. Raises UsageError."""
    with replacing(file) as part:
        part.write_text(json.dumps(value))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
