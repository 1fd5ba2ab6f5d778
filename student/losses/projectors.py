"""Hints' projectors as parts of the student: trained, saved and divided among ranks with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...errors import UsageError
from ..job.distill import Distill, Hint
from .tensors import framework_of, layer_class

#: Under this name, and the number of its hint, a projector is a sublayer of the student.
PROJECTOR: Final = "edl_projector_"


def attach_projectors(distill: Distill | None, model: Any) -> Mapping[str, Any]:
    """Make the projectors of all hints sublayers of the model.

    Returns:
        By the teachers' output, for hints that have one.

    Raises:
        UsageError: what should make a layer makes something else.
    """
    made = {}
    for number, hint in enumerate(() if distill is None else distill.hints):
        if hint.projector is not None:
            made[hint.teacher] = _made(hint, framework_of(model))
            setattr(model, f"{PROJECTOR}{number}", made[hint.teacher])
    return made


def detach_projectors(model: Any) -> None:
    """Take them out again: who uses the student has no teachers."""
    for name in [name for name, _ in model.named_children() if name.startswith(PROJECTOR)]:
        delattr(model, name)


def _made(hint: Hint, framework: Any) -> Any:
    assert hint.projector is not None
    layer = hint.projector()
    if not isinstance(layer, wanted := layer_class(framework)):
        raise UsageError(
            f"the projector of the hint {hint.teacher!r} has to make a"
            f" {framework.__name__}.nn.{wanted.__name__}, it made a {type(layer).__name__}"
        )
    return layer
