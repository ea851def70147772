"""The limits that clients can reach, and the effect of exceeding each: the table of docs/security.md.

Values are read from the constants; `tests/docs/test_limits.py` finds constants of the listed modules that the
table lacks.
"""

import importlib
from typing import Final, NamedTuple


class Limit(NamedTuple):
    """A limit. constant: "module:NAME" below libramq; option: that changes it."""

    what: str
    constant: str
    past_it: str
    option: str = ""


_ADMISSION, _SERVER = "transport.admission", "transport.server"

LIMITS: Final[dict[str, tuple[Limit, ...]]] = {
    "Connections": (
        Limit(
            "connections of clients, all ports of a server together",
            f"{_ADMISSION}:CONNECTIONS_MAX",
            "the new one is closed, as is one without a free descriptor (`ulimit -n` less files)",
            "maxConnections",
        ),
        Limit(
            "of these from one IPv4 address or IPv6 network (/64); for other machines at most half of the "
            "available descriptors",
            f"{_ADMISSION}:PER_ADDRESS_MAX",
            "the new one is closed",
            "maxConnectionsPerAddress",
        ),
        Limit(
            "with `authenticationEnabled`: clients that have not authenticated; at most a quarter of the "
            "available descriptors",
            f"{_ADMISSION}:UNAUTHENTICATED_MAX",
            "the oldest of the address with most of them makes room: honest clients sign their first request",
            "maxUnauthenticatedConnections",
        ),
        Limit(
            "connections for metrics",
            "broker.metrics_server:CONNECTIONS_MAX",
            "the oldest of the address with most of them makes room",
        ),
        Limit("connections of slaves", "broker.shell:HA_CONNECTIONS_MAX", "the new one is closed"),
        Limit("slaves of a master", "replication.ha_service:SLAVES_MAX", "the new one is closed"),
        Limit(
            "slaves without a proof yet",
            "replication.slave_proof:UNPROVEN_MAX",
            "the oldest makes room",
        ),
        Limit(
            "unfinished TLS handshakes of a port",
            "transport.handshakes:HANDSHAKES_MAX",
            "the oldest is ended",
        ),
    ),
    "Time": (
        Limit(
            "until a connection's first byte, where clients must authenticate",
            f"{_SERVER}:FIRST_BYTE_MS_MAX",
            "it is closed",
        ),
        Limit("for a TLS handshake", "transport.handshakes:HANDSHAKE_MS_MAX", "it is closed"),
        Limit("for a slave's proof", "replication.slave_proof:PROOF_MS_MAX", "it is closed"),
        Limit(
            "for a frame, and a millisecond more for each 16 of its bytes",
            f"{_SERVER}:FRAME_MS_MAX",
            "the connection is closed",
        ),
        Limit(
            "in which a client reads nothing of its waiting data", f"{_SERVER}:WRITE_MS_MAX", "it is closed"
        ),
        Limit("in which a client sends nothing", f"{_SERVER}:IDLE_MS_MAX", "it is closed"),
        Limit(
            "for pending writes before a connection is closed", f"{_SERVER}:CLOSING_MS_MAX", "it is dropped"
        ),
        Limit("of a held pull", "waits.held_pulls:SUSPEND_MS_MAX", "it is answered"),
        Limit(
            "of one connection's turn, in µs",
            "runtime.performer:TURN_US_MAX",
            "it continues after the others",
        ),
    ),
    "Memory": (
        Limit("a RocketMQ frame", "remoting.frame:FRAME_BYTES_MAX", "the connection is closed"),
        Limit("its header", "remoting.frame:HEADER_BYTES_MAX", "the connection is closed"),
        Limit("fields of its header", "remoting.frame:FIELDS_MAX", "the connection is closed"),
        Limit("characters of a tag", "message.stored_properties:TAG_LENGTH_MAX", "the send is refused"),
        Limit("characters of a pull's tags", "filter.tag:EXPRESSION_LENGTH_MAX", "the pull is refused"),
        Limit("a Kafka frame", "wire.kafka.frame:FRAME_BYTES_MAX", "the connection is closed"),
        Limit(
            "a frame, of a Kafka client before authentication",
            "protocols.kafka.api17_sasl:UNKNOWN_FRAME_BYTES_MAX",
            "the connection is closed",
        ),
        Limit(
            "the head of a request for metrics",
            "broker.metrics_server:HEAD_BYTES_MAX",
            "the connection is closed",
        ),
        Limit(
            "unfinished frames of all connections",
            f"{_SERVER}:UNFINISHED_BYTES_MAX",
            "those that hold the most for the longest are closed",
        ),
        Limit(
            "waiting whole requests of all connections",
            f"{_SERVER}:WAITING_BYTES_MAX",
            "large frames are not read on; after a second the client that reads least is closed",
        ),
        Limit(
            "unread data of one client",
            f"{_SERVER}:WRITE_BUFFER_BYTES_HIGH",
            "nothing is read from it meanwhile",
        ),
        Limit(
            "unread unsolicited data of one client",
            f"{_SERVER}:WRITE_BUFFER_BYTES_MAX",
            "it is closed",
        ),
        Limit(
            "unread data of all clients",
            "runtime.outgoing:UNREAD_BYTES_HIGH",
            "each is served only up to 256 KiB unread",
        ),
        Limit("the same, at most", "runtime.outgoing:UNREAD_BYTES_MAX", "the one with most unread is closed"),
        Limit(
            "waiting answers of all connections",
            "kernel.purgatory:PARKED_MAX",
            "requests are refused or pulls answered at once",
        ),
        Limit(
            "of one user that authenticates its connections, or of one address",
            "kernel.purgatory:PARKED_PER_PARTY_MAX",
            "likewise",
        ),
        Limit("of one connection", "kernel.purgatory:PARKED_PER_CONNECTION_MAX", "likewise"),
        Limit("memory of waiting answers", "kernel.purgatory:PARKED_BYTES_MAX", "likewise"),
        Limit("of one user or address", "kernel.purgatory:PARKED_BYTES_PER_PARTY_MAX", "likewise"),
        Limit("held pulls of a queue", "waits.held_pulls:HELD_PER_QUEUE_MAX", "the pull is answered at once"),
        Limit(
            "of a queue and a connection",
            "waits.held_pulls:HELD_PER_QUEUE_AND_CONNECTION_MAX",
            "the pull is answered at once",
        ),
        Limit(
            "waiting requests of a Kafka connection",
            "protocols.kafka.answers:WAITING_MAX",
            "the connection is closed",
        ),
        Limit("their answers", "protocols.kafka.answers:WAITING_BYTES_MAX", "the connection is closed"),
        Limit("their structures", "protocols.kafka.answers:WAITING_COST_MAX", "the connection is closed"),
    ),
    "Decompressed": (
        Limit(
            "the records of a Kafka batch, of every codec",
            "wire.kafka.record_batch:DECOMPRESSED_BYTES_MAX",
            "the request is refused",
        ),
        Limit(
            "a broker's registration at a name server",
            "nameserver.registration:INFLATED_BYTES_MAX",
            "the request is refused",
        ),
        Limit(
            "a message's body, at consumers; brokers do not decompress",
            "message.compression:DECOMPRESSED_BYTES_MAX",
            "it is delivered compressed",
        ),
    ),
    "Tables": (
        Limit("topics of a broker", "catalog.topic_table:TOPICS_MAX", "the request is refused"),
        Limit("queues of a topic", "catalog.topic_table:QUEUES_MAX", "the request is refused"),
        Limit("groups of a broker", "catalog.group_table:GROUPS_MAX", "the request is refused"),
        Limit("Kafka groups", "groups.protocol_groups:GROUPS_MAX", "the join is refused"),
        Limit("memory of these", "groups.protocol_groups:COST_BYTES_MAX", "the join is refused"),
        Limit("memory of one of these", "groups.protocol_groups:GROUP_COST_BYTES_MAX", "the join is refused"),
        Limit(
            "metadata of a classic group's member",
            "protocols.kafka.api11_classic_groups:MEMBER_BYTES_MAX",
            "the join is refused",
        ),
        Limit("members of a group", "groups.limits:MEMBERS_MAX", "the join is refused"),
        Limit("members of a Kafka group", "groups.classic.state:MEMBERS_MAX", "the join is refused"),
        Limit(
            "groups in a client's heartbeat",
            "broker.groups.heartbeats:GROUPS_PER_CLIENT_MAX",
            "it is refused",
        ),
        Limit("topics of a member", "groups.limits:SUBSCRIPTIONS_MAX", "the join is refused"),
        Limit(
            "different patterns of all members of KIP-848 groups",
            "protocols.kafka.topic_patterns:PATTERNS_MAX",
            "the heartbeat is refused",
        ),
        Limit(
            "of those, patterns of one group",
            "protocols.kafka.topic_patterns:PATTERNS_OF_GROUP_MAX",
            "the heartbeat is refused",
        ),
        Limit("users", "auth.users:USERS_MAX", "the request is refused"),
        Limit("entries of a user's policies", "auth.policies:ENTRIES_MAX", "the request is refused"),
        Limit("topics of a name server", "nameserver.registration:TOPICS_MAX", "the registration is refused"),
        Limit(
            "topics of a broker at a name server",
            "nameserver.registration:TOPICS_PER_BROKER_MAX",
            "the registration is refused",
        ),
    ),
    "Logs": (
        Limit(
            "lines about one kind of refused connection or sign-in in 10 s",
            "logs:LINES_MAX",
            "further ones are counted, and the next line has their number",
        ),
    ),
}

#: Modules whose limits must all be listed.
COMPLETE: Final = (_ADMISSION, _SERVER, "transport.handshakes", "kernel.purgatory", "replication.slave_proof")
#: Suffixes by which their constants are recognised as limits.
SUFFIXES: Final = ("_MAX", "_HIGH")


def value(constant: str) -> str:
    """Return a constant's value, in its unit."""
    module, _, name = constant.partition(":")
    number = getattr(importlib.import_module(f"libramq.{module}"), name)
    if "_BYTES" in name:
        return f"{number >> 20:,} MiB" if number >= 1 << 20 else f"{number >> 10:,} KiB"
    if "_MS" in name:
        return f"{number / 1000:g} s"
    return f"{number:,}"


def rows(part: str) -> list[tuple[str, ...]]:
    """Return the rows of a part of the table."""
    return [
        (each.what, value(each.constant), f"`{each.option}`" if each.option else "", each.past_it)
        for each in LIMITS[part]
    ]
