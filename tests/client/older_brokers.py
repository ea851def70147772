"""Brokers that lack a request: the call is sent under a code that LibraMQ's broker does not serve."""

from dataclasses import replace

import pytest

from libramq.codes import RequestCode
from libramq.rpc import pop_calls

#: A request to name servers.
UNSERVED = RequestCode.GET_ROUTEINFO_BY_TOPIC


def unserved(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the broker refuse a call of pop_calls as if it did not know the request."""
    call = getattr(pop_calls, name)
    monkeypatch.setattr(pop_calls, name, lambda *a: replace(call(*a), code=UNSERVED))
