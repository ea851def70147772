"""The parts of transactions, put together.

transactions    store what becomes of half messages     end_transaction    producers say what
checking        asks them when they do not
"""

from typing import Any, Final

from libramq.auth.authorizer import Authorizer
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.processor.messages.end_transaction import EndTransaction, check_request
from libramq.broker.processor.messages.resume_check import ResumeCheck
from libramq.broker.transactions.checking import Checking, CheckRules
from libramq.broker.transactions.loading import first_open, last_committed
from libramq.broker.transactions.transactions import Transactions
from libramq.clock import read_clock
from libramq.errors import BrokerError
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
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
        self._broker_name = config.broker_name
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
        self.services: list[Any] = [
            EndTransaction(
                store=files.store,
                log=files.log,
                transactions=self.transactions,
                loading=self.checking.loading,
                rules=rules,
                authorizer=authorizer,
            ),
            ResumeCheck(files.store, self.transactions),
        ]

    def passed_on(self, half_offset: int) -> None:
        """Note that a slave has passed on the open half messages before an offset."""
        self.open.was_passed_on(half_offset)
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
