"""Contexts: named meshes and how to reach them, in a file of the user, as kubectl has one.

```
current: prod
contexts:
  prod:
    redis: rediss://head:6379
    tls-ca: /home/ann/prod/ca.pem
    token-file: /home/ann/prod/token
```
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..proto.security.credentials import ClientSecurity, TlsFiles
from ..proto.security.options import client_security
from ..runtime.errors import UsageError
from ..runtime.files import replacing
from .config import DEFAULT_URL


@dataclass(frozen=True, slots=True)
class MeshContext:
    """How to reach a mesh and its elastic jobs. Paths are absolute.

    Attributes:
        coordinator: Redis URL.
        tls_ca: CA certificates of the managers.
        tls_cert: our certificate.
        tls_key: key of our certificate.
        token_file: file with our bearer token.
        jobs_on: where elastic jobs run: `queue`, `kubernetes` or `kubernetes:NAMESPACE`.
        queue: name of the queue of elastic jobs.
        kubeconfig: file of the cluster; None: the default one.
        kube_context: context of the kubeconfig; empty: its current one.
    """

    coordinator: str = DEFAULT_URL
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    jobs_on: str = "queue"
    queue: str = "main"
    kubeconfig: Path | None = None
    kube_context: str = ""

    def security(self) -> ClientSecurity | None:
        """Return how to call managers; None: neither TLS nor token.

        Raises:
            UsageError: the files do not fit together.
        """
        return client_security(TlsFiles(self.tls_cert, self.tls_key, self.tls_ca), self.token_file)


@dataclass(frozen=True, slots=True)
class ContextFile:
    """The file of contexts; a missing file counts as one without contexts.

    Attributes:
        path: the file. `change` lets only its owner read it, as a URL may hold a password.
    """

    path: Path

    def read(self) -> Contexts:
        """Return the contexts of the file.

        Raises:
            UsageError: the file cannot be read, or it is not a file of contexts.
        """
        import yaml

        try:
            document = yaml.safe_load(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return Contexts()
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UsageError(f"cannot read {self.path}: {' '.join(str(error).split())}") from None
        try:
            return _contexts(document or {})
        except ValueError as error:
            raise UsageError(f"{self.path}: {error}") from None

    def change(self, change: Callable[[Contexts], Contexts]) -> Contexts:
        """Replace the contexts by the result of `change`, and return it.

        Processes change the file one after another: they wait for a lock on its folder.

        Raises:
            UsageError: the file cannot be read or written, or `change` refuses.
        """
        folder = self.path.resolve().parent  # replace the target of a link, not the link
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                contexts = change(self.read())
                self._write(contexts)
            finally:
                os.close(lock)
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror or error}") from error
        return contexts

    def _write(self, contexts: Contexts) -> None:
        import yaml

        named = {name: dict(given_fields(context)) for name, context in contexts.named.items()}
        document = {"current": contexts.current, "contexts": named}
        text = yaml.safe_dump(document, sort_keys=False)
        with replacing(self.path) as part:
            part.touch(mode=0o600)
            part.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Contexts:
    """Named contexts and the current one.

    Attributes:
        named: name -> context, in order of addition.
        current: name of the context to use when none is named; empty: there is none.
    """

    named: Mapping[str, MeshContext] = field(default_factory=dict)
    current: str = ""

    def get(self, name: str) -> MeshContext:
        """Return a context.

        Raises:
            UsageError: there is no context of this name.
        """
        if name not in self.named:
            known = ", ".join(self.named) or "none"
            raise UsageError(
                f"there is no context {name!r} (known: {known}): add it with 'edl context add', or"
                " name a Redis URL such as redis://host:6379"
            )
        return self.named[name]

    def add(self, name: str, context: MeshContext) -> Contexts:
        """Return the contexts with one added or replaced; if none is current, it becomes current.

        Raises UsageError if the name is invalid.
        """
        if not name or not name.isprintable() or name != name.strip() or "://" in name:
            raise UsageError(f"a context needs a name, not {name!r}")
        return Contexts({**self.named, name: context}, self.current or name)

    def use(self, name: str) -> Contexts:
        """Return the contexts with `name` as the current. Raises UsageError if it is unknown."""
        self.get(name)
        return replace(self, current=name)

    def remove(self, name: str) -> Contexts:
        """Return the contexts without `name`. Raises UsageError if it is unknown."""
        self.get(name)
        others = {other: context for other, context in self.named.items() if other != name}
        return Contexts(others, "" if self.current == name else self.current)


#: Fields that are paths.
PATHS = frozenset({"tls_ca", "tls_cert", "tls_key", "token_file", "kubeconfig"})


def given_fields(context: MeshContext) -> Iterator[tuple[str, str]]:
    """Yield (name in the file, value) of fields that differ from the default, and of the URL."""
    for known in fields(MeshContext):
        value = getattr(context, known.name)
        if value != known.default or known.name == "coordinator":
            yield _key(known.name), str(value)


def _key(name: str) -> str:
    """Return the name of a field in the file: that of its command-line option."""
    return "redis" if name == "coordinator" else name.replace("_", "-")


def _contexts(document: object) -> Contexts:
    """Parse the document of a context file. Raises ValueError if it is invalid."""
    if not isinstance(document, dict) or document.keys() - {"current", "contexts"}:
        raise ValueError("expects the keys `current` and `contexts` and no others")
    named, current = document.get("contexts") or {}, document.get("current") or ""
    if not isinstance(named, dict) or not isinstance(current, str):
        raise ValueError(
            "`contexts` must map names to settings, and `current` must be one of these names"
        )
    if current and current not in named:
        raise ValueError(f"the current context {current!r} is not among `contexts`")
    return Contexts({str(name): _context(name, body) for name, body in named.items()}, current)


def _context(name: object, body: object) -> MeshContext:
    known = {_key(known_field.name): known_field.name for known_field in fields(MeshContext)}
    if not isinstance(body, dict):
        raise ValueError(f"context {name!r}: expects settings, such as `redis: redis://...`")
    settings: dict[str, Any] = {}
    for key, value in body.items():
        if key not in known or not isinstance(value, str):
            raise ValueError(
                f"context {name!r}: {key!r}: {value!r}; expects text for {', '.join(known)}"
            )
        settings[known[key]] = Path(value) if known[key] in PATHS else value
    return MeshContext(**settings)
