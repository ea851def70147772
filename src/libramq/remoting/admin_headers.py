"""Typed headers of administration: what mqadmin sends to name servers and brokers, beside `headers.py`.

Upstream: remoting/protocol/header/namesrv/*.java, header/*.java.
"""

from libramq.remoting.headers import Header

# Name server.


class KVHeader(Header):
    """GET_KV_CONFIG, DELETE_KV_CONFIG: one value by its namespace and key."""

    namespace: str
    key: str


class PutKVHeader(KVHeader):
    """PUT_KV_CONFIG."""

    value: str


class KVNamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class BrokerMemberGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str
