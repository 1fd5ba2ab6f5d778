"""The fluid data plane: rates between two events, instead of batches, for very large meshes.

A student's buffer rises and falls at constant rates until something happens: the control plane
tells of a teacher, or the volume comes to `ut`, `lt` or nothing. What is decided then is decided by
the live rule, `scheduler.flow`; who has which teacher, by the same control plane as batch by batch.
So a run costs what its events cost, however fast its batches are.
"""

from __future__ import annotations

from .plane import FluidPlane

__all__ = ["FluidPlane"]
