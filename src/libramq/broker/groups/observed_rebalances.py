"""The observed rebalances: which pulls, openings and commits are noted in a group's rebalance, and when
(`groups/rebalance.py` interprets them), and in which order its events are recorded.

    a coordinator's reports, openings ─► that turn's answers leave ─► noted in order, before anything else

Members wait for those answers, but not for the record.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from libramq.broker.files.tables import Tables
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.clock import MonotonicMs, Now, read_clock
from libramq.filter.subscription import BROADCASTING
from libramq.groups.consumer_group import ConsumerGroup, ConsumerGroups
from libramq.groups.rebalance import GroupRebalance
from libramq.groups.rebalance_event import Reason, RebalanceEvent
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue

log = get_logger(__name__)


class ObservedRebalances:
    """The rebalances of all groups with members here. record: takes their events.

    allocates: returns whether a group's members allocate for themselves. Queues of a topic that a group pops
    have no owners.
    """

    def __init__(
        self,
        groups: ConsumerGroups[Connection],
        *,
        tables: Tables,
        offsets: OffsetCommits,
        kernel: Kernel,
        record: Callable[[RebalanceEvent], None],
        allocates: Callable[[str], bool],
    ) -> None:
        self.broker_name = tables.topics.broker_name
        self._modes = tables.request_modes
        self.is_popped = self._modes.is_popped
        self.take_mixed = self._modes.take_mixed
        self.allocates = allocates
        self._groups = groups
        self._topics, self._fences = tables.topics, tables.fences
        self._offsets = offsets
        self._clock = kernel.clock
        self._record = record
        self._later: list[tuple[Callable[[Now], None], Now]] = []
        self._deadline = kernel.deadlines.new(lambda _: self.catch_up(), "ObservedRebalances")
        self._rebalances: dict[str, GroupRebalance] = {}
        self._unsettled: set[str] = set()
        #: Called when a rebalance has started.
        self.changed: Callable[[], None] = lambda: None

    @property
    def are_unsettled(self) -> bool:
        """Return whether a rebalance has not settled."""
        return bool(self._unsettled)

    def started(
        self,
        group_name: str,
        reason: Reason,
        who: str | None,
        members: Iterable[str],
        *,
        epoch: int | None = None,
        is_part: bool = False,
        now: Now,
    ) -> None:
        """Note the start of a group's rebalance; epoch: set if a coordinator began it."""
        rebalance = self._rebalance(group_name)
        self._unsettled.add(group_name)
        self.changed()
        event = rebalance.changed(reason, who, members, epoch=epoch, is_part=is_part, now=now)
        self._record(event)

    def started_elsewhere(
        self,
        group_name: str,
        reason: Reason,
        who: str | None,
        members: Iterable[str],
        *,
        epoch: int,
        now: Now,
    ) -> None:
        """Note a rebalance begun by a coordinator elsewhere; ignored if we have no queues of the group."""
        group = self._groups.get(group_name)
        if group is not None and self._queues_of(group):
            self.started(group_name, reason, who, members, epoch=epoch, is_part=True, now=now)

    def observed(self, group_name: str) -> GroupRebalance | None:
        """Return the observer of a group's rebalances, if there is one."""
        self.catch_up()
        return self._rebalances.get(group_name)

    def gone(self, group_name: str, client_id: str, now: Now) -> None:
        """Note that a client's last connection to us has ended."""
        rebalance = self._rebalances.get(group_name)
        if rebalance is not None:
            rebalance.gone(client_id, now.monotonic_ms)

    def replaced(self, group_name: str, former: str, client_id: str, name: str) -> None:
        """Note that a client has taken another's place, as a returning static member of that name does."""
        rebalance = self.observed(group_name)
        if rebalance is not None:
            rebalance.replaced(former, client_id, name, now_ms=self._clock.monotonic_ms())

    def opened(
        self,
        peer: Connection,
        group_name: str,
        topic: str,
        queue_id: int,
        client_id: str | None,
        *,
        was_open: bool,
    ) -> None:
        """Note after this turn that a member of a coordinated group has opened a queue.

        was_open: the queue had been open before.
        client_id: the member's, as far as it is known without a heartbeat on this connection.
        """
        if topic.startswith(RETRY_PREFIX):
            return
        group = self._groups.get(group_name)
        member = group.members.get(peer) if group is not None else None
        if member is not None:
            client_id = member.client_id

        def note(now: Now) -> None:
            queue = MessageQueue(topic, self.broker_name, queue_id)
            self._rebalance(group_name).opened(queue, client_id, was_open=was_open, now_ms=now.monotonic_ms)

        self.note_later(note)

    def pulled(
        self,
        peer: Connection,
        group_name: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        is_opened: bool = False,
        now_ms: MonotonicMs,
    ) -> None:
        """Note that a member pulls a queue; is_opened: after an opening, as in coordinated groups.

        A member that pulls without an opening does not know yet that its group is coordinated; it owns
        nothing there.
        """
        group = self._groups.get(group_name)
        member = group.members.get(peer) if group is not None else None
        if group is None or member is None:
            return
        member.session.seen(now_ms=now_ms)
        self._modes.pulled(topic, group_name)
        if _are_owned(group, topic) and (is_opened or not self._fences.goes_by_epochs(group_name)):
            queue = MessageQueue(topic, self.broker_name, queue_id)
            rebalance = self._rebalance(group_name)
            rebalance.pulled(queue, member.client_id, offset, is_opened=is_opened, now_ms=now_ms)
            if rebalance.restarts:
                self._record_restarts(rebalance)

    def _record_restarts(self, rebalance: GroupRebalance) -> None:
        for event in rebalance.restarted(now=read_clock(self._clock)):
            self._record(event)

    def answered(
        self,
        peer: Connection,
        group_name: str,
        topic: str,
        queue_id: int,
        next_offset: int | None,
        *,
        now_ms: MonotonicMs,
    ) -> None:
        """Note the answer to a member's pull, with the messages before `next_offset`, if any."""
        group = self._groups.get(group_name)
        member = group.members.get(peer) if group is not None and _are_owned(group, topic) else None
        if member is not None:
            queue = MessageQueue(topic, self.broker_name, queue_id)
            self._rebalance(group_name).answered(queue, member.client_id, next_offset, now_ms=now_ms)

    def settle(self) -> Iterator[None]:
        """Record the rebalances that have settled; yields to let others run."""
        self.catch_up()
        for name, rebalance in list(self._rebalances.items()):
            yield
            self.catch_up()  # This includes queues that were opened meanwhile.
            now = read_clock(self._clock)
            if rebalance.restarts:
                self._record_restarts(rebalance)
            if rebalance.is_settled:
                self._unsettled.discard(name)
                continue
            group = self._groups.get(name)
            # The fence decides, not the members. If stock members have come but a coordinator elsewhere has
            # not changed the fence's mode yet, the fence still lets nobody read without an opening.
            goes_by_openings = self._fences.goes_by_epochs(name) or not self.allocates(name)
            openings = self._openings(name) if goes_by_openings else None
            queues = self._queues_of(group) if group is not None else None
            for event in rebalance.settle(
                queues, openings=openings, pops=partial(self._modes.pops, name), now=now
            ):
                self._record(event)
            if rebalance.is_forgettable and group is None:
                del self._rebalances[name]

    def owners(self, group_name: str) -> Mapping[MessageQueue, str]:
        """Return the last reader of each queue here, by client id."""
        rebalance = self.observed(group_name)
        return rebalance.owners if rebalance is not None else {}

    def diagnosed(self, group_name: str, kind: str, text: str | None) -> None:
        """Record a problem of a group; text: None when it is over."""
        event = self._rebalance(group_name).diagnosed(kind, text, now=read_clock(self._clock))
        self._record(event)

    def readers(self, group: ConsumerGroup[Connection]) -> set[str]:
        """Return the members that read queues here that the group owns."""
        owners = self.owners(group.name)
        return {owners[queue] for queue in self._queues_of(group) if queue in owners} & set(group.client_ids)

    def read_by_two_and_by_none(
        self, group: ConsumerGroup[Connection], *, age_ms: int
    ) -> tuple[list[MessageQueue], list[MessageQueue]]:
        """Return the queues with alternating readers in the last age_ms, and those without a reader."""
        now_ms = self._clock.monotonic_ms()
        rebalance = self._rebalance(group.name)
        by_two = rebalance.contested.read_by_two(since_ms=now_ms - age_ms, now_ms=now_ms)
        return by_two, rebalance.read_by_none(self._queues_of(group))

    def _openings(self, group_name: str) -> dict[MessageQueue, bool]:
        """Return the existing queues here that are open or granted; see Fences.openings."""
        return {
            queue: is_open
            for queue, is_open in self._fences.openings(group_name).items()
            if (config := self._topics.get(queue.topic)) and queue.queue_id < config.read_queue_nums
        }

    def _queues_of(self, group: ConsumerGroup[Connection]) -> list[MessageQueue]:
        """Return the queues here that the group should own; retry topics and popped queues do not count."""
        return [
            MessageQueue(topic, self.broker_name, queue_id)
            for topic in group.subscriptions
            if _are_owned(group, topic) and not self.is_popped(topic, group.name)
            if (config := self._topics.get(topic)) is not None
            for queue_id in range(config.read_queue_nums)
        ]

    def catch_up(self) -> None:
        """Note pending events; a failure is logged, because no request has caused it."""
        if self._later:
            notes, self._later = self._later, []
            for note, now in notes:
                try:
                    note(now)
                except Exception:  # It belongs to one group; the others' history continues.
                    log.exception("a rebalance is not recorded as it was")

    def note_later(self, note: Callable[[Now], None]) -> None:
        """Call `note`, which records a present event, after this turn."""
        now = read_clock(self._clock)
        self._later.append((note, now))
        self._deadline.by(now.monotonic_ms)

    def _rebalance(self, group_name: str) -> GroupRebalance:
        if self._later:
            self.catch_up()
        rebalance = self._rebalances.get(group_name)
        if rebalance is None:
            rebalance = self._rebalances[group_name] = GroupRebalance(
                group_name, sent_before=partial(self._offsets.sent_before, group_name)
            )
        return rebalance


def _are_owned(group: ConsumerGroup[Connection], topic: str) -> bool:
    """Return whether a group's queues of a topic have owners; queues of retry topics have none."""
    return group.message_model != BROADCASTING and not topic.startswith(RETRY_PREFIX)
