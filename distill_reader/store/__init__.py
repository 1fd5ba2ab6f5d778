"""Soft labels kept on disk by sample, so that none has to be made twice.

`LabelStore` is what a user says, `store.Store` one that is open. docs/label-store.md says when to
use one, ADR-0011 why it is as it is.
"""

from .settings import LabelStore

__all__ = ["LabelStore"]
