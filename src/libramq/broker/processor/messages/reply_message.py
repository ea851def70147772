"""SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2: replies to requests that clients sent as messages. They are
passed on to the requester, and stored if configured.

    requester ─ message with REPLY_TO_CLIENT ─► broker ─► replier
    requester ◄── PUSH_REPLY_MESSAGE_TO_CLIENT ── broker ◄── SEND_REPLY_MESSAGE ─ replier

The replier's answer waits for the requester's: code 0 means that the requester has the reply. The reply is
also stored in the topic `<cluster>_REPLY_TOPIC`, whether or not the requester could be reached; no client
reads it there. Its sender needs permission to send to that topic, regardless of the topic that the reply
names, because a reply reaches clients of other users. Upstream: ReplyMessageProcessor.java.
"""

from collections.abc import Mapping

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Send
from libramq.broker.messages.sending import Prepared
from libramq.broker.processor.client_calls import CALL_MS, CalledClient, ClientCalls
from libramq.broker.processor.messages.send_message import SendMessage
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection
from libramq.message import properties as p
from libramq.message import stored_properties as text_properties
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.remoting.headers import PushReplyHeader
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request, serves


class ReplyMessages:
    """The processor of replies. topic: of replies; address: this broker's; stores: store replies, too."""

    def __init__(
        self,
        sends: SendMessage,
        producers: ProducerGroups[Connection],
        calls: ClientCalls,
        authorizer: Authorizer,
        *,
        topic: str,
        address: str,
        stores: bool,
    ) -> None:
        self._sends = sends
        self._producers = producers
        self._calls = calls
        self._authorizer = authorizer
        self._topic = topic
        self._address = address
        self._stores = stores

    @serves(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    def reply(self, request: Request) -> Outcome:
        """Pass a reply on to the client that waits for it, and store it."""
        header: h.SendMessageHeader = request.header
        require_permission(self._authorizer, Send(request.principal, self._topic))
        if header.batch:
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "a reply cannot be a batch")
        reply = self._sends.prepare_reply(request)
        client_id = text_properties.find(header.properties or "", p.REPLY_TO_CLIENT)
        if client_id is None:
            remark = f"reply message properties[{p.REPLY_TO_CLIENT}] is null"
            return Reply(ResponseCode.SYSTEM_ERROR, remark, self._store(reply, request))
        peer = self._producers.connection(client_id)
        if peer is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            return Reply(ResponseCode.SYSTEM_ERROR, remark, self._store(reply, request))
        ext: dict[str, str] = {}

        def collect(answers: Mapping[str, Command]) -> Reply:
            answer = answers.get(client_id)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return Reply(ext=ext)
            return Reply(ResponseCode.SYSTEM_ERROR, f"push reply message to {client_id} fail.", ext)

        code, pushed = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed(header, request)
        body = request.command.body
        outcome = self._calls.call(
            request, code, [CalledClient(client_id, peer)], pushed, body, CALL_MS, collect
        )
        ext |= self._store(reply, request)  # After the call, which raises if too many requests wait.
        return outcome

    def _store(self, reply: Prepared, request: Request) -> dict[str, str]:
        return self._sends.append_reply(reply, request.monotonic_ms, stores=self._stores)

    def _pushed(self, header: h.SendMessageHeader, request: Request) -> dict[str, str]:
        text = text_properties.with_property(
            header.properties or "", p.PUSH_REPLY_TIME, str(int(request.wall_ms))
        )
        return h.encode_header(
            PushReplyHeader(
                producer_group=header.producer_group,
                topic=header.topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=header.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                born_host=request.peer.address,
                store_host=self._address,
                store_timestamp=int(request.wall_ms),
                properties=text,
                reconsume_times=header.reconsume_times,
                unit_mode=header.unit_mode,
            )
        )
