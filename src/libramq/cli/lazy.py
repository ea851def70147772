"""Modules that commands need only when they run, loaded on first use to keep --help quick."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libramq.admin import audit as audits
    from libramq.admin import dead_letters, groups, operator
    from libramq.admin import messages as lookup
    from libramq.admin import monitoring as monitor
    from libramq.cli import benchmarks, message_row, output, running, sending, simulating, tailing
    from libramq.cli.servers import commands as servers
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

    audits, dead_letters, groups = _Lazy("admin.audit"), _Lazy("admin.dead_letters"), _Lazy("admin.groups")
    lookup, monitor, operator = _Lazy("admin.messages"), _Lazy("admin.monitoring"), _Lazy("admin.operator")
    benchmarks, message_row, output = _Lazy("cli.benchmarks"), _Lazy("cli.message_row"), _Lazy("cli.output")
    running, sending, simulating = _Lazy("cli.running"), _Lazy("cli.sending"), _Lazy("cli.simulating")
    tailing, servers = _Lazy("cli.tailing"), _Lazy("cli.servers.commands")
    document, documents, tables = _Lazy("formats.document"), _Lazy("formats.access"), _Lazy("formats.tables")
    names, calls, access = _Lazy("message.names"), _Lazy("rpc.admin_calls"), _Lazy("transport.access")

__all__ = [
    "access", "audits", "benchmarks", "calls", "dead_letters", "document", "documents", "groups",
    "lookup", "message_row", "monitor", "names", "operator", "output", "running",
    "sending", "servers", "simulating", "tables", "tailing",
]  # fmt: skip
