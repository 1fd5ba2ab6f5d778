"""Files by which the owner of a machine asks its agent to yield, without Redis.

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
        # Dots are quoted, too: ".." must not be another folder.
        self._folder = cache / "agents" / quote(machine_id, safe="").replace(".", "%2E")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of this agent while the body runs, and reset its state.

        Raises:
            UsageError: another agent of this name holds the lock, or the folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock_file = (self._folder / "lock").open("w")
        except OSError as error:
            raise UsageError(f"{self._folder} cannot be written: {error.strerror}") from None
        with lock_file:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            with (self._folder / "lock").open("r+") as lock_file:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                f"the agent {self.machine_id} cannot be asked to yield: {error}; run this command"
                " as the agent's user"
            ) from None

    def cancel_yield(self) -> None:
        """Let the agent lend the machine again."""
        (self._folder / "yield").unlink(missing_ok=True)

    def yield_left_s(self) -> float | None:
        """Return the seconds that the agent still has to yield; inf: no end; None: it need not."""
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
        """Return the latest written state of the agent's teacher; "unknown": none was written."""
        return str((_read(self._folder / "state") or {}).get("state", "unknown"))


def running_agents(cache: Path, machine_id: str | None) -> list[AgentDirectory]:
    """Return the directories of the agents that run here, or only that of `machine_id`.

    Raises:
        UsageError: no such agent runs.
    """
    known_names = sorted(unquote(entry.name) for entry in (cache / "agents").glob("*"))
    names = known_names if machine_id is None else [machine_id]
    running = [agent for name in names if (agent := AgentDirectory(cache, name)).runs]
    if not running:
        missing = "no agent" if machine_id is None else f"no agent named {machine_id}"
        raise UsageError(
            f"{missing} runs here with its cache in {cache}: use the same --cache as for"
            " 'edl agent'"
        )
    return running


def wait_until_yielded(
    agents: list[AgentDirectory], timeout_s: float, say: Callable[[str], None]
) -> None:
    """Wait until each of these agents has drained its teacher or has ended.

    Args:
        agents: directories of the agents.
        timeout_s: seconds to wait for all agents together.
        say: called with a line of text for each agent that has yielded or ended.

    Raises:
        ProcessFailed: an agent has not yielded within `timeout_s`.
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
        value = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
