"""Envoy before several servers, over gRPC: the least busy gets the next request."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edl.runtime.supervise import Process
from edl.tests.interop.environments import ENVOY
from edl.tests.interop.running import ASK_S, HOST, Ports, running, status

CONFIGURATION = """
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: ADMIN_PORT}}
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: GRPC_PORT}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: teachers
          codec_type: HTTP2
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route:
                  cluster: teachers
                  timeout: 60s
                  retry_policy:
                    retry_on: connect-failure,refused-stream,unavailable,reset
                    num_retries: 3
                    host_selection_retry_max_attempts: 5
                    retry_host_predicate:
                    - name: envoy.retry.host.previous_hosts
                      typed_config:
                        "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: teachers
    type: STATIC
    lb_policy: LEAST_REQUEST
    load_assignment: {cluster_name: teachers, endpoints: [{lb_endpoints: []}]}
    # By default a tenth may be ejected: of two backends, none.
    outlier_detection: {consecutive_5xx: 2, base_ejection_time: 10s, max_ejection_percent: 50}
    # By default three retries at a time: fewer than requests are in flight.
    circuit_breakers: {thresholds: [{max_retries: 64}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Proxy:
    """An Envoy that is ready, and its two addresses, host:port."""

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
    made: dict[str, Any] = yaml.safe_load(
        CONFIGURATION.replace("GRPC_PORT", str(ports[0])).replace("ADMIN_PORT", str(ports[1]))
    )
    (cluster,) = made["static_resources"]["clusters"]
    for backend in backends:
        host, _, port = backend.rpartition(":")
        address = {"socket_address": {"address": host, "port_value": int(port)}}
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"].append(
            {"endpoint": {"address": address}}
        )
    return made
