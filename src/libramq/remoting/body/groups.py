"""Bodies between brokers that serve Kafka's clients: the members of groups, for their next coordinators.

Ours; the contract is in docs/design/kafka-cluster.md.
"""

from libramq.formats.document import Document
from libramq.groups.classic.saved_state import SavedClassicGroup
from libramq.groups.modern.saved_state import SavedEntry


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
