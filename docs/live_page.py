"""Record the live page of a real mesh while a teacher is killed and another one joins: a GIF.

    python docs/live_page.py [FILE]      (default: docs/live-page.gif beside this script)

Needs Chromium with its driver, and the extra `dev`. The mesh runs on this machine: a coordinator,
three teachers that emulate accelerators of 400 images per second, and a student that takes 1000.
"""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.coordinator.web.browser import chromium

TEACHER = TeacherSpec(
    service="resnet101",
    model="edl.teacher.stand_in:images",
    ttl_s=2.0,
    options=("--backend", "paced,rate=400"),
)
PAGE = r"the page of the mesh is at (\S+)"
BATCH, STEP_S = 16, 16 / 1000
WIDTH, HEIGHT = 960, 320  # the service, its students and teachers
FRAME_S, KILL_S, JOIN_S, END_S = 0.5, 4.0, 8.0, 20.0
COLOURS = 64


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield images and labels forever."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (BATCH, 3, 224, 224), dtype=np.uint8)
    while True:
        yield image, rng.integers(0, 1000, BATCH)


def train(reader: DistilReader, stop: threading.Event) -> None:
    """Take a batch every `STEP_S` until `stop` is set, as a student does."""
    for _ in reader:
        if stop.wait(STEP_S):
            return


def record(mesh: LocalMesh, url: str) -> list[Image.Image]:
    """Take a screenshot every `FRAME_S`; meanwhile kill a teacher and start another one."""
    frames: list[Image.Image] = []
    due: list[tuple[float, Callable[[], object]]] = [
        (KILL_S, lambda: mesh.kill("teacher-2")),
        (JOIN_S, lambda: mesh.start_teacher("teacher-4", TEACHER)),
    ]
    with chromium() as browser:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.open(url)
        browser.run("document.documentElement.style.overflow = 'hidden'")  # no scroll bar
        time.sleep(2.0)
        began = time.monotonic()
        while (now := time.monotonic() - began) < END_S:
            while due and due[0][0] <= now:
                due.pop(0)[1]()
            frames.append(Image.open(io.BytesIO(browser.chrome.get_screenshot_as_png())))
            time.sleep(max(len(frames) * FRAME_S - (time.monotonic() - began), 0.0))
    return frames


def write(frames: list[Image.Image], file: Path) -> None:
    """Write the frames with one palette, so that unchanged parts cost no bytes."""
    palette = frames[0].convert("RGB").quantize(COLOURS)
    plain = [
        frame.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames
    ]
    milliseconds = int(1000 * FRAME_S)
    plain[0].save(
        file, save_all=True, append_images=plain[1:], duration=milliseconds, loop=0, optimize=True
    )


def main(file: Path) -> None:
    """Run the mesh, and write the animation to `file`."""
    stop = threading.Event()
    with LocalMesh(coordinator_options=("--http", "0", "--ttl", "2")) as mesh:
        (url,) = re.findall(PAGE, "\n".join(mesh.coordinator.tail()))
        for number in (1, 2, 3):
            mesh.add_teacher(f"teacher-{number}", TEACHER)
        with DistilReader.from_batch_generator(
            batches, service=TEACHER.service, coordinator=mesh.url, job="resnet18"
        ) as reader:
            student = threading.Thread(target=train, args=(reader, stop))
            student.start()
            try:
                time.sleep(5.0)  # until it knows how many teachers it needs
                frames = record(mesh, url)
            finally:
                stop.set()
                student.join()
    write(frames, file)
    print(f"{file}: {len(frames)} frames, {file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("live-page.gif"))
