"""Descriptions in YAML files, read strictly: clusters, jobs, scenarios."""

from .reading import parse, read
from .writing import write

__all__ = ["parse", "read", "write"]
