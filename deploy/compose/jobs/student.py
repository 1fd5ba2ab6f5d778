"""The job of examples/ctr.py, for a mesh with mTLS: its reader presents a certificate.

For a job of your own, put a file with the same `distill()` beside this one. The folder of `ctr.py`
must be on PYTHONPATH. Outside of containers, set the variable SECRETS to the folder of the
credentials.
"""

from __future__ import annotations

import os
from dataclasses import replace

import ctr  # type: ignore[import-not-found]  # examples/ctr.py
from ctr import feed, loss, metrics, model, optimizer

from edl.distill_reader import TLS
from edl.student import Distill

__all__ = ["distill", "feed", "loss", "metrics", "model", "optimizer"]

SECRETS = os.environ.get("SECRETS", "/run/secrets")


def distill() -> Distill:
    job: Distill = ctr.distill()
    credentials = TLS(
        ca=f"{SECRETS}/ca.pem", certificate=f"{SECRETS}/ctr.pem", key=f"{SECRETS}/ctr.key"
    )
    return replace(job, options={"tls": credentials})
