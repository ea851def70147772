"""Returned commits: offsets that groups committed at a slave while its master was gone.

    the master's table arrives ─┬─ it has as much, or a reset waits ─► forgotten
                                └─ it has less, or nothing          ─► committed at the master, forgotten

Otherwise a group that committed for the first time would begin elsewhere once the master is back: at the end
of its queues perhaps, behind messages that nobody has read. Members of coordinated groups commit at masters
only. They are in a file (`CommitsAtSlave`), as the slave may be restarted before its master is back.

The master's table is older than its answer, so it compares again: a returned commit moves nothing back there,
neither a committed offset nor a position of POP that is ahead of it. Nobody can mean it to, since a slave
refuses resets. A commit behind an earlier one holds at the slave until its master is back.

Upstream: none; BrokerPreOnlineService.syncMetadataReverse copies the whole table of an acting master, unless
its own version is higher, and so moves offsets back as well. PopMessageProcessor.getPopOffset reads on from
the higher of the buffered and the committed offset, too.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from libramq.broker.groups.offset_commits import CommitsAtSlave
from libramq.broker.transactions import half
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.offsets.commits_ahead import CommitsAheadFile
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.rpc.broker_calls import update_consumer_offset
from libramq.rpc.call import Call

log = get_logger(__name__)

#: Ours: commits that a master is sent at once; the others follow with the next table.
RETURNED_AT_ONCE: Final = 1_000

#: Asks the master, and passes its answer on if the copying is still the same.
AskMaster = Callable[[Call[Any], Callable[[Any], None]], None]


class OffsetTables(NamedTuple):
    """Committed offsets and pending resets, by key and queue id; commits ahead; deletions in the store."""

    offsets: dict[str, dict[int, int]]
    resets: dict[str, dict[int, int]]
    ahead: CommitsAheadFile = CommitsAheadFile()
    deletions: Mapping[str, int] = MappingProxyType({})


class ReturnedCommits:
    """Sends the master what was committed here and it does not have."""

    def __init__(self, at_slave: CommitsAtSlave, ask_master: AskMaster) -> None:
        self._at_slave = at_slave
        self._ask_master = ask_master

    def send(self, master: OffsetTables) -> None:
        """Compare with a table that arrived from the master; what is returned is added to it."""
        for key, queue_id, offset in self._at_slave.take_turns(RETURNED_AT_ONCE):
            is_known = master.offsets.get(key, {}).get(queue_id, -1) >= offset
            if is_known or queue_id in master.resets.get(key, {}):
                self._at_slave.forget(key, queue_id, offset)
                continue
            topic, _, group = key.partition(SEPARATOR)
            if group == half.TRANSACTION_GROUP:
                continue  # The master asks for it (`slaves_progress.py`), and refuses it from us.
            call = update_consumer_offset(group, MessageQueue(topic, "", queue_id), offset, is_returned=True)
            self._ask_master(call, partial(self._answered, master, key, queue_id, offset))

    def _answered(
        self, master: OffsetTables, key: str, queue_id: int, offset: int, failure: LibraError | None
    ) -> None:
        if failure is None:
            master.offsets.setdefault(key, {})[queue_id] = offset  # The copy is applied later, with it.
        elif _is_final(failure):
            log.warning("the master refuses an offset committed here", of=key, reason=str(failure))
        else:
            return  # It is sent again after one of the next tables.
        self._at_slave.forget(key, queue_id, offset)


def _is_final(failure: LibraError) -> bool:
    """Return whether the master would refuse a commit again: it has answered, and is not just busy."""
    return isinstance(failure, BrokerError) and failure.response_code != ResponseCode.SYSTEM_BUSY
