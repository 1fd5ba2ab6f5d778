"""Labels that have come and are not delivered yet: where they lie, until they go or are void."""

from __future__ import annotations

from ...proto.arena import Arena
from ...proto.channel import Channel
from .outcomes import Done


class Labels:
    """The engine's side of the label arena. Used by the engine's thread alone.

    Attributes:
        discards: answers whose labels nobody wanted: late, not the first, or of an old model.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.discards = 0
        self._kept: dict[int, Done] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that lie here."""
        return sum(done.record.nbytes for done in self._kept.values())

    def keep(self, done: Done) -> None:
        """The labels of a batch that is still to be delivered."""
        self._kept[done.job.number] = done

    def discard(self, done: Done) -> None:
        """Nobody wants these labels."""
        self.discards += 1
        self.arena.free(done.record.offset)

    def clear(self) -> None:
        """No batch that is not delivered will be: not with these labels."""
        for done in self._kept.values():
            self.arena.free(done.record.offset)
        self._kept.clear()

    def hand_over(self, number: int, channel: Channel) -> None:
        """Tell the trainer where the labels of a batch lie; it says when they may be freed."""
        done = self._kept.pop(number)
        channel.send(
            "labelled",
            number=number,
            offset=done.record.offset,
            nbytes=done.record.nbytes,
            labels=[
                [name, ref.to_json()]
                for name, ref in zip(done.names, done.record.arrays, strict=True)
            ],
        )
