"""Which options of a teacher a deployment may name: those that cannot make it run anybody's code.

A deployment is carried out on machines of others. So an option that names a function, a program, a
file or a socket of the machine (`--preprocess module:function`, `--canary`, `--serving-python`,
`--host`) is none of them: those are the machine's own to say.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

from ...errors import UsageError

_COUNT: Final = r"[1-9][0-9]{0,5}"
_DECIMAL: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
#: NAME:DATATYPE:DIMS
_TENSOR: Final = r"[A-Za-z0-9_.\-/]{1,128}:[A-Z0-9]{2,8}:-?[0-9]{1,9}(,-?[0-9]{1,9}){0,15}"

#: Name of an option of `edl teacher serve` -> the form of its values. A preprocessing has no colon,
#: so that it is one of those that the package has, by its name.
ALLOWED: Final[dict[str, str]] = {
    "backend": r"auto|paddle|onnx|torch|paced",
    "batch-delay": _DECIMAL,
    "batch-max": r"[0-9]{1,6}",
    "batch-preferred": rf"{_COUNT}(,{_COUNT}){{0,15}}",
    "deterministic": r"true",
    "input": _TENSOR,
    "micro-batch": rf"auto|{_COUNT}",
    "output": _TENSOR,
    "precision": r"fp32|bf16",
    "preprocess": r"[a-z][a-z0-9]{0,31}",
    "rate": _DECIMAL,
    "slots": _COUNT,
    "threads": _COUNT,
}
#: Those that may stand there more than once.
REPEATED: Final = frozenset({"input", "output", "preprocess"})
_MOST: Final = 64


def check_options(options: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError unless each is one of `ALLOWED`, in its form."""
    if len(options) > _MOST:
        raise UsageError(f"a deployment has {_MOST} options at most, not {len(options)}")
    seen: set[str] = set()
    for name, value in options:
        form = ALLOWED.get(name)
        if form is None:
            near = difflib.get_close_matches(name, ALLOWED, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"a deployment cannot say {name[:80]!r}{hint} It may say {', '.join(ALLOWED)}: the "
                "rest is for the machine's own agent to decide"
            )
        if not re.fullmatch(form, value):
            raise UsageError(f"option {name} of a deployment cannot be {value[:80]!r}")
        if name in seen and name not in REPEATED:
            raise UsageError(f"option {name} of a deployment is given twice")
        seen.add(name)


def parse_options(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Options as a command line has them, NAME=VALUE or --NAME=VALUE; raises UsageError."""
    found = []
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        if not equals:
            raise UsageError(f"an option of a deployment is NAME=VALUE, not {text[:80]!r}")
        found.append((name, value))
    options = tuple(found)
    check_options(options)
    return options


def arguments(options: Sequence[tuple[str, str]]) -> list[str]:
    """Arguments of `edl teacher serve`."""
    return [
        f"--{name}" if name == "deterministic" else f"--{name}={value}" for name, value in options
    ]
