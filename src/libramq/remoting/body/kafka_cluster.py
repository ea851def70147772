"""The bodies between brokers that serve Kafka's clients: nodes, topics, numberings, offsets, and groups for
their next coordinators.

Ours; the contract is in docs/design/kafka-cluster.md.
"""

from collections.abc import Iterable, Mapping

from libramq.catalog.numbering import Numbering
from libramq.formats.document import Document
from libramq.groups.classic.saved_state import SavedClassicGroup
from libramq.groups.modern.saved_state import SavedEntry
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import QueueFields


class NumberingsFile(Document, frozen=True, kw_only=True):
    """The content of config/kafkaPartitions.json."""

    numberings: dict[str, Numbering] = {}


class PeerNodeBody(Document, frozen=True, kw_only=True):
    """PEER_NODE: a broker queries another for its address, topics and numberings; the reply is a PeerNode.

    version: that of the last reply it has.
    """

    broker_name: str
    version: int = 0


class PeerNode(Document, frozen=True, kw_only=True):
    """A broker as Kafka's clients see it. topics: queue counts; None: unchanged since the requested version.

    host: empty if it does not serve Kafka's clients.
    """

    version: int
    host: str = ""
    port: int = 0
    topics: dict[str, int] | None = None
    numberings: dict[str, Numbering] = {}


class PeerTopicBody(Document, frozen=True, kw_only=True):
    """PEER_TOPIC: a Kafka client creates, extends or deletes a topic at all brokers.

    queues: the receiver's new number of queues; 0 deletes the topic. attributes: for a new topic.
    """

    broker_name: str
    topic: str
    queues: int
    numbering: Numbering = Numbering()
    attributes: dict[str, str] = {}


class QueueOffset(QueueFields, frozen=True, kw_only=True):
    """A committed offset, or -1."""

    offset: int = -1


def offsets_of(offsets: Mapping[MessageQueue, int]) -> list[QueueOffset]:
    """Return offsets in the form of bodies."""
    return [QueueOffset(**queue._asdict(), offset=offset) for queue, offset in offsets.items()]


def queues_of(queues: Iterable[MessageQueue]) -> list[QueueOffset]:
    """Return queues in the form of bodies."""
    return [QueueOffset(**queue._asdict()) for queue in queues]


class PeerOffsetsBody(Document, frozen=True, kw_only=True):
    """PEER_OFFSETS: a group's coordinator commits, reads and deletes offsets at the queues' brokers.

    commits: the receiver commits those of its own queues, and keeps the others as copies in case their broker
    fails. queues: those whose offsets to return; is_all: return those of all the receiver's queues. removed:
    queues whose offsets to delete; is_deleted: the group is deleted. The reply is a PeerOffsets.
    """

    broker_name: str
    group: str
    commits: list[QueueOffset] = []
    queues: list[QueueOffset] = []
    is_all: bool = False
    removed: list[QueueOffset] = []
    is_deleted: bool = False


class PeerOffsets(Document, frozen=True, kw_only=True):
    """The reply to PEER_OFFSETS.

    codes: a response code for each commit in the receiver's queues, in order. offsets: the requested ones.
    """

    codes: list[int] = []
    offsets: list[QueueOffset] = []


class PeerGroupsBody(Document, frozen=True, kw_only=True):
    """PEER_GROUPS: a coordinator replicates changes in its groups; the reply has lbKnown=1.

    sequence: this request's number, higher than the previous one's. after: the previous one's; 0 voids all
    earlier state. A receiver that lacks the previous request replies lbKnown=0, forgets the sender's groups,
    and is sent all of them again. gone: groups whose earlier state is void, and removed members; applied
    before `classic` (groups by name) and `modern` (as in config/kafkaGroups.json).
    """

    broker_name: str
    sequence: int
    after: int = 0
    gone: list[str] = []
    classic: dict[str, SavedClassicGroup] = {}
    modern: dict[str, SavedEntry] = {}


class PeerHandoverBody(Document, frozen=True, kw_only=True):
    """PEER_HANDOVER: a broker that has started asks another for the groups that it coordinates.

    They come by PEER_GROUPS; the answer has lbHandedOver=1 once the receiver has none left.
    """

    broker_name: str
