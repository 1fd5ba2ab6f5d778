"""Checks of a deployment's fields: the URL of a model, its content, and options of a teacher.

A deployment is carried out on machines of other owners. So options that name a function, program,
file or socket of the machine (`--preprocess module:function`, `--canary`, `--engine`,
`--listen`) are not allowed: only the machine's own agent can set them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

from ...runtime.errors import UsageError

#: The protocols of fsspec that only read, and from one location. The others are not allowed: a
#: chain (`zip://...::https://...`) unpacks archives or stores files elsewhere, and some others run
#: commands on other machines.
PROTOCOLS: Final = (
    "file", "http", "https", "s3", "gs", "gcs", "az", "abfs", "abfss", "oss", "hdfs", "webhdfs",
    "bos", "hf",
)  # fmt: skip
_CONTENT_ID: Final = re.compile(r"[0-9a-f]{64}")
_MAX_URL_LENGTH: Final = 2000


def check_url(url: str) -> str:
    """Return the URL of a model. Raises UsageError if agents cannot fetch a model from it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in PROTOCOLS:
        raise UsageError(
            f"the URL of a model must be of {', '.join(PROTOCOLS)}, such as s3://bucket/model "
            f"or file:///models/resnet, not {_masked(url)!r}"
        )
    if not rest.strip("/") or not url.isprintable() or " " in url or len(url) > _MAX_URL_LENGTH:
        raise UsageError(f"{_masked(url)!r} names no model: blanks are %20, and there is a path")
    if "::" in url:
        raise UsageError(f"{_masked(url)!r} chains protocols: use the URL of the model itself")
    if scheme in ("http", "https", "webhdfs") and "@" in rest.partition("/")[0]:
        raise UsageError(
            f"the URL {_masked(url)!r} contains a user or password, which everybody who reads the "
            "deployment could see: give it to the machines instead (docs/how-to/autoscaling.md)"
        )
    return url


def is_content(content_id: str) -> bool:
    """Return whether a text is a content id as `edl teacher fingerprint` prints it."""
    return _CONTENT_ID.fullmatch(content_id) is not None


def check_content(content_id: str) -> str:
    """Return a content id. Raises UsageError if it is invalid."""
    if not is_content(content_id):
        raise UsageError(
            "the content of a model must be 64 hexadecimal digits, as 'edl teacher fingerprint "
            f"MODEL' prints them, not {content_id[:80]!r}"
        )
    return content_id


def _masked(url: str) -> str:
    """Return a URL for messages, without parts that may be a password."""
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"[:160]


_COUNT: Final = r"[1-9][0-9]{0,5}"
_DECIMAL: Final = r"[0-9]{1,9}(\.[0-9]{1,9})?"
#: NAME:DATATYPE:DIMS
_TENSOR: Final = r"[A-Za-z0-9_.\-/]{1,128}:[A-Z0-9]{2,8}:-?[0-9]{1,9}(,-?[0-9]{1,9}){0,15}"

#: Name of an option -> pattern of its values. A value of `preprocess` has no colon, so it can only
#: be a built-in step, and not a function of the machine (`module:function`).
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
#: Options that may be repeated.
REPEATED: Final = frozenset({"input", "output", "preprocess"})
#: Options that are a key of another flag: `rate=1600` is passed as `--backend=rate=1600`.
_FLAGS: Final = {
    "batch-delay": "--batch=delay",
    "batch-max": "--batch=max",
    "batch-preferred": "--batch=preferred",
    "rate": "--backend=rate",
}
_MAX_OPTIONS: Final = 64


def check_options(options: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if an option is not in `ALLOWED` or its value is invalid."""
    if len(options) > _MAX_OPTIONS:
        raise UsageError(f"a deployment has at most {_MAX_OPTIONS} options, not {len(options)}")
    seen: set[str] = set()
    for name, value in options:
        pattern = ALLOWED.get(name)
        if pattern is None:
            near = difflib.get_close_matches(name, ALLOWED, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise UsageError(
                f"a deployment cannot set {name[:80]!r}{hint} It may set {', '.join(ALLOWED)}: the "
                "others are set by the machine's own agent"
            )
        if not re.fullmatch(pattern, value):
            raise UsageError(f"option {name} of a deployment cannot be {value[:80]!r}")
        if name in seen and name not in REPEATED:
            raise UsageError(f"option {name} of a deployment is given twice")
        seen.add(name)


def parse_options(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse options NAME=VALUE or --NAME=VALUE of a command line. Raises UsageError."""
    found = []
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        if not equals:
            raise UsageError(f"an option of a deployment must be NAME=VALUE, not {text[:80]!r}")
        found.append((name, value))
    options = tuple(found)
    check_options(options)
    return options


def arguments(options: Sequence[tuple[str, str]]) -> list[str]:
    """Return the options as arguments of `edl teacher serve`."""
    return [
        f"--{name}" if name == "deterministic" else f"{_FLAGS.get(name, f'--{name}')}={value}"
        for name, value in options
    ]
