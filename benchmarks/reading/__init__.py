"""Parts of `edl bench reader`: teachers with a model that takes no time, and an idle trainer."""

from __future__ import annotations

from typing import Final

#: Shape of a batch.
SHAPE: Final = (32, 3, 224, 224)
