"""Files of `edl apply -f`. The key `kind` of each document selects its schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from ...coordinator.operations import parse_deploy_request
from ...proto import coordinator_pb2 as pb
from ...runtime.errors import UsageError
from ...scheduler.units import Number
from ..files import parse_kinds
from ..files.yaml_tree import read_text
from ..jobs.spec import QueuedJobSpec
from ..up.spec import MeshFile


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """A service on machines that run `edl agent`.

    Attributes:
        name: name of the service.
        model: URL of the model, a file or a folder, for machines: https://, s3://, gs://, hdfs://,
            file:// and others of fsspec.
        content: content_id of the model from `edl teacher fingerprint MODEL`, with the
            preprocessing of `options`. Machines serve no other content.
        min: least number of teachers. After the coordinator's `idle-to-zero` seconds without a
            student the service has none.
        max: greatest number of teachers; None: `min`.
        priority: services with higher priorities get machines first.
        price: price of a teacher per hour, in any currency; 0: the coordinator's price.
        cost_ceiling: most that all teachers of the service may cost per hour; None: the
            coordinator's limit.
        freeze: seconds after a change during which the number of teachers does not change.
        options: `NAME=VALUE`, options of `edl teacher serve` such as `micro-batch=8` or
            `preprocess=imagenet`; only options that cannot run code.
    """

    name: str
    model: str
    content: str
    min: Annotated[int, Number(at_least=0)] = 1
    max: Annotated[int, Number(at_least=0)] | None = None
    priority: int = 0
    price: Annotated[float, Number(at_least=0)] = 0.0
    cost_ceiling: Annotated[float, Number(at_least=0)] | None = None
    freeze: Annotated[float, Number("s", at_least=0)] = 30.0
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            parse_deploy_request(self.request())
        except UsageError as error:
            raise ValueError(str(error)) from None

    def request(self) -> pb.DeployRequest:
        """Return the request to the coordinator."""
        return pb.DeployRequest(
            service=self.name,
            model_url=self.model,
            content_id=self.content,
            options=self.options,
            min=self.min,
            max=self.min if self.max is None else self.max,
            priority=self.priority,
            price_per_hour=self.price,
            freeze_seconds=self.freeze,
            cost_ceiling_per_hour=self.cost_ceiling,
        )


Spec = MeshFile | DeploymentSpec | QueuedJobSpec
KINDS: Final[dict[str, type[Spec]]] = {
    "mesh": MeshFile,
    "service": DeploymentSpec,
    "job": QueuedJobSpec,
}


def read_documents(paths: Sequence[Path]) -> list[tuple[Path, Spec]]:
    """Return the documents of files, each with the path of its file.

    Raises:
        UsageError: as for `files.read`; a document has no known kind; or a mesh is not the only
            document of its file, as `edl up` requires.
    """
    documents: list[tuple[Path, Spec]] = []
    for path in paths:
        specs = parse_kinds(read_text(path), KINDS, str(path))
        if len(specs) > 1 and any(isinstance(spec, MeshFile) for spec in specs):
            raise UsageError(
                f"{path}: a mesh must be the only document of its file: move the others"
            )
        documents += [(path, spec) for spec in specs]
    return documents
