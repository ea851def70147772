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
    """PEER_NODE: a broker asks another what Kafka's clients need to know of it; the reply is a PeerNode.

    version: of the last reply that it has.
    """

    broker_name: str
    version: int = 0


class PeerNode(Document, frozen=True, kw_only=True):
    """A broker as Kafka's clients see it. topics: their queues; None: nothing has changed since that version.

    host: empty where it does not serve them.
    """

    version: int
    host: str = ""
    port: int = 0
    topics: dict[str, int] | None = None
    numberings: dict[str, Numbering] = {}


class PeerTopicBody(Document, frozen=True, kw_only=True):
    """PEER_TOPIC: a Kafka client creates, extends or deletes a topic at all brokers.

    queues: how many the receiver is to have; 0: it deletes the topic. attributes: of one that is new.
    """

    broker_name: str
    topic: str
    queues: int
    numbering: Numbering = Numbering()
    attributes: dict[str, str] = {}


class QueueOffset(QueueFields, frozen=True, kw_only=True):
    """A committed offset; -1: none."""

    offset: int = -1


def offsets_of(offsets: Mapping[MessageQueue, int]) -> list[QueueOffset]:
    """Return offsets in the form of bodies."""
    return [QueueOffset(**queue._asdict(), offset=offset) for queue, offset in offsets.items()]


def queues_of(queues: Iterable[MessageQueue]) -> list[QueueOffset]:
    """Return queues in the form of bodies."""
    return [QueueOffset(**queue._asdict()) for queue in queues]


class PeerOffsetsBody(Document, frozen=True, kw_only=True):
    """PEER_OFFSETS: a group's coordinator commits, reads and deletes offsets at the queues' brokers.

    commits: those of the receiver's queues are committed, and those of others' are copies for the case that
    their broker fails. queues: whose offsets are wanted; is_all: those of all the receiver's queues are.
    removed: queues whose offsets are deleted; is_deleted: the group is. The reply is a PeerOffsets.
    """

    broker_name: str
    group: str
    commits: list[QueueOffset] = []
    queues: list[QueueOffset] = []
    is_all: bool = False
    removed: list[QueueOffset] = []
    is_deleted: bool = False


class PeerOffsets(Document, frozen=True, kw_only=True):
    """The answer to PEER_OFFSETS.

    codes: a response code for each commit in the receiver's queues, in order. offsets: those wanted.
    """

    codes: list[int] = []
    offsets: list[QueueOffset] = []


class PeerGroupsBody(Document, frozen=True, kw_only=True):
    """PEER_GROUPS: a coordinator passes on what has changed in its groups; the answer has lbKnown=1.

    sequence: of this request, above the one before. after: of the one before; 0: what came earlier is void. A
    receiver without that one answers lbKnown=0, forgets the sender's groups, and gets all of them again.
    gone: groups whose earlier state is void, and members that are gone; it counts before `classic`, groups
    by their names, and `modern`, as in config/kafkaGroups.json.
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
