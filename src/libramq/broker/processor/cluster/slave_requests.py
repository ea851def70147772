"""Requests at a slave: which it refuses, and with which code; what it serves while it acts for its master,
and what it forwards; its tables for other brokers; and the HA addresses and states that a master and its
slaves exchange.

    sends, messages sent back                SYSTEM_BUSY, as clients then turn to another broker
    changes of topics, groups and offsets    SYSTEM_ERROR, for the operator
    recalls of timer messages                SLAVE_NOT_AVAILABLE, by `timer_requests.py`
    pulls, unless slaveReadEnable            SYSTEM_BUSY
    openings, coordinators                   SYSTEM_BUSY; ours: a slave must not own any of these
    locks, pops, assignments                 served by an acting master, else SYSTEM_BUSY

A slave serves no ordered pops, because blocked queues would have to be written. It refuses a group that it
has not copied yet, which would differ from its master's. Acknowledgements of the master's pops go to the
slave's account (`pop/passed_on.py`): it does not pass these messages on, and its master acknowledges them
when it is back. Apache's acting slave stores them at another master, which lacks the returning master's check
points (AckMessageProcessor.appendAck).

Name servers may have lost a master that the slave still copies. Then routes name the slave, which must not
act: two brokers would hand out the same messages. It forwards locks and pops to its master.

`Replicas` serves the requests between masters, slaves and tools:

    NOTIFY_MIN_BROKER_ID_CHANGE   a name server: a master, or a slave acting for it, has come or gone
    EXCHANGE_BROKER_HA_INFO       a slave asks its master, or a master that starts informs its slaves
    GET_BROKER_HA_STATUS          the progress of a master's slaves, as `mqadmin haStatus` shows it

With `totalReplicas` of 2 or more, Apache's brokers register only after such an exchange.

Upstream: SendMessageProcessor.rejectRequest, PullMessageProcessor.rejectRequest,
AdminBrokerProcessor.validateSlave, resetOffsetInner, notifyMinBrokerIdChange, updateBrokerHaInfo,
getBrokerHaStatus, BrokerPreOnlineService, DefaultHAService.getRuntimeInfo.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.auth.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from libramq.broker.cluster.returning_master import ESCAPING_FIELD
from libramq.broker.cluster.slave import Slave
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.pop.pops_at_slave import PopsAtSlave
from libramq.broker.processor.messages.ack_message import ACKS_MAX, ack_set
from libramq.catalog.group_table import GroupTable
from libramq.catalog.request_modes import RequestModes
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.errors import ConfigError, LibraError, broker_error
from libramq.formats import fastjson
from libramq.formats.document import encode_body
from libramq.formats.tables import MODE_POP
from libramq.offsets.commits_ahead import COMMITS_AHEAD
from libramq.pop.check_point import AckSet, Key
from libramq.pop.handle import ORDERED, Handle, decode_handle
from libramq.remoting import headers as h
from libramq.remoting.body.administration import HAStatus, SlaveStatus
from libramq.remoting.body.consumers import QueryAssignmentBody
from libramq.remoting.body.pop import BatchAckBody
from libramq.remoting.command import Command
from libramq.replication.ha_service import HAService
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import Master
from libramq.rpc.outcome import HOLD, SUCCESS, Outcome, Reply, reply_encoded
from libramq.rpc.request import Request, serves
from libramq.rpc.request_table import REQUESTS, AtSlave
from libramq.store.deletions import COPIED_AS
from libramq.transport.address import split_address
from libramq.waits.held_pulls import SUSPEND_MS_MAX

_BUSY: Final = Reply(
    ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while: this is a slave"
)
_UNREADABLE: Final = Reply(
    ResponseCode.SYSTEM_BUSY,
    "[REJECTREQUEST]system busy, start flow control for a while: slaveReadEnable is false here",
)
_UNCHANGEABLE: Final = Reply(
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
)
_REFUSALS: Final = {
    AtSlave.SERVE_IF_READABLE: _UNREADABLE,
    AtSlave.REFUSE_BUSY: _BUSY,
    AtSlave.REFUSE_CHANGE: _UNCHANGEABLE,
    AtSlave.REFUSE_RESET: Reply(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker"),
}
#: Ours: forwarded requests under way.
FORWARDED_MAX: Final = 1_000
#: Ours: how long the master may take for a forwarded request, in addition to holding a pop.
FORWARDED_MS: Final = 3_000
#: Credentials of the sender, which this slave has authorised; the slave signs for itself.
_NOT_FORWARDED: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})


class SlaveRequests:
    """Decides which requests a slave answers itself. pops: those made here. answer: sends delayed replies."""

    def __init__(
        self,
        slave: Slave,
        pops: PopsAtSlave,
        groups: GroupTable,
        modes: RequestModes,
        *,
        is_readable: bool,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._slave = slave
        self._pops = pops
        self._groups = groups
        self._modes = modes
        self._is_readable = is_readable
        self._answer = answer
        self._under_way = 0
        self._while_acting: dict[int, Callable[[Request], Outcome | None]] = {
            R.LOCK_BATCH_MQ: lambda _: None if slave.is_acting else _BUSY,
            R.POP_MESSAGE: self._pop,
            R.CHANGE_MESSAGE_INVISIBLETIME: self._change,
            R.ACK_MESSAGE: self._acknowledge,
            R.BATCH_ACK_MESSAGE: self._acknowledge_batch,
            R.QUERY_ASSIGNMENT: self._assign,
        }

    def outcome(self, request: Request) -> Outcome | None:
        """Return the outcome of a request; None if a slave serves it as a master does."""
        code = request.command.code
        row = REQUESTS[code]
        if row.is_forwarded:
            if self._slave.is_named_for_master:
                return self._forward(request)
            self._slave.look_for_master()
        if row.at_slave is AtSlave.SERVE_WHILE_ACTING:
            return self._while_acting[code](request)
        if row.at_slave is AtSlave.SERVE_IF_READABLE and self._is_readable:
            return None
        return _REFUSALS.get(row.at_slave)

    # Requests that only an acting master serves.

    def _pop(self, request: Request) -> Outcome | None:
        header: h.PopMessageHeader = request.header
        is_served = self._pops.may_serve() and not header.order and header.consumer_group in self._groups
        return None if is_served else _BUSY

    def _change(self, request: Request) -> Outcome | None:
        header: h.ChangeInvisibleTimeHeader = request.header
        return None if self._pops.has(_key(header, decode_handle(header.extra_info))) else _BUSY

    def _assign(self, request: Request) -> Outcome | None:
        """Assign popped queues; pulled queues are assigned by a coordinator, which a slave is not."""
        if not (self._pops.may_serve() or self._slave.is_named_for_master):
            return _BUSY
        body: QueryAssignmentBody = request.body
        mode = self._modes.get(body.topic, body.consumer_group)
        return None if mode is not None and mode.mode == MODE_POP else _BUSY

    def _acknowledge(self, request: Request) -> Outcome:
        """Take the acknowledgement of one message."""
        header: h.AckMessageHeader = request.header
        handle = decode_handle(header.extra_info)
        distance = header.offset - handle.start_offset
        if handle.revive_queue == ORDERED or not 0 <= distance < 8 * ACKS_MAX:
            return _BUSY
        bit_set = (1 << distance).to_bytes(distance // 8 + 1, "little")
        return self._take(request, [(_key(header, handle), bit_set)])

    def _acknowledge_batch(self, request: Request) -> Outcome:
        """Take acknowledgements of several check points' messages."""
        body: BatchAckBody = request.body
        if len(body.acks) > ACKS_MAX:
            raise broker_error(ResponseCode.INVALID_PARAMETER, f"{len(body.acks)} check points; {ACKS_MAX}")
        if any(ack.revive_queue == ORDERED for ack in body.acks):
            return _BUSY
        return self._take(request, [ack_set(ack) for ack in body.acks])

    def _take(self, request: Request, done: Sequence[AckSet]) -> Outcome:
        """Take acknowledgements of pops made here, and of the master's pops."""
        of_master = [each for each in done if not self._pops.has(each[0])]
        if len(of_master) < len(done):
            self._pops.acknowledge(done, request.now)
        escaping = self._slave.escaping
        is_taken = not of_master or (escaping is not None and escaping.acknowledge(of_master))
        return SUCCESS if is_taken else _BUSY

    # Requests for the master.

    def _forward(self, request: Request) -> Outcome:
        if self._under_way >= FORWARDED_MAX:
            return _BUSY
        command = request.command
        hold_ms = 0
        if command.code == R.POP_MESSAGE:
            hold_ms = min(max(request.header.poll_time, 0), SUSPEND_MS_MAX)
        ext = {name: value for name, value in command.ext.items() if name not in _NOT_FORWARDED}
        call = Call(R(command.code), lambda reply: reply, ext, command.body, accepts=frozenset(ResponseCode))
        self._under_way += 1
        self._slave.ask_master(call, partial(self._forwarded, request), FORWARDED_MS + hold_ms)
        return HOLD

    def _forwarded(self, request: Request, reply: Command | LibraError) -> None:
        self._under_way -= 1
        if isinstance(reply, Command):
            self._answer(request, Reply(reply.code, reply.remark, reply.ext, reply.body))
        else:
            self._answer(request, Reply(ResponseCode.SYSTEM_BUSY, f"this is a slave; its master: {reply}"))


