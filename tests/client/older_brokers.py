"""Brokers that lack a request: a call that is sent under a code that no broker of ours serves."""

from dataclasses import replace

import pytest

from libramq.codes import RequestCode
from libramq.rpc import pop_calls

#: A request to name servers.
UNSERVED = RequestCode.GET_ROUTEINFO_BY_TOPIC


def unserved(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have the broker refuse a call of pop_calls as one that does not know it does."""
    call = getattr(pop_calls, name)
    monkeypatch.setattr(pop_calls, name, lambda *a: replace(call(*a), code=UNSERVED))
