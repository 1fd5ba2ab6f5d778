"""What `edl job submit --dry-run` prints of a job on Kubernetes: YAML for `kubectl apply -f -`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..spec import JobSpec
from .translate import to_resource

if TYPE_CHECKING:
    from ..backend import Where


def manifest(spec: JobSpec, where: Where) -> Iterator[str]:
    """The lines of the manifest; what is worth knowing of the file, in comments.

    Raises:
        UsageError: see `to_resource`.
    """
    import yaml

    for note in notes(spec):
        yield f"# {note}"
    resource = to_resource(spec, where.namespace, where.coordinator)
    # Escaped, as some characters that may stand in a variable are line breaks to YAML.
    yield from yaml.safe_dump(resource, sort_keys=False, width=100).rstrip("\n").split("\n")


def notes(spec: JobSpec) -> list[str]:
    """What is worth knowing of a job's file on a cluster, a sentence each; mostly nothing."""
    found = []
    if spec.folder != Path():
        found.append(
            "folder is of a fleet's machine: nodes on Kubernetes run in the folder of their image"
        )
    if not spec.resources.keys() - {"memory", "ephemeral-storage"}:
        found.append(
            "resources name neither cpu nor gpu: it is taken to need none, and grows to max_nodes"
        )
    return found
