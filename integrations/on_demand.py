"""Labels of a service's teachers on demand, for modules that replace a local teacher model."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from ..distill_reader.pool import TeacherPool
from ..runtime.errors import UsageError


class ImageLabeller:
    """Asks the teachers of a service for one output.

    Args:
        output: name of the output; "" if the teachers have only one output.
        **options: arguments of `TeacherPool`: service, coordinator or teachers, and so on.
    """

    def __init__(self, output: str = "", **options: Any) -> None:
        self._output = output
        self._pool = TeacherPool(**options)

    def label(self, images: Any) -> Any:
        """Return the labels, float [N, classes], of UINT8 images [N, C, H, W] in host memory.

        Raises:
            UsageError: the teachers have several outputs, or none of this name.
            EdlError: as in `TeacherPool.label`.
        """
        labels = self._pool.label([images])
        if not self._output and len(labels) == 1:
            return next(iter(labels.values()))
        if self._output not in labels:
            raise UsageError(f"the teachers' outputs are {sorted(labels)}: name one as output=")
        return labels[self._output]


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Run a training script in this process, as `python SCRIPT ARGUMENTS` would run it."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")
