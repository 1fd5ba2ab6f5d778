"""Chaos runs that cannot start."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from edl.mesh.chaos.cli import chaos
from edl.mesh.chaos.fault_plan import ChaosSettings
from edl.mesh.chaos.monitoring import LeftoverCheck, MeshMonitor
from edl.mesh.chaos.processes import ChaosMesh
from edl.mesh.chaos.run import run_chaos
from edl.runtime.errors import ProcessFailed, UsageError
from edl.runtime.lifecycle import Stop


def test_a_report_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        chaos(json=tmp_path / "none" / "report.json")


def test_a_failed_start_closes_the_connection_of_the_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise ProcessFailed("Redis does not start")

    closed: list[MeshMonitor] = []
    stop = MeshMonitor.stop

    def stop_noted(monitor: MeshMonitor) -> None:
        stop(monitor)
        closed.append(monitor)

    monkeypatch.setattr(ChaosMesh, "start", fail)
    monkeypatch.setattr(MeshMonitor, "stop", stop_noted)
    with pytest.raises(ProcessFailed, match="Redis does not start"):
        run_chaos(
            ChaosSettings(1, 60.0), tmp_path, LeftoverCheck.before("none"), say=print, stop=Stop()
        )
    assert len(closed) == 1
