"""How to ask a teacher: one `Client` protocol, and one file for each language that teachers speak.

Both the reader and whoever registers a foreign server ask through it. `open_client` chooses by the
`protocol` that the registry says, and by the scheme of the address.
"""

from .client import Answer, Client, Found, Request
from .opening import open_client

__all__ = ["Answer", "Client", "Found", "Request", "open_client"]
