"""Whatever becomes of a store, whoever looks something up there has an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.engine.inbox import Inbox
from edl.distill_reader.engine.shelf_keeper import Identity, Keeper, Look
from edl.distill_reader.engine.stored import NOTHING, Stocked, Wanted
from edl.distill_reader.label_forms import AS_GIVEN
from edl.distill_reader.store.rows import Content, Model
from edl.distill_reader.store.settings import LabelStore
from edl.distill_reader.store.store import Store
from edl.errors import EdlError

WAIT_S = 10.0
LOOK = Look(7, 2, Content("c"), {"x": np.zeros((2, 3), np.float32)}, lambda: True)


class Ear:
    """What the keeper says, in its order."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def opened(self, remembered: Model | None) -> None:
        self.heard.append(remembered)

    def failed(self, error: EdlError) -> None:
        self.heard.append(error)

    def looked(self, identity: Identity, stocked: Stocked) -> None:
        self.heard.append((identity.number, stocked))


@pytest.mark.parametrize("trouble", ["recall", "get_many"])
def test_an_error_that_nobody_thought_of_is_an_empty_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def fails(*_: object) -> None:
        raise TypeError("written by another version")

    monkeypatch.setattr(Store, trouble, fails)
    ear, inbox = Ear(), Inbox()
    settings = LabelStore(tmp_path / "labels", 1 << 26)
    keeper = Keeper(settings, "s", Wanted((), AS_GIVEN), inbox, ear)
    keeper.tell(LOOK)
    while (7, NOTHING) not in ear.heard:
        calls = inbox.next(WAIT_S)
        assert calls, "it says nothing"
        for call in calls:
            call()
    keeper.close()
    inbox.close()
    assert ear.heard[0] is None
    assert "written by another version" in keeper.figures.trouble
