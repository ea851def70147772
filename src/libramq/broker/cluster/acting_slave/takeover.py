"""The takeover: whether and when a slave begins to act for its lost master (lowest id, longest log, after
3 s), or begins again after a stall, and from which slave's progress it continues.

    a slave whose master is gone, each second
          ─► a name server: is no id lower than ours? ─► the other slaves: their progress
          ─► do we have their last record? ─► adopt their progress
          ─► all have answered, or 3 s are over: we act

If an acting slave stalled or lost its name servers for 5 s, another one may have acted meanwhile, so it
starts over with its peers' progress. A peer's progress counts only if its last record is in our log as well:
its account may refer to copies that only a longer log has.

Upstream: BrokerController.changeSpecialServiceStatus; BrokerPreOnlineService.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final, Protocol

from libramq.broker.cluster.returning_master import (
    AGAIN_MS,
    ANSWER_MS_MAX,
    STALL_MS_MIN,
    Delivered,
    peer_progress,
)
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, LibraError
from libramq.formats.route import MASTER_ID
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import names
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.remoting.body.cluster import ClusterInfo
from libramq.rpc.name_server_calls import cluster_info
from libramq.rpc.peer_calls import record_at
from libramq.rpc.question import Ask, Question
from libramq.timers.timers import Again

log = get_logger(__name__)

#: Ours: the interval at which a slave copies the progress of the others.
EVERY_MS: Final = 1_000
#: Ours: how long a slave that is about to act waits for the progress of the others.
PEERS_MS_MAX: Final = 3_000
#: Ours: how long a name server's answer is valid.
CONFIRMED_MS: Final = 3_000


class FollowingSlave(Protocol):
    """The slave whose master is gone."""

    @property
    def answered_last(self) -> str:
        """Return the name server that answered last."""

    @property
    def is_acting(self) -> bool:
        """Return whether the slaves should act for a lost master."""

    def interrupted(self) -> None:
        """Discard unfinished work: another slave may have acted meanwhile."""


class ActingSlave:
    """Copies the progress of a lost master's other slaves, and decides whether this one acts."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        offsets: OffsetCommits,
        kernel: Kernel,
        ask: Ask,
        slave: FollowingSlave,
    ) -> None:
        self._files, self._offsets = files, offsets
        self._name, self._id = config.broker_name, config.broker_id
        self._clock = kernel.clock
        self._ask = ask
        self._slave = slave
        self._due = kernel.deadlines.new(self._look)
        self._due.at(self._clock.monotonic_ms() + EVERY_MS)
        self._has_begun = False
        self._looked_ms = self._confirmed_ms = self._clock.monotonic_ms()
        #: Since when the master is known to be gone and this slave to have the lowest id left.
        self._since_ms: MonotonicMs | None = None
        #: The other slaves known to name servers; those that have answered; and those with a pending request.
        self._peers: dict[int, str] = {}
        self._known: set[int] = set()
        self._awaited: set[int] = set()
        self._reported: set[int] = set()
        self._copyings = 0

    @property
    def has_begun(self) -> bool:
        """Return whether this slave is the acting one, and knows the others' progress."""
        return self._has_begun and not self._is_overdue(self._looked_ms, self._clock.monotonic_ms())

    @property
    def is_confirmed(self) -> bool:
        """Return whether this slave acts, confirmed by a name server within the last seconds."""
        return self.has_begun and self._is_known_first(self._clock.monotonic_ms())

    def soon(self) -> None:
        """Check at once: the master may have come or gone."""
        self._due.by(self._clock.monotonic_ms())

    def forget(self) -> None:
        """Ignore pending answers: the log is about to be truncated."""
        self._copyings += 1
        self._awaited.clear()

    def make_way(self, broker_id: int) -> None:
        """Note a query of another slave: one with a lower id is about to act."""
        if broker_id < self._id:
            self._end()

    def _end(self) -> None:
        self._has_begun, self._since_ms = False, None
        self._known.clear()

    def _is_overdue(self, last_ms: MonotonicMs, now_ms: MonotonicMs) -> bool:
        """Return whether this slave was stalled or cut off for so long that another one may have acted."""
        return bool(self._peers) and now_ms - last_ms >= STALL_MS_MIN

    def _is_known_first(self, now_ms: MonotonicMs) -> bool:
        """Return whether a name server confirmed within seconds that this slave has the lowest id left."""
        return now_ms - self._confirmed_ms < CONFIRMED_MS

    def _begin_again(self) -> None:
        if self._has_begun:
            log.info("another slave may have acted meanwhile; asking the others what they have delivered")
            self._slave.interrupted()
        self._end()

    def _look(self, now_ms: MonotonicMs) -> None:
        self._due.at(now_ms + EVERY_MS)
        if self._is_overdue(self._looked_ms, now_ms):
            self._begin_again()
        self._looked_ms = now_ms
        if not self._slave.is_acting:
            self._end()
            return
        self._ask(Question(self._slave.answered_last, cluster_info(), self._found, ANSWER_MS_MAX))
        self._decide(now_ms)

    def _found(self, info: ClusterInfo | LibraError) -> None:
        if isinstance(info, LibraError) or not self._slave.is_acting:
            return
        addresses, now_ms = info.addresses_of(self._name), self._clock.monotonic_ms()
        self._peers = {id_: each for id_, each in addresses.items() if id_ not in (MASTER_ID, self._id)}
        if min(addresses, default=None) != self._id:
            self._end()
        else:
            if self._is_overdue(self._confirmed_ms, now_ms):
                self._begin_again()
            self._confirmed_ms = now_ms
            if self._since_ms is None:
                self._since_ms = now_ms
                self._due.by(now_ms + PEERS_MS_MAX)
        if not self._has_begun:
            for id_, address in self._peers.items():
                if id_ not in self._awaited:
                    self._awaited.add(id_)
                    answered = partial(self._answered, id_, address, self._copyings)
                    self._ask(Question(address, peer_progress(self._id), answered, ANSWER_MS_MAX))
        self._decide(now_ms)

    def _decide(self, now_ms: MonotonicMs) -> None:
        """Begin to act once every other slave has reported its progress, or the wait is over."""
        if self._has_begun or self._since_ms is None or not self._is_known_first(now_ms):
            return
        silent = self._peers.keys() - self._known
        if not silent or now_ms - self._since_ms >= PEERS_MS_MAX:
            if silent:
                log.warning(
                    "other slaves have not reported their deliveries; messages may be delivered again",
                    slaves=[self._peers[each] for each in sorted(silent)],
                )
            self._has_begun = True

    def _answered(self, id_: int, address: str, copying: int, answer: Delivered | LibraError) -> None:
        if copying != self._copyings:
            return
        self._awaited.discard(id_)
        if not self._slave.is_acting or self.has_begun:
            return
        if isinstance(answer, BrokerError):
            self._has_answered(id_)  # Apache's, or another version, which never reports progress.
        elif isinstance(answer, LibraError):
            return
        elif answer.is_moving and id_ > self._id:
            self._due.by(self._clock.monotonic_ms() + AGAIN_MS)
        elif not self._is_ahead(answer):
            self._has_answered(id_)
        else:
            self._compare(id_, address, answer)

    def _has_answered(self, id_: int) -> None:
        self._known.add(id_)
        self._decide(self._clock.monotonic_ms())

    def _compare(self, id_: int, address: str, answer: Delivered) -> None:
        """Adopt another slave's progress, if we have all of its log."""
        place, copying = answer.others.last_record, self._copyings
        record = self._files.store.copy.record(*place) if place is not None else None
        if place is None or record is None:
            self._is_another(id_, address)
            return

        def answered(theirs: bytes | LibraError) -> None:
            if copying != self._copyings or not self._slave.is_acting or self.has_begun:
                return
            if theirs == record:
                self._take_over(answer)
                self._has_answered(id_)
            elif not isinstance(theirs, LibraError):
                self._is_another(id_, address)

        self._ask(Question(address, record_at(place[0], record), answered, ANSWER_MS_MAX))

    def _is_another(self, id_: int, address: str) -> None:
        if id_ not in self._reported:
            self._reported.add(id_)
            log.warning(
                "another slave's log is longer or has diverged: messages may be delivered twice",
                slave=address,
            )
        self._has_answered(id_)

    def _is_ahead(self, answer: Delivered) -> bool:
        """Return whether a slave's progress includes deliveries unknown to us."""
        schedule, others = self._files.schedule, answer.others
        return (
            any(each.is_ahead_of(schedule.account_of(level)) for level, each in answer.accounts.items())
            or (others.half_offset or 0) > self._half_offset
            or self._later_timers(answer) is not None
            or (others.passed_on is not None and others.passed_on.is_ahead)
            or any(True for _ in self._later_commits(answer))
        )

    @property
    def _half_offset(self) -> int:
        return self._offsets.query(half.TRANSACTION_GROUP, names.TRANS_HALF_TOPIC, half.QUEUE_ID) or 0

    def _later_timers(self, answer: Delivered) -> Again | None:
        again, ours = answer.timers, self._files.timers.timers.again
        if again is None:
            return None
        is_later = again != ours and again.until >= ours.until and again.from_ms >= ours.from_ms
        return again if is_later else None

    def _later_commits(self, answer: Delivered) -> Iterator[tuple[str, str, int, int]]:
        for key, queues in answer.others.committed.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in queues.items():
                if offset > (self._offsets.query(group, topic, queue_id) or 0):
                    yield group, topic, queue_id, offset

    def _take_over(self, answer: Delivered) -> None:
        files, schedule = self._files, self._files.schedule
        for level, account in answer.accounts.items():
            bounded = account.bounded(files.store.max_offset(names.SCHEDULE_TOPIC, level - 1))
            if bounded.is_ahead_of(schedule.account_of(level)):
                schedule.passed_on(level, bounded)
        if (answer.others.half_offset or 0) > self._half_offset:
            queue = (half.TRANSACTION_GROUP, names.TRANS_HALF_TOPIC, half.QUEUE_ID)
            self._offsets.commit(*queue, answer.others.half_offset or 0)
        timers = self._later_timers(answer)
        if timers is not None:
            files.timers.timers.copy(timers)
        for commit in list(self._later_commits(answer)):
            self._offsets.commit(*commit)
        if answer.others.passed_on is not None:
            files.passed_on.take_over(answer.others.passed_on)
        files.passed_on.is_ahead = True
        files.save_progress_soon()
