"""GET_ALL_CONSUMER_OFFSET, GET_ALL_DELAY_OFFSET, SLAVE_PROGRESS and their kin: tables for slaves.

They copy topics and groups by GET_ALL_TOPIC_CONFIG and GET_ALL_SUBSCRIPTIONGROUP_CONFIG.
Upstream: AdminBrokerProcessor.getAllConsumerOffset, getAllDelayOffset; SlaveSynchronize.java.
"""

from collections.abc import Mapping

from libramq.broker.cluster.slave import Slave
from libramq.broker.cluster.slaves_progress import ESCAPING_FIELD
from libramq.broker.files.files import BrokerFiles
from libramq.codes import RequestCode
from libramq.formats import fastjson
from libramq.formats.document import encode_body
from libramq.offsets.commits_ahead import COMMITS_AHEAD
from libramq.remoting.headers import SlaveProgressHeader
from libramq.rpc.outcome import Outcome, Reply, reply_encoded
from libramq.rpc.request import Processor, Request
from libramq.store.retention.deletions import COPIED_AS


class SlaveTables:
    """The processor of a slave's queries for tables. slave: None in a master."""

    def __init__(self, files: BrokerFiles, slave: Slave | None) -> None:
        self._ledger, self._deletions = files.ledger, files.store.deletions
        self._modes, self._delays = files.tables.request_modes, files.delay_answer
        self._slave = slave

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.SLAVE_PROGRESS: self.progress,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
        }

    def consumer_offsets(self, request: Request) -> Outcome:
        """Return all committed offsets; encoded on a thread, as 400,000 take more than a second."""
        ours = {COMMITS_AHEAD: self._ledger.offsets.ahead.file().commits, COPIED_AS: self._deletions.ends()}
        document = {**self._ledger.document(), **{name: table for name, table in ours.items() if table}}
        return reply_encoded(lambda: fastjson.dumps(document))

    def delay_offsets(self, request: Request) -> Outcome:
        """Return the delivered offset of each delay level, and what else a slave has done."""
        return self._delivered(is_moving=self._slave is not None and self._slave.answer_master())

    def progress(self, request: Request) -> Outcome:
        """Return the same to another slave, for which a slave may make way (`Slave.answer_peer`)."""
        header: SlaveProgressHeader = request.header
        return self._delivered(
            is_moving=self._slave is not None and self._slave.answer_peer(header.broker_id)
        )

    def _delivered(self, *, is_moving: bool) -> Reply:
        return Reply(body=encode_body(self._delays()), ext={ESCAPING_FIELD: "1"} if is_moving else None)

    def request_modes(self, request: Request) -> Outcome:
        """Return each group's mode of reading each topic."""
        file = self._modes.file()
        return reply_encoded(lambda: encode_body(file))
