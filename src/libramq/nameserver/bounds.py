"""The bounds of a registration: what a broker may claim, checked before it is used."""

from collections.abc import Set
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import BrokerError
from libramq.formats.tables import TopicConfigSerializeWrapper
from libramq.remoting.headers import RegisterBrokerHeader

#: Ours: a broker may ask for a longer timeout than 120 s, but not for an unlimited one.
HEARTBEAT_TIMEOUT_MS_MAX: Final = 3_600_000
#: Ours; Apache has no bounds here. Each is far beyond the use of one name server.
BROKER_NAMES_MAX: Final = 10_000
BROKERS_PER_NAME_MAX: Final = 100
TOPICS_MAX: Final = 500_000
#: TopicValidator.RETRY_OR_DLQ_TOPIC_MAX_LENGTH; broker and cluster names are registered as topics too.
NAME_LENGTH_MAX: Final = 255
#: Ours: an address is a host name (at most 253 characters) and a port.
ADDRESS_LENGTH_MAX: Final = 260
#: Ours: clients create an object for every queue in a route.
QUEUES_PER_TOPIC_MAX: Final = 65_536


def check_registration(
    header: RegisterBrokerHeader,
    table: TopicConfigSerializeWrapper,
    *,
    broker_names: Set[str],
    broker_ids: Set[int],
    topics: Set[str],
) -> None:
    """Raise BrokerError if a registration is out of bounds, given what is registered already.

    The topics have been checked before (`check_topics`).
    """
    _check_name("cluster name", header.cluster_name, NAME_LENGTH_MAX)
    _check_name("broker name", header.broker_name, NAME_LENGTH_MAX)
    _check_name("broker address", header.broker_addr, ADDRESS_LENGTH_MAX)
    if len(header.ha_server_addr) > ADDRESS_LENGTH_MAX:
        raise _refused(f"haServerAddr has over {ADDRESS_LENGTH_MAX} characters")
    if not 0 <= header.broker_id < 1 << 63:
        raise _refused(f"brokerId {header.broker_id} is negative or too large")
    if not 0 <= (header.heartbeat_timeout_millis or 0) <= HEARTBEAT_TIMEOUT_MS_MAX:
        raise _refused(f"heartbeatTimeoutMillis is 0 to {HEARTBEAT_TIMEOUT_MS_MAX}")
    if header.broker_name not in broker_names and len(broker_names) >= BROKER_NAMES_MAX:
        raise _refused(f"{BROKER_NAMES_MAX} broker names are registered already")
    if header.broker_id not in broker_ids and len(broker_ids) >= BROKERS_PER_NAME_MAX:
        raise _refused(f"{BROKERS_PER_NAME_MAX} brokers have the name {header.broker_name} already")
    registered = table.topic_config_table
    room = TOPICS_MAX - len(topics)
    if len(registered) > room and sum(name not in topics for name in registered) > room:
        raise _refused(f"over {TOPICS_MAX} topics")


def check_topics(table: TopicConfigSerializeWrapper) -> None:
    """Raise BrokerError for a topic that is out of bounds."""
    for name, config in table.topic_config_table.items():
        _check_name("topic", name, NAME_LENGTH_MAX)
        if config.topic_name != name:
            raise _refused(f"topic {name} has the name {config.topic_name[:40]!r} inside")
        for queue_count in (config.read_queue_nums, config.write_queue_nums):
            if not 0 <= queue_count <= QUEUES_PER_TOPIC_MAX:
                raise _refused(
                    f"topic {name} has {queue_count} queues; 0 to {QUEUES_PER_TOPIC_MAX} are allowed"
                )


def _check_name(what: str, name: str, length_max: int) -> None:
    if not 0 < len(name) <= length_max or not name.isprintable():
        raise _refused(f"the {what} {name[:40]!r} is empty, unprintable or over {length_max} characters")


def _refused(remark: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, remark)
