"""Idempotence: handlers that do not process a repeated message twice.

    handle = idempotent(handle, store=SqliteStore("handled.db"))
    consumer.subscribe("Orders", "*", handle)

A group delivers every message at least once: messages being handled when a member dies are redelivered.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from libramq.client.idempotence.idempotent import idempotent
from libramq.client.idempotence.store import ClaimResult, MemoryStore, Store

if TYPE_CHECKING:
    from libramq.client.idempotence.redis_store import RedisStore as RedisStore
    from libramq.client.idempotence.sqlite_store import SqliteStore as SqliteStore

_MODULES: Final = {
    "RedisStore": "libramq.client.idempotence.redis_store",
    "SqliteStore": "libramq.client.idempotence.sqlite_store",
}

__all__ = ["ClaimResult", "MemoryStore", "RedisStore", "SqliteStore", "Store", "idempotent"]


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'libramq.client.idempotence' has no attribute {name!r}")
        return getattr(import_module(module), name)
