"""NOTIFY_MIN_BROKER_ID_CHANGE, EXCHANGE_BROKER_HA_INFO, GET_BROKER_HA_STATUS: the lowest broker id, the
master's addresses, the progress of its slaves.

    NOTIFY_MIN_BROKER_ID_CHANGE   a name server: a master, or what acts for it, has come or gone
    EXCHANGE_BROKER_HA_INFO       a slave asks its master, or a master that starts informs its slaves
    GET_BROKER_HA_STATUS          the progress of a master's slaves, as `mqadmin haStatus` shows it

With `totalReplicas` of 2 or more Apache's brokers register only after such an exchange.
Upstream: AdminBrokerProcessor.notifyMinBrokerIdChange, updateBrokerHaInfo, getBrokerHaStatus,
BrokerPreOnlineService, DefaultHAService.getRuntimeInfo.
"""

from libramq.broker.cluster.slave import Slave
from libramq.broker.config import BrokerConfig
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.formats.document import encode_body
from libramq.remoting import headers as h
from libramq.remoting.body.administration import HAStatus, SlaveStatus
from libramq.replication.ha_service import HAService
from libramq.rpc.name_server_calls import Master
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.store.message_store import MessageStore
from libramq.transport.address import split_address


class HAInfoRequests:
    """The processor of both requests. slave: None in a master."""

    def __init__(self, config: BrokerConfig, store: MessageStore, slave: Slave | None) -> None:
        self._config = config
        self._slave = slave
        #: MessageStore.getBrokerInitMaxOffset.
        self._end_at_start = store.end

    @serves(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)
    def lowest_id_changed(self, request: Request) -> Outcome:
        """905: have a slave ask its name servers at once, whose answers count; a master ignores it."""
        header: h.LowestIdHeader = request.header
        if self._slave is not None:
            self._slave.ask_for_master(header.min_broker_id, header.offline_broker_addr)
        return SUCCESS

    @serves(RequestCode.EXCHANGE_BROKER_HA_INFO)
    def exchange(self, request: Request) -> Outcome:
        """906: answer with the addresses of this master, or take those of the master that sends them."""
        header: h.HAInfoHeader = request.header
        if header.master_ha_address is not None:
            if self._slave is not None:
                self._slave.master_starts(_master(header))
        elif self._slave is None:
            return Reply(ext=h.encode_header(self._ours()))
        return SUCCESS

    def _ours(self) -> h.HAInfoHeader:
        config = self._config
        ha_address = f"{config.broker_ip}:{config.ha_listen_port}" if config.ha_listen_port else None
        return h.HAInfoHeader(
            master_ha_address=ha_address,
            master_flush_offset=self._end_at_start,
            master_address=config.address,
        )


def _master(header: h.HAInfoHeader) -> Master:
    """Return the addresses of a master; BrokerError if they are none."""
    master = Master(header.master_address or "", header.master_ha_address or "")
    try:
        for address in master:
            split_address(address)
    except ConfigError as error:
        raise broker_error(ResponseCode.INVALID_PARAMETER, str(error)) from None
    return master


class HAStatusRequests:
    """The processor of queries about slaves."""

    def __init__(self, store: MessageStore, ha: HAService) -> None:
        self._store = store
        self._ha = ha

    @serves(RequestCode.GET_BROKER_HA_STATUS)
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
