"""A teacher of a function in a process of its own, to be stopped: its model waits for a file.

`python -m edl.tests.teacher.held_teacher GO [HTTP]`; prints "port N", and "held" when a batch is in
the model, which goes on once the file GO is there. HTTP is where it speaks that besides.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from edl.supervise import end_with_parent
from edl.tests.teacher.bench import Bench
from edl.tests.waiting import wait_until

if __name__ == "__main__":
    end_with_parent()
    go = Path(sys.argv[1])
    bench = Bench(http=sys.argv[2] if len(sys.argv) > 2 else None)

    def hold() -> None:
        print("held", flush=True)
        wait_until(go.exists)

    bench.labeller.before = hold
    print(f"port {bench.server.port}", flush=True)
    threading.Event().wait()  # for the parent: there is no other end
