"""Frozen dataclasses as YAML files: jobs, meshes, clusters and scenarios, read strictly."""

from .yaml_files import parse, read, write

__all__ = ["parse", "read", "write"]
