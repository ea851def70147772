"""The bodies of requests to name servers and of their replies: a broker's registration, a cluster's brokers,
lists of topics and groups, KV tables.

Upstream: remoting/protocol/body/RegisterBrokerBody.java, ClusterInfo.java, TopicList.java, GroupList.java,
KVTable.java.
"""

from libramq.formats.document import Document
from libramq.formats.route import BrokerData
from libramq.formats.tables import TopicConfigSerializeWrapper


class ClusterInfo(Document, frozen=True, kw_only=True):
    """All brokers known to a name server."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}

    def addresses_of(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of a master and its slaves by broker id; empty if none is known."""
        broker = self.broker_addr_table.get(broker_name)
        return broker.broker_addrs if broker is not None else {}


class TopicList(Document, frozen=True, kw_only=True):
    """Names of topics."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(Document, frozen=True, kw_only=True):
    """Names of consumer groups."""

    group_list: list[str] = []


class KVTable(Document, frozen=True, kw_only=True):
    """Names and values."""

    table: dict[str, str] = {}


class BrokerMemberGroupBody(Document, frozen=True, kw_only=True):
    """GET_BROKER_MEMBER_GROUP: the addresses of one broker name."""

    broker_member_group: BrokerData


class RegisterBrokerBody(Document, frozen=True, kw_only=True):
    """REGISTER_BROKER: the full topic table."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper
    filter_server_list: list[str] = []
