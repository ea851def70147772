"""The load of groups: after a start, how long a broker refuses Kafka's members until other brokers have
handed over the groups that it coordinates.

    the cluster is known ─► PEER_HANDOVER to each other broker, until it has none left ─► over
                                                 it has some ─► PEER_GROUPS ─► `group_copies`

While this broker was away, another one has coordinated its groups. A member of one that is not here yet would
have to join anew, and the group that is on its way would be dropped. So the requests of members are answered
by COORDINATOR_LOAD_IN_PROGRESS, as by Kafka's coordinator while it reads its log.
"""

from functools import partial
from typing import Final

from libramq.broker.cluster.kafka.group_copies import FRESH_MS
from libramq.broker.cluster.peer_brokers import ANSWER_MS_MAX, PeerBrokers
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, RequestCodeNotSupported
from libramq.logs import get_logger
from libramq.remoting.body.kafka_cluster import PeerHandoverBody
from libramq.rpc import peer_calls
from libramq.rpc.question import Question

log = get_logger(__name__)

#: Ours: how soon a broker is asked again: less than clients pause (retry.backoff.ms).
AGAIN_MS: Final = 50
#: Ours: how long brokers are awaited that do not answer: as long as they try to hand over
#: (`group_successors.WAIT_MS`).
LOAD_MS_MAX: Final = FRESH_MS + 500


class GroupLoad:
    """The load of one broker, which serves Kafka's clients once it has begun."""

    def __init__(self, peers: PeerBrokers) -> None:
        self._peers = peers
        #: The brokers that may have groups of ours; None: the cluster is not known yet.
        self._awaited: dict[str, None] | None = None
        self._asked: set[str] = set()
        self._until_ms = MonotonicMs(0)
        self._due = peers.deadlines.new(self._ask, "load of groups")

    def begin(self) -> None:
        """Ask the other brokers, as soon as they are known."""
        self._peers.view.observe(self._brokers_changed)
        self._brokers_changed()

    @property
    def is_under_way(self) -> bool:
        """Return whether other brokers may have groups that this one coordinates."""
        return bool(self._awaited)

    def _brokers_changed(self) -> None:
        view, now_ms = self._peers.view, self._peers.now_ms()
        if self._awaited is not None:
            self._awaited = {name: None for name in self._awaited if name in view.others}
        elif view.is_known:
            self._awaited = dict.fromkeys(view.others)
            self._until_ms = now_ms + LOAD_MS_MAX
            self._due.at(now_ms if self._awaited else None)

    def _ask(self, now_ms: MonotonicMs) -> None:
        """Ask those that may have groups; after a while this broker begins without these."""
        if not self._awaited:
            return
        if now_ms >= self._until_ms:
            log.warning("groups of Kafka's clients may not be handed over", brokers=list(self._awaited))
            self._awaited = {}
            return
        others = self._peers.view.others
        call = peer_calls.ask_handover(PeerHandoverBody(broker_name=self._peers.view.own_name))
        for name in [each for each in self._awaited if each not in self._asked]:
            self._asked.add(name)
            self._peers.ask(Question(others[name], call, partial(self._answered, name), ANSWER_MS_MAX))
        self._due.at(now_ms + AGAIN_MS)

    def _answered(self, name: str, outcome: bool | LibraError) -> None:
        self._asked.discard(name)
        # A broker of an older release hands over when it sees this one, and does not answer.
        if (outcome is True or isinstance(outcome, RequestCodeNotSupported)) and self._awaited is not None:
            self._awaited.pop(name, None)