def _key(header: h.AckMessageHeader, handle: Handle) -> Key:
    return header.topic, header.consumer_group, header.queue_id, handle.start_offset, handle.pop_time_ms


class Replicas:
    """The processor of requests between a master, its slaves and tools. slave: None in a master.

    Topics and groups are copied by GET_ALL_TOPIC_CONFIG and GET_ALL_SUBSCRIPTIONGROUP_CONFIG.
    Upstream: AdminBrokerProcessor.getAllConsumerOffset, getAllDelayOffset; SlaveSynchronize.java.
    """

    def __init__(self, config: BrokerConfig, files: BrokerFiles, ha: HAService, slave: Slave | None) -> None:
        self._config = config
        self._store, self._ledger = files.store, files.ledger
        self._modes, self._delays = files.tables.request_modes, files.delay_answer
        self._ha = ha
        self._slave = slave
        #: MessageStore.getBrokerInitMaxOffset.
        self._end_at_start = files.store.end

    @serves(R.GET_ALL_CONSUMER_OFFSET)
    def consumer_offsets(self, request: Request) -> Outcome:
        """Return all committed offsets; encoded on a thread, as 400,000 take more than a second."""
        ours = {
            COMMITS_AHEAD: self._ledger.offsets.ahead.file().commits,
            COPIED_AS: self._store.deletions.ends(),
        }
        document = {**self._ledger.document(), **{name: table for name, table in ours.items() if table}}
        return reply_encoded(lambda: fastjson.dumps(document))

    @serves(R.GET_ALL_DELAY_OFFSET)
    def delay_offsets(self, request: Request) -> Outcome:
        """Return each delay level's delivered offset, and a slave's other progress."""
        return self._delivered(is_moving=self._slave is not None and self._slave.answer_master())

    @serves(R.SLAVE_PROGRESS)
    def progress(self, request: Request) -> Outcome:
        """Return the same to another slave, for which this slave may make way (`Slave.answer_peer`)."""
        header: h.SlaveProgressHeader = request.header
        return self._delivered(
            is_moving=self._slave is not None and self._slave.answer_peer(header.broker_id)
        )

    def _delivered(self, *, is_moving: bool) -> Reply:
        return Reply(body=encode_body(self._delays()), ext={ESCAPING_FIELD: "1"} if is_moving else None)

    @serves(R.GET_ALL_MESSAGE_REQUEST_MODE)
    def request_modes(self, request: Request) -> Outcome:
        """Return each group's mode of reading each topic."""
        file = self._modes.file()
        return reply_encoded(lambda: encode_body(file))

    @serves(R.NOTIFY_MIN_BROKER_ID_CHANGE)
    def lowest_id_changed(self, request: Request) -> Outcome:
        """905: let a slave query its name servers at once, whose answers count; a master ignores it."""
        header: h.LowestIdHeader = request.header
        if self._slave is not None:
            self._slave.ask_for_master(header.min_broker_id, header.offline_broker_addr)
        return SUCCESS

    @serves(R.EXCHANGE_BROKER_HA_INFO)
    def exchange(self, request: Request) -> Outcome:
        """906: answer with the addresses of this master, or take those of the master that sends them."""
        header: h.HAInfoHeader = request.header
        if header.master_ha_address is not None:
            if self._slave is not None:
                self._slave.master_starts(_master(header))
        elif self._slave is None:
            return Reply(ext=h.encode_header(self._ours()))
        return SUCCESS

    @serves(R.GET_BROKER_HA_STATUS)
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

    def _ours(self) -> h.HAInfoHeader:
        config = self._config
        ha_address = f"{config.broker_ip}:{config.ha_listen_port}" if config.ha_listen_port else None
        return h.HAInfoHeader(
            master_ha_address=ha_address,
            master_flush_offset=self._end_at_start,
            master_address=config.address,
        )


def _master(header: h.HAInfoHeader) -> Master:
    """Return the addresses of a master; raises BrokerError if they are invalid."""
    master = Master(header.master_address or "", header.master_ha_address or "")
    try:
        for address in master:
            split_address(address)
    except ConfigError as error:
        raise broker_error(ResponseCode.INVALID_PARAMETER, str(error)) from None
    return master
