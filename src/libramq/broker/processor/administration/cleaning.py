"""DELETE_EXPIRED_COMMITLOG, CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC: an operator frees disk space.

Each request removes at once:

    deleteExpiredCommitLog   log files older than fileReservedTime, without waiting for deleteWhen
    cleanExpiredCQ           queue files whose messages lie before the log's beginning
    cleanUnusedTopic         queues of topics that no longer exist

Upstream: AdminBrokerProcessor.java, DefaultMessageStore.java. Its CLEAN_EXPIRED_CONSUMEQUEUE also removes the
last file of a queue, whose offsets then begin at 0 again; here that file stays, and so do the offsets.
"""

from collections.abc import Callable

from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.old_files import OldFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.kernel.work import Work
from libramq.message.names import is_light, is_system_topic
from libramq.rpc.outcome import HOLD, SUCCESS, Outcome, Reply
from libramq.rpc.request import Request, serves


class CleaningRequests:
    """The processor of these requests. answer: sends a reply after a cleaning."""

    def __init__(
        self,
        files: BrokerFiles,
        offsets: OffsetCommits,
        old_files: OldFiles,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._store, self._topics = files.store, files.tables.topics
        self._offsets = offsets
        self._old_files = old_files
        self._answer = answer

    @serves(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_files(self, _: Request) -> Outcome:
        """Begin to delete expired log files at any hour; the reply does not wait for the deletion."""
        self._old_files.delete_expired_now()
        return SUCCESS

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_expired_queues(self, request: Request) -> Outcome:
        """Remove queue files that point to before the log; the reply follows the removal."""

        def ended(failure: BaseException | None) -> None:
            remark = f"the queues cannot be cleaned now: {failure}"
            failed = Reply(ResponseCode.SYSTEM_ERROR, remark)
            self._answer(request, SUCCESS if failure is None else failed)

        self._old_files.clean_queues(ended)
        return HOLD

    @serves(RequestCode.CLEAN_UNUSED_TOPIC)
    def clean_unused_topics(self, _: Request) -> Work[Outcome]:
        """Remove the queues of topics that do not exist."""
        for topic in sorted(self._store.topics()):
            if topic not in self._topics and not is_system_topic(topic) and not is_light(topic):
                try:
                    self._store.delete_topic(topic)
                except OSError as failed:
                    remark = f"the queues of {topic} cannot be removed: {failed}"
                    raise broker_error(ResponseCode.SYSTEM_ERROR, remark) from failed
                self._offsets.remove_topic(topic)
            yield None
        return SUCCESS
