"""Whether a server at a bare host:port is to be asked over gRPC or over HTTP: found by asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ...errors import BadAnswer, EdlError, TeacherLost, UsageError
from ...lifecycle import Stop
from ...proto.clients import open_client
from ...proto.protocols import OIP
from .config import RegisterConfig

_ANSWER_S: Final = 2.0


def with_scheme(
    config: RegisterConfig, stop: Stop, on_progress: Callable[[str], None]
) -> RegisterConfig | None:
    """`config` with an endpoint that says how the server is asked; waits until it answers.

    gRPC is tried first, as it is faster. An endpoint with a scheme stays as it is.

    Returns:
        None: `stop` was requested before anybody answered.

    Raises:
        UsageError: the endpoint is no address, or a file of credentials cannot be used.
    """
    if "://" in config.endpoint or config.protocol != OIP:
        return config
    told = ""
    while not stop.requested:
        silent: list[str] = []
        for endpoint in (f"grpc://{config.endpoint}", f"http://{config.endpoint}"):
            if (why := _silence(config, endpoint)) is None:
                return replace(config, endpoint=endpoint)
            silent.append(f"{endpoint}: {why}")
        where = f"{config.model} at {config.endpoint}"
        if (text := f"{where} is not registered: {'; '.join(silent)}") != told:
            told = text
            on_progress(text)
        stop.wait(config.patience.every_s)
    return None


def _silence(config: RegisterConfig, endpoint: str) -> str | None:
    """Why nobody speaks the protocol there; None where somebody does, whatever is answered."""
    try:
        client = open_client(config.protocol, endpoint, config.model, config.client)
    except UsageError as error:
        if endpoint.startswith("http://"):  # credentials must not go there; gRPC may answer
            return str(error)
        raise
    try:
        client.probe(_ANSWER_S)
    except (TeacherLost, BadAnswer) as error:
        return str(error)
    except EdlError:  # it is not ready, or does not let us in: that is for the sidecar to say
        return None
    finally:
        client.close()
    return None
