"""Envoy before several servers, over gRPC: the least busy gets the next request."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.supervise import Process
from edl.tests.interop.environments import ENVOY
from edl.tests.interop.running import ASK_S, HOST, Ports, running, status

_TYPES = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An Envoy that is ready.

    Attributes:
        process: leads its process group.
        grpc: host:port at which it takes requests.
        admin: host:port of its own page.
    """

    process: Process
    grpc: str
    admin: str

    def answered(self) -> dict[str, int]:
        """How many requests each backend has answered with success, by its address."""
        with closing(http.client.HTTPConnection(self.admin, timeout=ASK_S)) as connection:
            connection.request("GET", "/clusters?format=json")
            (cluster,) = json.load(connection.getresponse())["cluster_statuses"]
        return {
            "{address}:{port_value}".format(**host["address"]["socket_address"]): next(
                int(stat.get("value", 0)) for stat in host["stats"] if stat["name"] == "rq_success"
            )
            for host in cluster["host_statuses"]
        }


@contextmanager
def envoy(folder: Path, backends: Sequence[str]) -> Iterator[Proxy]:
    """Envoy before `backends`, each host:port; `folder` is for its configuration."""
    ENVOY.make()
    file = folder / "envoy.json"

    def argv(ports: Ports) -> tuple[str, ...]:
        file.write_text(json.dumps(_configuration(ports, backends)))
        # Without its base id every Envoy of a host would want the same place in shared memory.
        return (str(ENVOY.program("envoy")), "-c", str(file), "--concurrency", "1",
                "--use-dynamic-base-id", "--log-level", "warning")  # fmt: skip

    def ready(ports: Ports) -> bool:
        return status(f"{HOST}:{ports[1]}", "/ready") == 200

    with running("envoy", argv, 2, ready) as (process, ports):
        yield Proxy(process, *(f"{HOST}:{port}" for port in ports))


def _configuration(ports: Ports, backends: Sequence[str]) -> dict[str, Any]:
    retry = {
        "retry_on": "connect-failure,refused-stream,unavailable,reset",
        "num_retries": 3,
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [_named("retry.host.previous_hosts", "v3.PreviousHostsPredicate")],
    }
    routes = {
        "name": "all",
        "domains": ["*"],
        "routes": [
            {
                "match": {"prefix": "/"},
                "route": {"cluster": "teachers", "timeout": "60s", "retry_policy": retry},
            }
        ],
    }
    manager = {
        "stat_prefix": "teachers",
        "codec_type": "HTTP2",
        "route_config": {"virtual_hosts": [routes]},
        "http_filters": [_named("filters.http.router", "v3.Router")],
    }
    filters = [
        _named("filters.network.http_connection_manager", "v3.HttpConnectionManager", **manager)
    ]
    return {
        "admin": {"address": _address(HOST, ports[1])},
        "static_resources": {
            "listeners": [
                {"address": _address(HOST, ports[0]), "filter_chains": [{"filters": filters}]}
            ],
            "clusters": [_cluster(backends)],
        },
    }


def _cluster(backends: Sequence[str]) -> dict[str, Any]:
    hosts = []
    for backend in backends:
        host, _, port = backend.rpartition(":")
        hosts.append({"endpoint": {"address": _address(host, int(port))}})
    http = f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": "teachers",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": "teachers", "endpoints": [{"lb_endpoints": hosts}]},
        "outlier_detection": {
            "consecutive_5xx": 2,
            "base_ejection_time": "10s",
            "max_ejection_percent": 50,  # by default a tenth: of two backends, none
        },
        # By default three retries at a time: fewer than requests are in flight.
        "circuit_breakers": {"thresholds": [{"max_retries": 64}]},
        "typed_extension_protocol_options": {
            http.rpartition("/")[2]: {
                "@type": http,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }


def _named(name: str, kind: str, **settings: Any) -> dict[str, Any]:
    """One of Envoy's extensions; its type is the name, with the version before the last part."""
    return {
        "name": f"envoy.{name}",
        "typed_config": {"@type": f"{_TYPES}.{name}.{kind}", **settings},
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
