"""What lets the saves of one generation join the history of the training: the job board."""

from __future__ import annotations

from ...coordinator.jobs import JobBoard
from ...errors import GenerationSuperseded
from ...scheduler.students.saving import CheckpointHistory


class BoardFence:
    """See `student.checkpoint.repository.Fence`.

    Args:
        board: that keeps the history.
        job: its name there.
        generation: whose saves these are.
        after: name of the checkpoint that the first of them continues; empty: there is none.
    """

    def __init__(self, board: JobBoard, job: str, generation: int, after: str) -> None:
        self._board, self._job = board, job
        self.generation, self.after = generation, after

    def history(self) -> CheckpointHistory:
        record = self._board.generation(self._job)
        if record is None or record.number != self.generation:
            raise GenerationSuperseded(f"generation {self.generation} of {self._job} is over")
        return CheckpointHistory.from_json(record.history)

    def replace(self, known: CheckpointHistory, history: CheckpointHistory) -> bool:
        return self._board.replace_history(
            self._job, self.generation, known.to_json(), history.to_json()
        )
