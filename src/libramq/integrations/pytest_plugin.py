"""The pytest fixture `libramq_broker`, with real brokers in the test's process, and its marker.

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

_MARKER = "libramq(**options): options of the fixture `libramq_broker`, as for `libramq.testing.Broker`"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def libramq_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Broker]":
    """A broker and its name server on free ports, with a temporary directory for messages.

    During the test, `NAMESRV_ADDR` is set, so clients find the name server by default. The marker `libramq`
    takes the options of `libramq.testing.Broker`.
    """
    from libramq.testing import Broker  # Imported late, because it loads a broker.

    mark = request.node.get_closest_marker("libramq")
    with Broker(**(mark.kwargs if mark is not None else {})) as broker:
        monkeypatch.setenv("NAMESRV_ADDR", broker.namesrv)
        monkeypatch.delenv("LIBRA_ACCESS", raising=False)  # The broker has no users.
        yield broker
