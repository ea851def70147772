"""Requests that a broker passes on to clients (GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY,
CHECK_TRANSACTION_STATE): how long it waits, and what it answers without a reply.

    operator ─► broker ─► the member ─► broker ─► operator
                       └─ no answer in time: CONSUME_MSG_TIMEOUT, or a status without that member

Upstream: AdminBrokerProcessor.callConsumer, Broker2Client.java.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Action, Manage
from libramq.auth.operation import topic as topic_resource
from libramq.auth.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.transactions import half
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, broker_error
from libramq.formats.document import decode_body, encode_body
from libramq.groups.consumer_group import Member
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.ids import decode_offset_id, encode_host
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import encode_record, peek_record
from libramq.remoting import headers as h
from libramq.remoting.body.administration import ConsumerStatus
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.headers import CheckTransactionStateHeader, encode_header
from libramq.rpc.endpoint import Answered
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.rpc.responder import Responder

log = get_logger(__name__)

#: Broker2Client.callClient, and getConsumeStatus.
CALL_MS: Final = 10_000
STATUS_MS: Final = 5_000
#: MQVersion.V3_1_8_SNAPSHOT: older members do not know these requests.
VERSION_WITH_CALLS: Final = 62
#: Ours: above the numbers of probes of silent members, which begin at 1.
FIRST_NUMBER: Final = 1 << 30
#: Ours: members queried for one status.
MEMBERS_QUERIED_MAX: Final = 1_000
#: The operator's signature is not the broker's.
_NOT_PASSED_ON: Final = (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)

#: Takes the members' answers by client id, and returns the operator's; called when all have arrived, or after
#: the time limit.
Collect = Callable[[Mapping[str, Command]], Outcome]


class CalledClient(NamedTuple):
    """A client to which a request is sent."""

    client_id: str
    peer: Connection


@dataclass(eq=False, slots=True)
class _Call(Parked):
    """A request that waits for clients. waiting: the clients that have not answered, by number."""

    request: Request
    waiting: dict[int, CalledClient]
    collect: Collect
    answers: dict[str, Command] = field(default_factory=dict)


class ClientCalls:
    """Passes requests on to members. responder: sends the requests, and the operators' replies.

    otherwise: takes the answers to other requests.
    """

    def __init__(
        self,
        clients: ConsumerClients,
        files: BrokerFiles,
        authorizer: Authorizer,
        kernel: Kernel,
        responder: Responder,
        *,
        otherwise: Answered,
    ) -> None:
        self._otherwise = otherwise
        self._clients = clients
        self.broker_name = clients.broker_name
        self._topics, self._groups, self._store = files.tables.topics, files.tables.groups, files.store
        self._authorizer = authorizer
        self._purgatory = kernel.purgatory
        self._clock = kernel.clock
        self._responder = responder
        self._calls: dict[tuple[Connection, int], _Call] = {}
        self._number = FIRST_NUMBER
        self._turn = 0

    # Operators' requests.

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, request: Request) -> Outcome:
        """Return a member's running info."""
        header: h.RunningInfoHeader = request.header
        ext = _passed_on(request.command)
        return self._call_one(request, header.consumer_group, header.client_id, ext, request.command.body)

    @serves(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, request: Request) -> Outcome:
        """Let a member process one stored message, regardless of its group's offsets."""
        header: h.ConsumeDirectlyHeader = request.header
        record = self._store.record_at(decode_offset_id(header.msg_id or "").physical_offset)
        if record is None:
            return Reply(ResponseCode.SYSTEM_ERROR, f"can not find message by the id: {header.msg_id}")
        head = peek_record(record)
        assert head is not None, "a queue refers to a whole record there"
        viewed = Manage(request.principal, Action.GET, (topic_resource(head.topic),))
        require_permission(self._authorizer, viewed)  # The topic in the request is only a claim.
        ext = _passed_on(request.command) | {"brokerName": self._clients.broker_name}
        topic, group = self._topics.get(header.topic or ""), self._groups.get(header.consumer_group)
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        return self._call_one(request, header.consumer_group, header.client_id or "", ext, record)

    @serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def consumer_status(self, request: Request) -> Outcome:
        """Return the offsets that members of a group hold, all of them or one."""
        header: h.ConsumerStatusHeader = request.header
        group = self._clients.group(header.group)
        wanted = (header.client_addr or "").strip()
        members = list(group.members.values()) if group is not None else []
        if not members:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            return Reply(ResponseCode.SYSTEM_ERROR, remark)
        queried = [member for member in members if not wanted or member.client_id == wanted]
        if not queried:
            return Reply(body=encode_body(ConsumerStatus()))
        if len(queried) > MEMBERS_QUERIED_MAX:
            return Reply(
                ResponseCode.INVALID_PARAMETER,
                f"the group has {len(queried)} members; query one by its client id",
            )
        ext = {"topic": header.topic, "group": header.group}
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        return self.call(request, code, _targets(queried), ext, b"", STATUS_MS, _status_of)

    def _call_one(
        self, request: Request, group_name: str, client_id: str, ext: dict[str, str], body: bytes
    ) -> Outcome:
        group = self._clients.group(group_name)
        members = group.members.values() if group is not None else ()
        member = next((member for member in members if member.client_id == client_id), None)
        who = f"<{group_name}> <{client_id}>"
        if member is None:
            return Reply(ResponseCode.SYSTEM_ERROR, f"The Consumer {who} not online")
        if member.version < VERSION_WITH_CALLS:
            return Reply(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{member.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )

        def collect(answers: Mapping[str, Command]) -> Reply:
            answer = answers.get(client_id)
            if answer is not None:
                return Reply(answer.code, answer.remark, answer.ext, answer.body)
            if member.peer.is_open:
                remark = f"consumer {who} Timeout: no answer in {CALL_MS} ms"
                return Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
            remark = f"invoke consumer {who} Exception: its connection ended"
            return Reply(ResponseCode.SYSTEM_ERROR, remark)

        code = RequestCode(request.command.code)
        return self.call(request, code, _targets([member]), ext, body, CALL_MS, collect)

    # Calls.

    def subscriber(self, group_name: str, topic: str, asking: Connection) -> Member[Connection] | None:
        """Return a member of a group that subscribes to a topic, but not the requesting one."""
        group = self._clients.group(group_name)
        members = group.members.values() if group is not None else ()
        found = [
            each
            for each in members
            if topic in each.subscriptions and each.peer is not asking and each.version >= VERSION_WITH_CALLS
        ]
        self._turn += 1
        return found[self._turn % len(found)] if found else None

    def call(
        self,
        request: Request,
        code: RequestCode,
        targets: Sequence[CalledClient],
        ext: dict[str, str],
        body: bytes,
        timeout_ms: int,
        collect: Collect,
    ) -> Outcome:
        """Send a request to clients, and hold the original request until they have answered."""
        waiting: dict[int, CalledClient] = {}
        for target in targets:
            self._number = self._number + 1 if self._number < (1 << 31) - 1 else FIRST_NUMBER
            waiting[self._number] = target
        call = _Call(request.peer, request, waiting, collect)
        if not self._purgatory.has_room(request.peer):
            raise broker_error(ResponseCode.SYSTEM_BUSY, "too many requests wait; try again")
        request.command = msgspec.structs.replace(request.command, ext={}, body=b"")
        self._purgatory.park(call, self._clock.monotonic_ms() + timeout_ms, self._reply, self._forget)
        for number, target in waiting.items():
            self._calls[target.peer, number] = call
        for number, target in waiting.items():
            self._responder.ask(target.peer, Command(code=code, opaque=number, ext=ext, body=body))
        return HOLD

    def answered(self, connection: Connection, answer: Command, now_ms: MonotonicMs) -> None:
        """Handle a member's answer to a request of ours, or pass it on."""
        if answer.opaque < FIRST_NUMBER:
            self._otherwise(connection, answer, now_ms)
            return
        call = self._calls.pop((connection, answer.opaque), None)
        if call is not None:
            target = call.waiting.pop(answer.opaque)
            call.answers[target.client_id] = answer
            self._reply_to_all_answers(call)

    def connection_ended(self, connection: Connection) -> None:
        """Give up the requests to a member that has left."""
        for key, call in [item for item in self._calls.items() if item[0][0] is connection]:
            del self._calls[key]
            del call.waiting[key[1]]
            self._reply_to_all_answers(call)

    def _forget(self, call: _Call) -> None:
        """Ignore later answers: the operator has a reply, or has left."""
        for number, target in call.waiting.items():
            self._calls.pop((target.peer, number), None)

    def _reply(self, call: _Call) -> None:
        """Reply to an operator with the answers received so far."""
        try:
            outcome = call.collect(call.answers)
        except LibraError as error:  # An answer is malformed, or the operation that follows is refused.
            outcome = Reply(ResponseCode.SYSTEM_ERROR, str(error))
        self._responder.answer(call.request, outcome)

    def _reply_to_all_answers(self, call: _Call) -> None:
        if not call.waiting and self._purgatory.release(call):
            self._reply(call)


def _targets(members: Iterable[Member[Connection]]) -> list[CalledClient]:
    return [CalledClient(member.client_id, member.peer) for member in members]


def _passed_on(command: Command) -> dict[str, str]:
    return {name: value for name, value in command.ext.items() if name not in _NOT_PASSED_ON}


def _status_of(answers: Mapping[str, Command]) -> Reply:
    table: dict[str, dict[MessageQueue, int]] = {}
    for client_id, answer in answers.items():
        if answer.code == ResponseCode.SUCCESS:
            try:
                table[client_id] = decode_body(answer.body, ConsumerStatus).message_queue_table
            except LibraError as error:
                log.warning("a member's status cannot be read", client=client_id, reason=str(error))
    return Reply(body=encode_body(ConsumerStatus(consumer_table=table)))


def check_request(message: MessageExt, broker_name: str) -> Command:
    """Return the request that asks a producer about a half message, including that message."""
    key = message.properties.get(p.UNIQ_KEY)
    header = CheckTransactionStateHeader(
        tran_state_table_offset=message.queue_offset,
        commit_log_offset=message.physical_offset,
        topic=names.TRANS_HALF_TOPIC,
        msg_id=key,
        transaction_id=key,
        offset_msg_id=message.offset_id,
        bname=broker_name,
    )
    queue_id = half.real_queue_id(message)
    assert queue_id is not None
    record = encode_record(  # The body as stored, possibly compressed.
        topic=message.properties[p.REAL_TOPIC],
        queue_id=queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        body=message.body,
        properties=p.encode_properties(message.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=encode_host(message.born_host),
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=encode_host(message.store_host),
        reconsume_times=message.reconsume_times,
    )
    code = RequestCode.CHECK_TRANSACTION_STATE
    return Command(code=code, flag=FLAG_ONEWAY, ext=encode_header(header), body=record)
