"""What the ledger of a member says is done: rows are sent, labels are void, batches are handed on.

The ledger decides where each row goes and touches nothing. Here its instructions are carried out,
in the order in which it gave them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ... import errors
from ...scheduler.ledger import events as ev
from .batches import Batches
from .says import Says
from .sending import Sending

if TYPE_CHECKING:
    from .member import Member

log = logging.getLogger(__name__)


class Carrying:
    """The hands of one member's ledger. Used by the engine's thread alone.

    Args:
        member: whose ledger, labels and shelf they are.
        batches: that lie in the ring.
        sending: hands requests to the links.
        says: who hears of it.

    Attributes:
        poisoned: batches that will never be labelled.
    """

    def __init__(self, member: Member, batches: Batches, sending: Sending, says: Says) -> None:
        self.poisoned = 0
        self._member = member
        self._batches = batches
        self._sending = sending
        self._says = says
        self._unsent: list[tuple[str, int]] = []  # what the ledger takes to be in flight

    def handle(self, event: ev.Event) -> None:
        """Have the ledger hear of something, and do what it says."""
        self.carry_out(self._member.ledger.handle(event))

    def reset(self) -> None:
        """Have the ledger forget every batch, and what could not be sent of them."""
        self.handle(ev.Reset())
        for teacher, request in self._unsent:  # free the windows that these hold
            self.handle(ev.Cancelled(teacher, request))
        self._unsent.clear()

    def carry_out(self, instructions: list[ev.Instruction]) -> None:
        """Do what the ledger said, but for what the answer that it heard of is to do."""
        member, copies = self._member, list[ev.Hedge]()
        for instruction in instructions:
            match instruction:
                case ev.Send():
                    self._send(instruction)
                    copies += member.comparing.sent(instruction)
                case ev.Recall(number):
                    self._says.recall(member, number)
                case ev.Void(number):
                    member.labels.drop(number)
                case ev.LookUp(number):
                    assert member.shelf is not None
                    member.shelf.look_again(self._batches[number], time.monotonic())
                case ev.Deliver(number):
                    if log.isEnabledFor(logging.DEBUG):
                        log.debug("batch %d has its labels", number, extra={"batches": [number]})
                    self._says.labelled(member, number)
                case ev.Poison(number, reasons):
                    self._poison(number, reasons)
                case _:
                    pass  # done where the answer came in
        for copy in copies:
            self.handle(copy)

    def _send(self, send: ev.Send) -> None:
        try:
            self._sending.send(send, in_own_memory=self._member.comparing.is_copy(send))
        except errors.UsageError as error:
            self._unsent.append((send.teacher, send.request))
            self._says.failed(error, False)

    def _poison(self, number: int, reasons: tuple[str, ...]) -> None:
        self.poisoned += 1
        self._member.labels.drop(number)
        if self._member.shelf is not None:
            self._member.shelf.forget(number)
        self._says.poisoned(number, reasons)
