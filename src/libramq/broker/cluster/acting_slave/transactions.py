"""Transactions at an acting slave: passes open half messages on to another master, which checks with their
producers, and leaves those that are too young.

    half topic   … ended  open │ open   renewed  ended   young    half messages behind the committed offset
                                 sent ─► a half message there, checked by that master

The committed offset of CID_RMQ_SYS_TRANS records what the slave has passed on. A returning master adopts it,
refuses to end half messages before it, and ends later copies of them that were not copied
(`returning_master.py`). Like Apache's, this slave refuses to end transactions: producers end the half message
at the other master when it checks with them.

Upstream: TransactionalMessageServiceImpl.check, EscapeBridge.putMessage.
"""

from typing import Final

from libramq.broker.cluster.acting_slave.other_masters import WINDOW_BYTES_MAX, OtherMasters, Outgoing, Window
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.broker.transactions.known_transactions import (
    Known,
    KnownTransactions,
    Loading,
    first_open,
    last_committed,
)
from libramq.clock import Clock
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.sys_flag import TRANSACTION_PREPARED
from libramq.store.log.append import undamaged

#: Ours: at most this many half messages are sent at once.
WINDOW_MAX: Final = 32
#: Ours: at most this many half messages are examined in one turn.
LOOKED_AT_MAX: Final = 64

_DROPPED: Final = (
    p.REAL_TOPIC, p.REAL_QUEUE_ID, p.TRANSACTION_ID,
    p.TRANSACTION_PREPARED_QUEUE_OFFSET, p.TRANSACTION_CHECK_TIMES,
)  # fmt: skip


class EscapingTransactions:
    """Passes open half messages on, oldest first."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        offsets: OffsetCommits,
        masters: OtherMasters,
        clock: Clock,
    ) -> None:
        self._timeout_ms = config.transaction_timeout_ms
        self._store, self._file = files.store, files.passed_on
        self._offsets = offsets
        self._masters = masters
        self._destinations = files.destinations
        self._clock = clock
        self._open: KnownTransactions | None = None
        self._loading: Loading | None = None
        self._window: Window | None = None

    @property
    def is_awaiting(self) -> bool:
        """Return whether an answer of another master is pending."""
        return self._window is not None and bool(self._window.awaited)

    def begin(self) -> None:
        """Reread the log."""
        self._open = self._loading = self._window = None

    def act(self) -> bool:
        """Send on; return whether to call again soon. May raise ColdRead."""
        open_, loading = self._open, self._loading
        if open_ is None or loading is None:
            open_ = self._state()
            loading = self._loading = Loading(self._store, open_, at_once=False)
            self._open = open_
        if not loading.is_done:
            loading.read_on()
            return True
        if self._window is None:
            messages, is_more = self._find(open_)
            if not messages:
                self._commit(open_)
                return is_more
            self._window = Window(messages, messages[-1].queue_offset + 1)
        window = self._window
        self._masters.send(window, self._outgoing, lambda: self._accepted(open_, window))
        return False

    def _state(self) -> KnownTransactions:
        open_ = first_open(self._store, self._offsets)
        end = self._store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID)
        self._file.pass_halves_on(open_.half_offset, end)
        last = last_committed(self._store)
        if last is not None:  # The log ends between it and its operation message.
            open_.remember((last.queue_offset, half.first_offset(last)))
        return open_

    def _find(self, open_: KnownTransactions) -> tuple[list[MessageExt], bool]:
        """Return the next open half messages, and whether more may follow."""
        found: list[MessageExt] = []
        end = self._store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID)
        offset, size = open_.half_offset, 0
        for _ in range(LOOKED_AT_MAX):
            is_full = len(found) == WINDOW_MAX or size >= WINDOW_BYTES_MAX
            if offset >= end or is_full:
                return found, is_full
            read = self._store.read(names.TRANS_HALF_TOPIC, half.QUEUE_ID, offset, 1)
            for message in undamaged(read.data):
                if self._is_open(open_, message) and not self._is_dropped(open_, message):
                    age_ms = int(self._clock.wall_ms()) - message.born_timestamp_ms
                    # A producer's clock may be ahead, as in CheckRules.verdict.
                    if 0 <= age_ms < self._timeout_ms:
                        return found, False
                    found.append(message)
                    size += message.store_size
            offset = max(read.next_offset, offset + 1)
            if not found:
                open_.passed(offset)
        return found, True

    def _is_open(self, open_: KnownTransactions, message: MessageExt) -> bool:
        first = half.first_offset(message)
        if not half.is_half(message) or open_.is_renewed(first, message.queue_offset):
            return False
        return open_.known(message.queue_offset, first) is Known.OPEN

    def _is_dropped(self, open_: KnownTransactions, message: MessageExt) -> bool:
        topic = message.properties[p.REAL_TOPIC]
        if message.physical_offset >= self._destinations.deleted_end(topic):
            return False
        open_.remember((message.queue_offset,))  # Count it only once.
        self._destinations.drop({topic: 1})
        return True

    def _outgoing(self, message: MessageExt) -> Outgoing:
        properties = {name: value for name, value in message.properties.items() if name not in _DROPPED}
        group = properties.get(p.PRODUCER_GROUP, "")
        return Outgoing(message.properties[p.REAL_TOPIC], properties, group, TRANSACTION_PREPARED)

    def _accepted(self, open_: KnownTransactions, window: Window) -> None:
        if self._window is not window:
            return
        open_.passed(window.next_offset)
        self._commit(open_)
        if window.is_done:
            self._window = None

    def _commit(self, open_: KnownTransactions) -> None:
        group, topic, queue_id = half.TRANSACTION_GROUP, names.TRANS_HALF_TOPIC, half.QUEUE_ID
        if open_.half_offset > (self._offsets.query(group, topic, queue_id) or 0):
            self._offsets.commit(group, topic, queue_id, open_.half_offset)
