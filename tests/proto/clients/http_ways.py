"""A batch that is asked for by HTTP or by gRPC, whichever way the client takes."""

from __future__ import annotations

import numpy as np

from edl.proto.clients import Request
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.tests.scripted_teacher import logits_of

WAIT_S = 10.0
X = np.arange(24, dtype=np.float32).reshape(4, 6)
ASKED = Request({"x": X}, request_id="7", parameters={"teacher_id": "t"})


def ask(client: OipGrpcClient, timeout_s: float = WAIT_S) -> None:
    """Have labels, and see that they are those of the batch."""
    labels = client.infer(ASKED, timeout_s).outputs["logits"]
    np.testing.assert_array_equal(labels, logits_of(X))
