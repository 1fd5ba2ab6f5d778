"""Frozen dataclasses as YAML files: jobs, meshes, clusters and scenarios, read strictly."""

from .yaml_files import parse, parse_kinds, read, write

__all__ = ["parse", "parse_kinds", "read", "write"]
