"""Strict YAML files of frozen dataclasses: jobs, meshes, clusters and scenarios."""

from .yaml_files import parse, parse_kinds, read, write

__all__ = ["parse", "parse_kinds", "read", "write"]
