"""What `edl bench reader` runs: teachers whose model takes no time, a trainer that only takes."""

from __future__ import annotations

from typing import Final

#: A batch.
SHAPE: Final = (32, 3, 224, 224)
