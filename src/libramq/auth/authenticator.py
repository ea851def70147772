"""The authenticator: the interface that finds out who a client is, by a signed request, a certificate or a
password.

    by request        RocketMQ: each is signed; else the certificate    Request.principal
    by connection     a password, once for all of its requests          Connection.principal

A server without access control (`access_control.py`) has none, and a request is its connection's.
Upstream: auth/authentication.
"""

from collections.abc import Mapping
from typing import Protocol

from libramq.kernel.connection import Connection, Principal


class Authenticator(Protocol):
    """Finds out who a client is; raises errors.NoPermission where a proof is missing or wrong."""

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        """Return who has signed a request with these fields, or whose connection it came over."""
        ...

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        """Return the user with this name and password."""
        ...
