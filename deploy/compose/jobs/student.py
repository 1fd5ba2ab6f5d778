"""The job of examples/ctr.py, for a mesh that asks who calls: its reader shows a certificate.

A training of yours stands beside this file, with the same `distill()`. `ctr` is found by
PYTHONPATH; SECRETS names the folder of the credentials, if it is not that of containers.
"""

from __future__ import annotations

import os
from dataclasses import replace

import ctr  # type: ignore[import-not-found]  # examples/ctr.py
from ctr import feed, loss, metrics, model, optimizer

from edl.student import Distill

__all__ = ["distill", "feed", "loss", "metrics", "model", "optimizer"]

SECRETS = os.environ.get("SECRETS", "/run/secrets")


def distill() -> Distill:
    job: Distill = ctr.distill()
    return replace(
        job,
        options={
            "tls_ca": f"{SECRETS}/ca.pem",
            "tls_cert": f"{SECRETS}/ctr.pem",
            "tls_key": f"{SECRETS}/ctr.key",
        },
    )
