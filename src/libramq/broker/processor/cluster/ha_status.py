"""GET_BROKER_HA_STATUS: the progress of a master's slaves, as `mqadmin haStatus` shows it.

Upstream: AdminBrokerProcessor.getBrokerHaStatus, DefaultHAService.getRuntimeInfo.
"""

from collections.abc import Mapping

from libramq.codes import RequestCode
from libramq.formats.document import encode_body
from libramq.remoting.body.replication import HAStatus, SlaveStatus
from libramq.replication.ha_service import HAService
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.store.message_store import MessageStore


class HAStatusRequests:
    """The processor of queries about slaves."""

    def __init__(self, store: MessageStore, ha: HAService) -> None:
        self._store = store
        self._ha = ha

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {RequestCode.GET_BROKER_HA_STATUS: self.status}

    def status(self, request: Request) -> Outcome:
        """Return the connected slaves."""
        end = self._store.end
        slaves = [
            SlaveStatus(
                addr=slave.connection.address,
                slave_ack_offset=slave.acknowledged,
                diff=end - slave.acknowledged,
                in_sync=slave.is_in_sync(end, request.monotonic_ms),
                transferred_byte_in_second=slave.bytes_per_second(request.monotonic_ms),
                transfer_from_where=slave.sent,
            )
            for slave in self._ha.slaves()
        ]
        status = HAStatus(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
            ha_connection_info=slaves,
        )
        return Reply(body=encode_body(status))
