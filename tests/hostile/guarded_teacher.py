"""A teacher of a function, behind tokens, in a process of its own: so its memory can be measured.

`python -m edl.tests.hostile.guarded_teacher TOKENS_FILE MAX_MESSAGE_BYTES`; prints "port N" and
serves until it is stopped.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from edl.proto.security.credentials import ServerSecurity
from edl.runtime.supervise import end_with_parent
from edl.tests.teacher.bench import Bench

if __name__ == "__main__":
    end_with_parent()
    security = ServerSecurity(tokens_file=Path(sys.argv[1]))
    bench = Bench(security=security, max_message_bytes=int(sys.argv[2]))
    print(f"port {bench.server.port}", flush=True)
    threading.Event().wait()  # for the parent: there is no other end
