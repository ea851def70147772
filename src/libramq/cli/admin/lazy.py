"""Modules that commands use when they run: each is loaded on its first use, as help must be quick."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libramq.admin import audit as audits
    from libramq.admin import messages as lookup
    from libramq.admin import monitoring as monitor
    from libramq.admin import operator
    from libramq.cli import message_row, output, running
    from libramq.formats import access as documents
    from libramq.formats import document, tables
    from libramq.message import names
    from libramq.rpc import admin_calls as calls
    from libramq.transport import access
else:

    class _Lazy:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> object:
            return getattr(import_module(f"libramq.{self._name}"), name)

    audits = _Lazy("admin.audit")
    lookup, monitor, operator = _Lazy("admin.messages"), _Lazy("admin.monitoring"), _Lazy("admin.operator")
    access, message_row = _Lazy("transport.access"), _Lazy("cli.message_row")
    output, running = _Lazy("cli.output"), _Lazy("cli.running")
    document, tables = _Lazy("formats.document"), _Lazy("formats.tables")
    documents = _Lazy("formats.access")
    names, calls = _Lazy("message.names"), _Lazy("rpc.admin_calls")

__all__ = [
    "access", "audits", "calls", "document", "documents", "lookup", "message_row", "monitor", "names",
    "operator", "output", "running", "tables",
]  # fmt: skip
