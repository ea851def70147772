"""The invariant of progress: nothing that marks messages as done is durable before them."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libramq.broker.broker import Broker
from libramq.formats import fastjson
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.store.reading.read import ReadStatus
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster

_Queue = tuple[str, int]
#: A message and its attempt: each retry is delivered separately.
_Copy = tuple[str, int]


class DoneWhenDurable(Invariant):
    """Check that a progress file never reaches the platter before the messages it marks as done.

    The platter is read after every step: it is what a power cut at that moment would leave, together with the
    flushed log. A delay level's offset refers to the copies it delivered, a committed offset to the messages
    before it.
    """

    name = "nothing that says done is durable before what it speaks of"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._judged: dict[Path, bytes] = {}
        self._delivered: dict[str, dict[int, int]] = defaultdict(dict)
        self._copies: dict[str, _Copies] = {}

    def step(self) -> None:
        for name, node in self.cluster.brokers.items():
            if node.broker is not None:
                with node.disk.observed():
                    self._judge(name, node.broker)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._copies.pop(name, None)
        if durable_to is not None:  # Offsets may mean other messages from now on.
            self._delivered.pop(name, None)
            self._judged.clear()

    def broker_recovered(self, name: str, broker: Broker) -> None:
        self._judge(name, broker)

    def _judge(self, name: str, broker: Broker) -> None:
        if broker.store.visible_offset < broker.store.flushed_offset:
            return  # A SYNC_MASTER that waits for its slave: what is durable cannot all be read.
        directory = Path(broker.config.store_path) / "config"
        committed = self._table(name, directory / "consumerOffset.json")
        for key, offsets in committed.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in offsets.items():
                queues = (MessageQueue(each, name, queue_id) for each in (topic, _popped_topic(topic, group)))
                if any(map(self.cluster.was_deleted, queues)):
                    continue  # The file may refer to a deleted topic of that name.
                end = broker.store.durable_max_offset(topic, queue_id)
                if offset > end:
                    self.broken(
                        f"consumerOffset.json of {name} says {offset} for {group} in {topic}/{queue_id}, of"
                        f" which {end} messages are durable"
                    )
        for level, offset in self._table(name, directory / "delayOffset.json").items():
            self._judge_level(name, broker, level, offset)

    def _judge_level(self, name: str, broker: Broker, level: int, offset: int) -> None:
        delivered = self._delivered[name]
        copies = self._copies.setdefault(name, _Copies())
        for message in _messages(broker, (names.SCHEDULE_TOPIC, level - 1), delivered.get(level, 0), offset):
            queue = (message.properties[p.REAL_TOPIC], int(message.properties[p.REAL_QUEUE_ID]))
            if _copy(message) not in copies.durable_in(broker, queue) and not self._is_elsewhere(message):
                self.broken(
                    f"delayOffset.json of {name} says {offset} for level {level}; what was delivered of"
                    f" {message.queue_offset} to {queue[0]}/{queue[1]} is not durable"
                )
        delivered[level] = max(offset, delivered.get(level, 0))

    def _is_elsewhere(self, message: MessageExt) -> bool:
        """Return whether an acting slave may have sent a message of its master's to another one."""
        if not self.cluster.has_acting_slaves:
            return False
        topic = message.properties[p.REAL_TOPIC]
        for name, node in self.cluster.brokers.items():
            if node.broker is None or self.cluster.was_deleted(MessageQueue(topic, name, 0)):
                return True
            for queue_id in node.broker.store.queue_ids(topic):
                if _copy(message) in map(_copy, messages_of(node.broker, (topic, queue_id))):
                    return True
        return bool(self.cluster.cuts_ms) and not self.cluster.is_sync

    def _table(self, name: str, path: Path) -> Mapping[Any, Any]:
        """Return the offsets of a file on the platter, unless that version was checked already."""
        data = self.cluster.brokers[name].disk.on_platter(path)
        if not data or self._judged.get(path) == data:
            return {}
        self._judged[path] = data
        table: Mapping[Any, Any] = fastjson.loads(data.decode())["offsetTable"]
        return table


class _Copies:
    """The durable messages of the queues checked so far; each message is read once."""

    def __init__(self) -> None:
        self._found: dict[_Queue, set[_Copy]] = defaultdict(set)
        self._read_to: dict[_Queue, int] = {}

    def durable_in(self, broker: Broker, queue: _Queue) -> set[_Copy]:
        end = broker.store.durable_max_offset(*queue)
        self._found[queue].update(map(_copy, _messages(broker, queue, self._read_to.get(queue, 0), end)))
        self._read_to[queue] = end
        return self._found[queue]


def _copy(message: MessageExt) -> _Copy:
    return message.message_id, message.reconsume_times


def messages_of(broker: Broker, queue: _Queue) -> list[MessageExt]:
    """Return the messages of a queue that may be read."""
    return _messages(broker, queue, 0, broker.store.max_offset(*queue))


def _messages(broker: Broker, queue: _Queue, start: int, end: int) -> list[MessageExt]:
    """Return the messages of a queue between two offsets."""
    found: list[MessageExt] = []
    offset = max(start, broker.store.min_offset(*queue))
    while offset < end:
        result = broker.store.read(*queue, offset, 256)
        if result.status is ReadStatus.FOUND:
            found += decode_records(b"".join(result.data))
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return [message for message in found if message.queue_offset < end]


def _popped_topic(topic: str, group: str) -> str:
    """Return the topic whose retries over POP are in a topic, which is deleted with it; else the topic."""
    return topic.removeprefix(f"{names.RETRY_PREFIX}{group}_")
