"""Committing: whether a commit is accepted: its group, its queue, and the member's right under its epoch;
then the journal is written.

commit … commit ─► write ─► acknowledged        all commits of one read, by one write
"""

from collections.abc import Callable

from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.catalog.requirements import Requirements
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.kernel.connection import Connection
from libramq.logs import get_logger
from libramq.offsets.fence import Fences

log = get_logger(__name__)


class Committing:
    """Takes and journals commits.

    offsets: of this broker's queues. committed: called with who commits for which group.
    """

    def __init__(
        self,
        *,
        offsets: OffsetCommits,
        fences: Fences,
        requirements: Requirements,
        committed: Callable[[Connection, str], None],
        is_slave: bool = False,
    ) -> None:
        self._is_slave = is_slave
        self.offsets = offsets
        self.first_to_read = offsets.first_to_read
        self._fences = fences
        self._requirements = requirements
        self._committed = committed

    def commit(
        self,
        connection: Connection,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        member: str | None = None,
        epoch: int | None = None,
        is_returned: bool = False,
        is_as_sent: bool = False,
        ends_reset: bool = False,
    ) -> None:
        """Take a commit; acknowledge it after `write`. Raises BrokerError if it is refused.

        member, epoch: of a coordinated group: the member that has the queue open, under that epoch. A member
        commits to a broker over one connection at a time: a commit over an earlier connection than its last
        one's is acknowledged, and changes nothing. is_returned: by a slave; it moves nothing back.
        is_as_sent: by a client of Kafka's, whose commit may lie beyond the end. ends_reset: it cannot be one
        from before an operator's reset, as none of Kafka's is; while that is pending, others change nothing.
        """
        if self._is_slave and member is not None:
            raise broker_error(ResponseCode.SYSTEM_BUSY, "this is a slave: only its master takes commits")
        self._requirements.group(group)
        self._requirements.queue_to_commit(topic, queue_id)
        self._fences.check(group, topic, queue_id, member, epoch)
        if member is not None and self._fences.is_superseded(group, topic, queue_id, connection.number):
            log.info(
                "commit ignored: a later one was applied already", group=group, topic=topic, queue_id=queue_id
            )
            return
        if ends_reset:
            self.offsets.take_reset(group, topic, queue_id)
        if is_as_sent:
            self._commit_as_sent(group, topic, queue_id, offset)
        elif is_returned:
            self.offsets.commit_forwards(group, topic, queue_id, offset)
        else:
            self.offsets.commit(group, topic, queue_id, offset)
        self._committed(connection, group)

    def record(self, group: str, topic: str, queue_id: int, offset: int, *, is_as_sent: bool = False) -> None:
        """Set an operator's offset regardless of the queue's reader, whose next commit replaces it."""
        self._requirements.group(group)
        self._requirements.queue_to_commit(topic, queue_id)
        commit = self._commit_as_sent if is_as_sent else self.offsets.commit
        commit(group, topic, queue_id, offset)

    def _commit_as_sent(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        try:
            self.offsets.commit_as_sent(group, topic, queue_id, offset)
        except OSError as error:
            raise _not_journalled(error) from error

    def write(self) -> None:
        """Journal the commits by one write; raises BrokerError if the disk refuses."""
        try:
            self.offsets.write()
        except OSError as error:
            raise _not_journalled(error) from error


def _not_journalled(error: OSError) -> BrokerError:
    return broker_error(ResponseCode.SYSTEM_ERROR, f"the offset cannot be journalled: {error}")
