"""The topic patterns in use: the topics that match the patterns of KIP-848's members, and limits on patterns
and topics.

    a new pattern or topic ─► a thread matches the names ─► the groups that use the pattern

Members learn of a new topic as they do of new partitions: within about a second.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from libramq.clock import MonotonicMs
from libramq.groups.modern.subscribed_topics import TOPICS_LOOK_MS
from libramq.groups.modern.topic_pattern import TopicPattern
from libramq.kernel.connection import Principal
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.protocols.kafka.node import KafkaNodes

log = get_logger(__name__)

#: Ours: topics that a member names, or that match a pattern.
TOPICS_MAX: Final = 1_000
#: Ours: different patterns of all members; each takes 64 KB at most.
PATTERNS_MAX: Final = 1_000
#: Ours: patterns of one group, whose members usually share one.
PATTERNS_OF_GROUP_MAX: Final = 100


class TooManyPatterns(Exception):
    """There is no room for another pattern."""


@dataclass(slots=True)
class _Used:
    """A pattern.

    groups: those that use it, each with a member's principal, None until a heartbeat after a restart.
    topics: the matching ones, None before they are known; version: that of the topics last matched.
    """

    pattern: TopicPattern
    groups: dict[str, Principal | None] = field(default_factory=dict)
    topics: frozenset[str] | None = None
    version: int | None = None
    is_running: bool = False


class TopicPatterns:
    """The patterns in use.

    uses: returns whether a group still has a member with a pattern; fit: called with a group, its pattern,
    the matching topics, and the principal that must be allowed to read them.
    """

    def __init__(
        self,
        kernel: Kernel,
        nodes: KafkaNodes,
        uses: Callable[[str, str], bool],
        fit: Callable[[str, str, frozenset[str], Principal], None],
    ) -> None:
        self._effects = kernel.effects
        self._clock = kernel.clock
        self._nodes = nodes.cluster
        self._uses = uses
        self._fit = fit
        self._used: dict[str, _Used] = {}
        #: The last compiled pattern.
        self._compiled: TopicPattern | None = None
        self._due = kernel.deadlines.new(self._look, "topic patterns")

    def __len__(self) -> int:
        return len(self._used)

    def require(self, pattern: str, group: str) -> None:
        """Raise InvalidPattern if a group cannot use a pattern, TooManyPatterns if there is no room.

        The pattern takes no room before `use`: most refused heartbeats are refused for other reasons.
        """
        if pattern in self._used:
            return
        count = sum(group in each.groups for each in self._used.values())
        if len(self._used) >= PATTERNS_MAX or count >= PATTERNS_OF_GROUP_MAX:
            raise TooManyPatterns
        self._compile(pattern)

    def use(self, pattern: str, group: str, principal: Principal | None, *, is_known: bool) -> None:
        """Find the matching topics for a group, now or soon; call `require` before.

        principal: that of a member; None before the first heartbeat, when the group keeps its topics.
        is_known: the group has the topics that last matched.
        """
        used = self._used.get(pattern)
        if used is None:
            used = self._used[pattern] = _Used(self._compile(pattern))
            self._due.at(self._clock.monotonic_ms() + TOPICS_LOOK_MS)
        if is_known and used.groups.get(group) is not None:
            return
        used.groups[group] = principal
        if used.topics is not None and principal is not None:
            self._fit(group, pattern, used.topics, principal)
        self._go_through(used)

    def _compile(self, pattern: str) -> TopicPattern:
        if self._compiled is None or self._compiled.pattern != pattern:
            self._compiled = TopicPattern(pattern)
        return self._compiled

    def _go_through(self, used: _Used) -> None:
        """Match the names of topics on a thread, unless that was done."""
        if used.is_running or used.version == self._nodes.topics_version:
            return
        used.is_running, used.version = True, self._nodes.topics_version
        names = self._nodes.topics()
        self._effects.run(
            Thread.COMPUTE, partial(used.pattern.among, names), partial(self._gone_through, used)
        )

    def _gone_through(self, used: _Used, found: Any) -> None:
        used.is_running = False
        if isinstance(found, Exception):
            log.error("a topic pattern failed", pattern=used.pattern.pattern, exc_info=found)
            return
        topics = frozenset(found[:TOPICS_MAX])
        if topics != used.topics:
            used.topics = topics
            for group, principal in list(used.groups.items()):
                if principal is not None:
                    self._fit(group, used.pattern.pattern, topics, principal)

    def _look(self, now_ms: MonotonicMs) -> None:
        """Forget unused patterns, and match new topics."""
        for name, used in list(self._used.items()):
            used.groups = {group: each for group, each in used.groups.items() if self._uses(group, name)}
            if used.groups:
                self._go_through(used)
            elif not used.is_running:
                del self._used[name]
        if self._used:
            self._due.at(now_ms + TOPICS_LOOK_MS)
