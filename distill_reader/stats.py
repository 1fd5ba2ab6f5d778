"""The figures that a reader gives about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """A moment of a reader's life; counts are since it was made, over all its epochs.

    Attributes:
        yielded: batches that the source has yielded.
        delivered: batches that the training loop has received.
        samples_delivered: rows of those batches.
        resends: requests beyond the first of their batch.
        volume_bytes: labelled batches that the training loop has not taken yet.
        upper_bytes: `ut`; above it no new batch is pulled.
        lower_bytes: `lt`; below it pulling goes on.
        want: teachers that the reader asks for.
        needed: n = ceil(t_t/t_s); 0 while a time is unknown.
        t_t_s: seconds per sample of the average of its teachers; 0 while unknown.
        t_s_s: seconds per sample of the training step; 0 while unknown.
        teachers: names of the teachers that it sends to.
        in_flight: requests under way, by teacher.
        served: batches whose labels are used, by teacher, since it was assigned.
        starved_s: seconds that the training loop waited for labels.
        blocked_s: seconds that pulling was paused because the buffer was full.
        source_wait_s: seconds that the training loop waited for the source.
        state: `starved`, `source_wait`, `blocked` or `steady`.
        content_id: the model content that labels come from; empty while that is not known.
        waiting_for: in words, what the stream waits for; empty when for nothing.
        engine_restarts: times that the engine process was started anew.
    """

    yielded: int = 0
    delivered: int = 0
    samples_delivered: int = 0
    resends: int = 0
    volume_bytes: int = 0
    upper_bytes: int = 0
    lower_bytes: int = 0
    want: int = 0
    needed: int = 0
    t_t_s: float = 0.0
    t_s_s: float = 0.0
    teachers: tuple[str, ...] = ()
    in_flight: tuple[tuple[str, int], ...] = ()
    served: tuple[tuple[str, int], ...] = ()
    starved_s: float = 0.0
    blocked_s: float = 0.0
    source_wait_s: float = 0.0
    state: str = "steady"
    content_id: str = ""
    waiting_for: str = ""
    engine_restarts: int = 0

    def line(self) -> str:
        """One line for a progress bar."""
        volume = f"{_short(self.volume_bytes)} of {_short(self.upper_bytes)}"
        return (
            f"teachers {len(self.teachers)}/{self.want}  buffer {volume}"
            f"  starved {self.starved_s:.1f} s  resends {self.resends}"
        )


def _short(nbytes: int) -> str:
    """Bytes for people: "640 KiB"."""
    return f"{nbytes / 2**20:.0f} MiB" if nbytes >= 10 << 20 else f"{nbytes / 2**10:.0f} KiB"
