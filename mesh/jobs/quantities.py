"""What a node of a job needs on a cluster: names of resources and Kubernetes quantities, checked.

`cpu`, `memory` and `gpu` are said as in `{cpu: 2, memory: 4Gi, gpu: 1}`; `gpu` is `nvidia.com/gpu`,
and cards of other makers, and whatever else a cluster has, go by their full name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..kubernetes.resources import quantity

#: Names that have no maker before them; the API server takes no others.
PLAIN: Final = ("cpu", "memory", "ephemeral-storage", "gpu")
_FULL: Final = re.compile(
    r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_CORES: Final = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+m")
_BYTES: Final = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?")
_WHOLE: Final = re.compile(r"[0-9]+")
#: A number alone is bytes, which nobody means.
_LEAST_BYTES: Final = 1 << 20


def checked(resources: Mapping[str, int | float | str]) -> dict[str, str]:
    """The same as texts.

    Args:
        resources: from a name to a quantity, as a file has it.

    Raises:
        ValueError: a name or a quantity is none.
    """
    found = {name: str(amount) for name, amount in resources.items()}
    for name, amount in found.items():
        _check(name, amount)
    return found


def _check(name: str, amount: str) -> None:
    where = f"resources.{name}"
    if name == "cpu":
        if not _CORES.fullmatch(amount):
            raise ValueError(f"{where}: expects cores, `2`, `0.5` or `500m`, got {amount!r:.60}")
    elif name in ("memory", "ephemeral-storage"):
        _check_bytes(where, amount)
    elif name != "gpu" and not _FULL.fullmatch(name):
        raise ValueError(f"{where}: expects {', '.join(PLAIN)}, or a full name such as amd.com/gpu")
    elif not _WHOLE.fullmatch(amount):
        raise ValueError(f"{where}: expects a whole number, got {amount!r:.60}")


def _check_bytes(where: str, amount: str) -> None:
    if not _BYTES.fullmatch(amount):
        raise ValueError(
            f"{where}: expects bytes as Kubernetes has them, `4Gi` or `512Mi`, got {amount!r:.60}"
        )
    if quantity(amount) < _LEAST_BYTES:
        raise ValueError(f"{where}: {amount!r} is less than 1Mi: it needs a unit, as in `4Gi`")
