"""The parts of transactions, put together.

transactions    store what becomes of half messages     ending    producers say what
checking        asks them when they do not
"""

from collections.abc import Iterator
from typing import Any, Final

from libramq.auth.authorizer import Authorizer
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.processor.messages.end_transaction import EndTransaction, check_request
from libramq.broker.transactions import half
from libramq.broker.transactions.checking import Checking, CheckRules, times_checked
from libramq.broker.transactions.ending import Ending
from libramq.broker.transactions.loading import READ_MAX, first_open, last_committed, messages_of
from libramq.broker.transactions.transactions import Transactions
from libramq.clock import read_clock
from libramq.errors import BrokerError
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.rpc.responder import Responder

log = get_logger(__name__)

HOUR_MS: Final = 3_600_000


class TransactionParts:
    """The services of transactions."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        offsets: OffsetCommits,
        producers: ProducerGroups[Connection],
        kernel: Kernel,
        responder: Responder,
        authorizer: Authorizer,
    ) -> None:
        self._broker_name, self._store, self._clock = config.broker_name, files.store, kernel.clock
        self._producers = producers
        self._responder = responder
        self._check_count = 0
        rules = CheckRules(
            interval_ms=config.transaction_check_interval_ms,
            timeout_ms=config.transaction_timeout_ms,
            times_max=config.transaction_check_max,
            kept_ms=config.file_reserved_hours * HOUR_MS,
        )
        open_transactions = self.open = first_open(files.store, offsets)
        self.transactions = Transactions(
            open_transactions=open_transactions,
            log=files.log,
            topics=files.tables.topics,
            destinations=files.destinations,
            schedule=files.schedule,
            timers=files.timers.timers,
            host=(config.broker_ip, config.listen_port),
        )
        self.checking = Checking(
            store=files.store,
            offsets=offsets,
            open_transactions=open_transactions,
            transactions=self.transactions,
            rules=rules,
            kernel=kernel,
            ask=self._ask,
            is_active=not config.is_slave,
        )
        if not config.is_slave:
            self._complete_last_commit(files, kernel)
        ending = Ending(files.store, files.log, self.transactions, rules, authorizer)
        self.services: list[Any] = [
            EndTransaction(ending, self.transactions, self.checking.loading, files.store)
        ]

    def passed_on(self, half_offset: int, read: range) -> Iterator[None]:
        """Note that a slave has passed on the open half messages before an offset, in steps.

        read: where it began, and the end of the half topic there; empty if we have no more. A later copy of
        what it has passed on is ended: this broker asked about it in the last moment before it died.
        Raises BrokerError.
        """
        self.open.was_passed_on(half_offset)
        store, end = self._store, self._store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID)
        passed: set[int] = set()
        copies: dict[int, MessageExt] = {}
        offset = read.start
        while read and offset < end:
            found = store.read(names.TRANS_HALF_TOPIC, half.QUEUE_ID, offset, READ_MAX)
            for message in messages_of(found):
                first = half.first_offset(message)
                if message.queue_offset < half_offset:
                    passed.add(first)
                elif message.queue_offset < read.stop:
                    passed.discard(first)
                elif first in passed and times_checked(message):
                    copies[first] = message
            offset = max(found.next_offset, offset + 1)
            yield
        for message in copies.values():
            self.transactions.complete(message, read_clock(self._clock))
            yield
        self.checking.want_commit()

    def _complete_last_commit(self, files: BrokerFiles, kernel: Kernel) -> None:
        """Store the operation message that is missing where the log ends between the two of a commit.

        It is the first message of this process, so it stands for that at every later start, too.
        """
        message = last_committed(files.store)
        if message is None:
            return
        try:
            stored = self.transactions.complete(message, read_clock(kernel.clock))
        except BrokerError as error:
            log.warning("the last commit was cut off, and may be repeated", reason=error.remark)
        else:
            if stored is not None:
                log.info("the log ended amid a commit, which is complete now", id=message.offset_id)

    def _ask(self, message: MessageExt) -> None:
        """Ask one of the group's producers, each in its turn."""
        group = message.properties.get(p.PRODUCER_GROUP, "")
        peers = [member.peer for member in self._producers.members(group) if member.peer.is_open]
        if not peers:
            log.warning("no producer can be asked about a transaction", group=group, id=message.message_id)
            return
        self._check_count += 1
        peer = peers[self._check_count % len(peers)]
        self._responder.notify([check_request(message, peer, self._broker_name)])
