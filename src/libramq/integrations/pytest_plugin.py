"""Fixtures of pytest with real brokers in the test's process: `libramq_broker` and its marker.

def test_an_order_arrives(libramq_broker):
    with Producer() as producer:
        producer.send(Message("Orders", b"one"))

@pytest.mark.libramq(brokers=3, auto_create_topic_enable=False)
def test_three_brokers(libramq_broker): ...
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from libramq.testing import Broker

_MARKER = "libramq(**options): options of the fixture `libramq_broker`, as those of `libramq.testing.Broker`"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def libramq_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Broker]":
    """A broker with its name server, on free ports, with its messages in a temporary directory.

    Clients that name no name server find it, as `NAMESRV_ADDR` names it during the test. The options of the
    mark `libramq` are those of `libramq.testing.Broker`.
    """
    from libramq.testing import Broker  # Not when pytest starts: it loads a broker.

    mark = request.node.get_closest_marker("libramq")
    with Broker(**(mark.kwargs if mark is not None else {})) as broker:
        monkeypatch.setenv("NAMESRV_ADDR", broker.namesrv)
        monkeypatch.delenv("LIBRA_ACCESS", raising=False)  # It has no users.
        yield broker
