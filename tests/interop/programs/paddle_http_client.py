"""Paddle Serving's own client asks a general model service over gRPC; runs in its environment.

`python paddle_http_client.py ADDRESS CONFIG INPUT OUTPUT X.npy Y.npy` sends the array as INPUT and
writes what came as OUTPUT.
"""

from __future__ import annotations

import sys

import numpy as np
from paddle_serving_client.httpclient import HttpClient


def main(address: str, config: str, name: str, wanted: str, source: str, target: str) -> None:
    """Ask once."""
    client = HttpClient()
    client.load_client_config(config)
    client.set_use_grpc_client(True)
    client.connect([address])
    x = np.load(source, allow_pickle=False)
    response = client.predict(feed={name: x}, fetch=[wanted], batch=True, log_id=42)
    assert (response.err_no, response.log_id) == (0, 42)
    (output,) = response.outputs
    (tensor,) = output.tensor
    assert tensor.alias_name == wanted
    y = np.array(tensor.float_data, dtype=np.float32).reshape(list(tensor.shape))
    np.save(target, y, allow_pickle=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
