"""Memory of batches that are let go of."""

from __future__ import annotations

import sys
from contextlib import closing
from types import FrameType
from typing import Any

import numpy as np

from edl.distill_reader.ring import Leases
from edl.proto.arena import Arena


def test_no_python_code_runs_where_a_batch_is_let_go() -> None:
    """A signal handler would run in it, and its exception, as of Ctrl-C, would be ignored."""
    called = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    with closing(Arena.create()) as arena:
        leases = Leases(arena)
        record = arena.allocate([(np.dtype(np.float32), (2, 3))])
        views = leases.views(record)
        sys.setprofile(note)
        try:
            del views
        finally:
            sys.setprofile(None)
        assert called == []
        assert list(leases.over()) == [record.offset]
