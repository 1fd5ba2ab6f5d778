"""The content id of a model that lies in files, found before any framework opens them."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from .backends import content
from .backends.files import find
from .backends.open import KINDS
from .backends.preprocess import NAMED, content_behind


def content_of(model: str, preprocess: Sequence[str] = ()) -> str:
    """What a teacher of this model will say that it serves.

    Args:
        model: path of a model: folder, prefix or file.
        preprocess: named steps before it, the first one first.

    Raises:
        ModelError: there is none, it is more than one, or it cannot be read.
        UsageError: a step is not one of the package's own.
    """
    if strange := [name for name in preprocess if name not in NAMED]:
        raise UsageError(f"no preprocessing {strange[0]!r}: expected one of {', '.join(NAMED)}")
    found = content.of_files(find(model, KINDS).parts)
    for name in reversed(preprocess):
        found = content_behind(found, name)
    return found
