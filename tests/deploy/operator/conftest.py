"""The cluster that tests of the operator work on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.tests.deploy.kube_api.cluster import Cluster, cluster_in


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path) as found:
        yield found
