"""A training that is killed and started again: `resumed_program CHECKPOINT TEACHER EPOCHS LAST`.

Trains on a shuffled Paddle loader with workers. After each step its checkpoint, written whole or
not at all, holds the reader's state, and for each epoch the ids and a digest of all that it saw.
Behind step LAST, where there is one, it waits to be killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import paddle

from edl.distill_reader import DistilReader
from edl.runtime.standard_streams import write_whole_lines
from edl.runtime.supervise import end_with_parent
from edl.tests.distill_reader.readers import Samples

SAMPLES, BATCH = 50, 4


class Rows(Samples, paddle.io.Dataset):  # type: ignore[misc]  # Paddle is not typed
    pass


def main(checkpoint: Path, teacher: str, epochs: int, last: int) -> None:
    loader = paddle.io.DataLoader(Rows(SAMPLES), batch_size=BATCH, shuffle=True, num_workers=2)
    steps = 0
    seen: list[list[list[Any]]] = [[] for _ in range(epochs)]
    with DistilReader(loader, service="s", teachers=[teacher], seed=3) as reader:
        if checkpoint.exists():
            held = json.loads(checkpoint.read_text())
            reader.load_state_dict(held["reader"])
            seen = held["seen"]
        while (epoch := reader.state_dict()["epoch"]) < epochs:
            for x, ids, soft in reader:
                content = b"".join(tensor.numpy().tobytes() for tensor in (x, ids, soft))
                seen[epoch].append([ids.tolist(), hashlib.sha256(content).hexdigest()])
                save(checkpoint, {"reader": reader.state_dict(), "seen": seen})
                steps += 1
                print("step", steps, flush=True)
                if steps == last:
                    threading.Event().wait()  # until it is killed
    print("trained", flush=True)


def save(checkpoint: Path, held: dict[str, Any]) -> None:
    new = checkpoint.with_suffix(".new")
    new.write_text(json.dumps(held))
    os.replace(new, checkpoint)


if __name__ == "__main__":
    end_with_parent()
    write_whole_lines()
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
