"""The route: the brokers and queues of a topic, as returned by a name server, with brokers' addresses and
absent brokers.

Upstream: remoting/protocol/route/TopicRouteData.java, QueueData.java, BrokerData.java.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from libramq.formats.document import Document

#: MixAll.MASTER_ID.
MASTER_ID: Final = 0
_AWAY: Final = re.compile(r"; (\S+(?:, \S+)*) had it and is away")


class QueueData(Document, frozen=True, kw_only=True):
    """The number of a topic's queues at one broker name."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(Document, frozen=True, kw_only=True):
    """The addresses of one broker name: id 0 is the master."""

    cluster: str = ""
    broker_name: str
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False
    zone_name: str | None = None

    @property
    def master_address(self) -> str | None:
        """Return the master's "host:port", or None."""
        return self.broker_addrs.get(MASTER_ID)

    @property
    def any_address(self) -> str | None:
        """Return the master's address, else the address of the slave with the lowest id."""
        return self.broker_addrs[min(self.broker_addrs)] if self.broker_addrs else None


class TopicRouteData(Document, frozen=True, kw_only=True):
    """Everything a client needs to reach a topic.

    lb_absent_brokers: LibraMQ's: absent brokers that had the topic; Apache's name servers forget them.
    """

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None
    lb_absent_brokers: list[str] | None = None


def away_remark(broker_names: Sequence[str]) -> str:
    """Return the text that LibraMQ's name servers append to the remark that a topic has no route."""
    return f"; {', '.join(broker_names)} had it and is away" if broker_names else ""


def away_of_remark(remark: str) -> list[str]:
    """Parse the absent brokers that had a topic from the remark that it has no route."""
    found = _AWAY.search(remark)
    return found[1].split(", ") if found else []
