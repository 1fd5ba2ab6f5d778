"""Who may call whom: TLS, bearer tokens, roles, and the proof that an instance is the one named.

What is here loads no gRPC until a channel is opened or a server listens, so that a process which
only passes settings on stays light.
"""

from .credentials import ClientSecurity, ServerSecurity, TlsFiles
from .dial import open_aio_channel, open_channel
from .exposure import check_exposure, is_loopback
from .gate import ROLES, Caller, Gate
from .https import reloading_context
from .listening import listen

__all__ = [
    "ROLES",
    "Caller",
    "ClientSecurity",
    "Gate",
    "ServerSecurity",
    "TlsFiles",
    "check_exposure",
    "is_loopback",
    "listen",
    "open_aio_channel",
    "open_channel",
    "reloading_context",
]
