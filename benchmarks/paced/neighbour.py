"""A process that keeps cores busy with the demo's teacher model, on request.

    python -m edl.benchmarks.paced.neighbour CHANNEL CORE[,CORE...] MODEL

It answers "work" at once, and "rest" when its last batch has ended.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from ...mesh.demo.digits import BatchSource, load_digits
from ...mesh.demo.models import Predictor
from ...mesh.demo.settings import DemoSettings
from ...proto.channel import Channel
from ...runtime.supervise import end_with_parent
from ..children import pin_to


def main(channel_fd: int, core: str, model: str) -> None:
    """Label one batch repeatedly between "work" and "rest", until the channel ends."""
    end_with_parent(at_once=True)
    pin_to(core)
    settings = DemoSettings()
    image, *_ = next(iter(BatchSource(load_digits(settings.size), settings)))
    predictor = Predictor(Path(model), micro_batch=settings.micro_batch)
    predictor(image)
    working, computing = threading.Event(), threading.Lock()

    def work() -> None:
        while working.wait():
            with computing:
                predictor(image)

    threading.Thread(target=work, daemon=True).start()
    channel = Channel.attach(channel_fd)
    channel.send("ready")
    for message in channel:
        if message["kind"] == "work":
            working.set()
        else:
            working.clear()
            with computing:
                pass
        channel.send("done")


if __name__ == "__main__":
    fd, on, path = sys.argv[1:]
    main(int(fd), on, path)
