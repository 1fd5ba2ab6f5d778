"""What a deployment may name: a model's place and content, and options of a teacher.

A deployment is carried out on machines of others. So an option that names a function, a program, a
file or a socket of the machine (`--preprocess module:function`, `--canary`, `--serving-python`,
`--listen`) is none of them: those are the machine's own to say.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

from ...runtime.errors import UsageError

#: Protocols of fsspec that read one place and nothing else. Chained ones (`zip://...::https://...`)
#: unpack archives or keep files elsewhere, and some run commands on other machines.
PROTOCOLS: Final = (
    "file", "http", "https", "s3", "gs", "gcs", "az", "abfs", "abfss", "oss", "hdfs", "webhdfs",
    "bos", "hf",
)  # fmt: skip
_CONTENT: Final = re.compile(r"[0-9a-f]{64}")
_LONGEST: Final = 2000


def check_url(url: str) -> str:
    """The URL of a model; raises UsageError where none can be fetched from there."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in PROTOCOLS:
        raise UsageError(
            f"a model is fetched from a URL of {', '.join(PROTOCOLS)}, such as s3://bucket/model "
            f"or file:///models/resnet, not from {_shown(url)!r}"
        )
    if not rest.strip("/") or not url.isprintable() or " " in url or len(url) > _LONGEST:
        raise UsageError(f"{_shown(url)!r} names no model: blanks are %20, and there is a path")
    if "::" in url:
        raise UsageError(f"{_shown(url)!r} chains protocols: name the model's own place")
    if scheme in ("http", "https", "webhdfs") and "@" in rest.partition("/")[0]:
        raise UsageError(
            f"the URL {_shown(url)!r} holds a user or password, which everybody who sees the "
            "deployment would see: give it to the machines instead (docs/agent.md)"
        )
    return url


def is_content(content_id: str) -> bool:
    """Whether it is a content id as `edl teacher fingerprint` prints it."""
    return _CONTENT.fullmatch(content_id) is not None


def check_content(content_id: str) -> str:
    """The same; raises UsageError where it is none."""
    if not is_content(content_id):
        raise UsageError(
            "the content of a model is 64 hexadecimal digits, as 'edl teacher fingerprint MODEL' "
            f"prints them, not {content_id[:80]!r}"
        )
    return content_id


def _shown(url: str) -> str:
    """A URL without what may be a password in it."""
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"[:160]


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
