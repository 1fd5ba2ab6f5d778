"""Contexts: addresses and settings of meshes, in a file of this user."""

from __future__ import annotations

from typing import ClassVar

from ...coordinator.contexts import given_fields
from ...coordinator.ops.options import context_file
from ...coordinator.store.redis_url import masked
from ...runtime.errors import UsageError
from .resource_kind import ResourceKind, ResourceList


class ContextKind(ResourceKind):
    """Contexts. The verbs do not contact a mesh."""

    name = "context"
    alternatives: ClassVar = {"describe": "'edl get context NAME' shows all settings"}

    def get(self, name: str, service: str) -> ResourceList:
        from rich.table import Table
        from rich.text import Text

        if service:
            raise UsageError("contexts have no service")
        contexts = context_file().read()
        selected = {name: contexts.get(name)} if name else contexts.named
        shown = {
            context_name: dict(given_fields(context)) | {"redis": masked(context.coordinator)}
            for context_name, context in selected.items()
        }
        body = {"current": contexts.current, "contexts": shown}
        if not shown:
            return ResourceList(
                body, Text("no context: 'edl context add NAME --redis URL' adds one")
            )
        table = Table("", "context", "redis", "settings", box=None)
        for context_name, settings in shown.items():
            others = [f"{key} {value}" for key, value in settings.items() if key != "redis"]
            mark = "*" if context_name == contexts.current else ""
            table.add_row(mark, context_name, settings["redis"], ", ".join(others))
        return ResourceList(body, table)

    def delete(self, name: str, wait_s: float) -> str:
        if wait_s:
            raise UsageError("--wait is for jobs")
        context_file().change(lambda contexts: contexts.remove(name))
        return f"context {name} is removed; the files that it names stay"
