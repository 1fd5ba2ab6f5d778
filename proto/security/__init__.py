"""Security between processes: TLS, bearer tokens, roles, and the proof of a teacher's instance.

Nothing here loads gRPC before a channel is opened or a server listens, so that a process which only
passes settings on stays light. The names below load their modules when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .access_control import ROLES as ROLES
    from .access_control import AccessControl as AccessControl
    from .access_control import Caller as Caller
    from .certificates import reloading_context as reloading_context
    from .client_connections import open_channel as open_channel
    from .credentials import ClientSecurity as ClientSecurity
    from .credentials import ServerSecurity as ServerSecurity
    from .credentials import TlsFiles as TlsFiles
    from .credentials import check_exposure as check_exposure
    from .credentials import names_loopback as names_loopback
    from .servers import Acceptor as Acceptor
    from .servers import listen as listen
    from .servers import uvicorn_config as uvicorn_config

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".access_control": ["ROLES", "AccessControl", "Caller"],
        ".certificates": ["reloading_context"],
        ".client_connections": ["open_channel"],
        ".credentials": [
            "ClientSecurity",
            "ServerSecurity",
            "TlsFiles",
            "check_exposure",
            "names_loopback",
        ],
        ".servers": ["Acceptor", "listen", "uvicorn_config"],
    },
)
