"""What of this machine decides the bits of a result: the instruction set libraries choose by."""

from __future__ import annotations

import platform
from pathlib import Path

#: Flags of /proc/cpuinfo by which oneDNN, MKL and OpenBLAS pick their kernels.
_DECISIVE = ("sse4_1", "avx", "fma", "amx", "asimd", "sve", "f16c")


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Architecture, vendor and the decisive CPU flags, in one word, the same on equal machines."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # not Linux: the architecture is all that is known
        return platform.machine()
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags", facts.get("Features", "")).split()
    decisive = sorted(flag for flag in flags if flag.startswith(_DECISIVE))
    return ",".join([platform.machine(), facts.get("vendor_id", "unknown"), *decisive])
