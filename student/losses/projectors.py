"""Hints' projectors as parts of the student: trained, saved and divided among ranks with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...errors import UsageError
from ..job.distill import Distill, Hint

#: Under this name, and the number of its hint, a projector is a sublayer of the student.
PROJECTOR: Final = "edl_projector_"


def attach_projectors(distill: Distill | None, model: Any) -> Mapping[str, Any]:
    """Make the projectors of all hints sublayers of the model.

    Returns:
        By the teachers' output, for hints that have one.

    Raises:
        UsageError: what should make a layer makes something else.
    """
    hints = () if distill is None else distill.hints
    return {
        hint.teacher: model.add_sublayer(f"{PROJECTOR}{number}", _made(hint))
        for number, hint in enumerate(hints)
        if hint.projector is not None
    }


def detach_projectors(model: Any) -> None:
    """Take them out again: who uses the student has no teachers."""
    for name in [name for name, _ in model.named_children() if name.startswith(PROJECTOR)]:
        delattr(model, name)


def _made(hint: Hint) -> Any:
    import paddle

    assert hint.projector is not None
    layer = hint.projector()
    if not isinstance(layer, paddle.nn.Layer):
        raise UsageError(
            f"the projector of the hint {hint.teacher!r} has to make a paddle.nn.Layer, it made a"
            f" {type(layer).__name__}"
        )
    return layer
