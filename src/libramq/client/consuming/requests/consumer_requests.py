"""The requests of a consumer to brokers: one for each effect of its core that needs a broker.

Each response goes back to the part of the core that asked for it.
Upstream: impl/MQClientAPIImpl.java.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.effects import Performers
from libramq.client.consuming.handling.send_back import INNER_PRODUCER, retry_copy, send_back_header
from libramq.client.consuming.ownership.ownership import OFFSET_TIMEOUT_MS
from libramq.client.consuming.pulling.pulled_records import PulledRecords
from libramq.client.consuming.push_consumer_core import PushConsumerCore
from libramq.client.producing.send_request import send_call
from libramq.clock import Clock, MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, FilterRefused, LibraError
from libramq.filter.sql import SQL92
from libramq.filter.subscription import Selector, kind_of
from libramq.filter.tag import EVERYTHING
from libramq.logs import get_logger
from libramq.message import properties as names
from libramq.message.inner_batch import decode_pulled
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import damaged_records
from libramq.remoting.headers import PullMessageHeader
from libramq.rpc import broker_calls as calls
from libramq.rpc import group_calls
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: DefaultMQPushConsumerImpl: how long the broker may hold a pull, and how long we wait for it.
HOLD_MS: Final = 15_000
PULL_TIMEOUT_MS: Final = 30_000
#: sendMessageBack.
SEND_BACK_TIMEOUT_MS: Final = 5_000
#: The answers to a pull that its expression is the cause of. SYSTEM_ERROR: enablePropertyFilter is off.
_FILTER_REFUSED: Final = frozenset({
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.FILTER_DATA_NOT_EXIST,
})  # fmt: skip


def decoded_messages(effect: fx.Pull, reply: calls.PullReply) -> Sequence[MessageExt]:
    """Return the messages of a reply, with the properties that Java's client adds: the queue's bounds.

    Those whose bodies are stored damaged are delivered all the same, as by Java's client: if the reply were
    refused for their sake, nobody would read their queue any more.
    """
    queue, body, check_crc = effect.queue, reply.body, not effect.accepts_damaged
    if not check_crc:
        for head in damaged_records(body):
            log.error(
                "a message is delivered as it is stored: its body does not match its checksum",
                queue=str(queue),
                offset=head.queue_offset,
            )
    if effect.as_records:
        return PulledRecords.of(body, queue.broker_name, effect.offset, check_crc=check_crc)
    bounds = {names.MIN_OFFSET: str(reply.min_offset), names.MAX_OFFSET: str(reply.max_offset)}
    return decode_pulled(
        body, effect.offset, check_crc=check_crc, broker_name=queue.broker_name, added=bounds
    )


class ConsumerRequests:
    """Sends the requests: one method per effect."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        core: PushConsumerCore,
        clock: Clock,
        ask: Callable[[fx.Ask[Any]], None],
    ) -> None:
        self._settings = settings
        self._subscriptions = subscriptions
        self._core = core
        self._clock = clock
        self._ask = ask
        #: Why the last commit of a queue failed.
        self._commits_failed: dict[MessageQueue, str] = {}

    def performers(self) -> Performers:
        """Return the method that sends the request of each effect."""
        return {
            fx.Pull: self._pull,
            fx.CommitOffset: self._commit_offset,
            fx.SendBack: self._send_back,
            fx.SendCopy: self._send_copy,
        }

    def _pull(self, effect: fx.Pull) -> None:
        queue = effect.queue
        selector = self._subscriptions.get(queue.topic, EVERYTHING)
        kind = kind_of(selector)
        is_by_sql = kind == SQL92
        header = PullMessageHeader(
            consumer_group=self._settings.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=effect.offset,
            max_msg_nums=effect.count_max,
            # Without it brokers filter by their group's newest heartbeat, which may be another member's.
            sys_flag=calls.PULL_SUSPEND | calls.PULL_SUBSCRIPTION,
            subscription=selector.expression,
            commit_offset=0,
            suspend_timeout_millis=HOLD_MS,
            max_msg_bytes=self._settings.pull_batch_bytes,
            expression_type=kind,
            sub_version=0,
            lb_member=effect.claim.member if effect.claim else None,
            lb_queue_epoch=effect.claim.epoch if effect.claim else None,
            lb_topic_start=effect.topic_start or None,
            lb_takes_batches=effect.takes_batches or None,
        )

        def answered(outcome: calls.PullReply | LibraError, now_ms: MonotonicMs) -> fx.Effects:
            messages: Sequence[MessageExt] = ()
            if not isinstance(outcome, LibraError) and outcome.code == ResponseCode.SUCCESS:
                try:
                    messages = decoded_messages(effect, outcome)
                except LibraError as error:
                    outcome = error
            elif is_by_sql and isinstance(outcome, BrokerError) and outcome.response_code in _FILTER_REFUSED:
                outcome = FilterRefused(outcome.response_code, outcome.remark, where=effect.address)
            self._core.troubles.answered(f"topic {queue.topic}", outcome)
            return self._core.own.pulled(
                queue, effect.generation, outcome, messages, now_ms, claim=effect.claim, number=effect.number
            )

        self._ask(fx.Ask(effect.address, calls.pull_message(header), answered, PULL_TIMEOUT_MS))

    def _send_back(self, effect: fx.SendBack) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> fx.Effects:
            if outcome is not None:
                log.warning("send-back failed; a copy is sent instead", reason=str(outcome))
            return self._core.consumption.sent_back(effect, now_ms, ok=outcome is None)

        header = send_back_header(
            effect.message,
            self._settings,
            effect.delay_level,
            is_counted=effect.is_counted,
            pass_on_ms=effect.pass_on_ms,
            error=effect.delivery.error,
        )
        timeout_ms = effect.pass_on_ms + SEND_BACK_TIMEOUT_MS
        self._ask(fx.Ask(effect.address, calls.send_back(header), answered, timeout_ms))

    def _send_copy(self, effect: fx.SendCopy) -> None:
        def answered(outcome: calls.SendReply | LibraError, now_ms: MonotonicMs) -> fx.Effects:
            ok = not isinstance(outcome, LibraError)
            return self._core.consumption.copy_sent(effect, now_ms, ok=ok)

        prepared = retry_copy(effect.message, self._settings, effect.delay_level, error=effect.delivery.error)
        call = send_call(prepared, effect.queue, INNER_PRODUCER, born_ms=self._clock.wall_ms())
        self._ask(fx.Ask(effect.address, call, answered, SEND_BACK_TIMEOUT_MS))

    def _commit_offset(self, effect: fx.CommitOffset) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> fx.Effects:
            if outcome is None:
                self._commits_failed.pop(effect.queue, None)
            elif self._commits_failed.get(effect.queue) != str(outcome):  # It is repeated ten times a second.
                self._commits_failed[effect.queue] = str(outcome)
                log_failed_request(log, "commit failed", outcome, queue=str(effect.queue))
            return self._core.committed(effect, outcome, now_ms)

        call = calls.update_consumer_offset(
            self._settings.group,
            effect.queue,
            effect.offset,
            member=effect.claim.member if effect.claim else None,
            epoch=effect.claim.epoch if effect.claim else None,
        )
        self._ask(fx.Ask(effect.address, call, answered, OFFSET_TIMEOUT_MS))


#: Ours: a lost release is requested again by the response to the next poll.
RELEASE_TIMEOUT_MS: Final = 3_000


class MemberRequests:
    """Sends the requests: one method per effect."""

    def __init__(self, group: str, core: PushConsumerCore, ask: Callable[[fx.Ask[Any]], None]) -> None:
        self._group = group
        self._core = core
        self._ask = ask

    def performers(self) -> Performers:
        """Return the method that sends the request of each effect."""
        return {
            fx.PollGroup: self._poll,
            fx.OpenQueue: self._open,
            fx.ReleaseQueues: self._release,
            fx.FindGroup: self._find,
            fx.JoinGroup: self._join,
            fx.LeaveGroup: self._leave,
        }

    def _find(self, effect: fx.FindGroup) -> None:
        self._ask(
            fx.Ask(
                effect.address,
                group_calls.find_group(self._group),
                partial(self._core.coordination.found, effect),
                effect.timeout_ms,
            )
        )

    def _join(self, effect: fx.JoinGroup) -> None:
        self._ask(
            fx.Ask(
                effect.address,
                group_calls.join_group(effect.header, effect.body),
                partial(self._core.coordination.joined, effect),
                effect.timeout_ms,
            )
        )

    def _poll(self, effect: fx.PollGroup) -> None:
        self._ask(
            fx.Ask(
                effect.address,
                group_calls.poll_group(self._group, effect.member, effect.epoch, effect.body, effect.hold_ms),
                partial(self._core.coordination.polled, effect),
                effect.timeout_ms,
                takes_late=True,
            )
        )

    def _release(self, effect: fx.ReleaseQueues) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> fx.Effects:
            if outcome is not None:
                log_failed_request(log, "queues not released", outcome, queues=len(effect.queues))
            return []

        call = group_calls.release_queues(
            self._group,
            effect.member,
            effect.queues,
            uncommitted=effect.uncommitted,
            leaving=effect.leaving,
            slow=effect.slow,
        )
        self._ask(fx.Ask(effect.address, call, answered, RELEASE_TIMEOUT_MS))

    def _leave(self, effect: fx.LeaveGroup) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> fx.Effects:
            if outcome is not None:  # Our session will expire.
                log.warning("the coordinator could not be notified of our leaving", reason=str(outcome))
            return self._core.group_left()

        call = group_calls.leave_group(self._group, effect.member, effect.reason, effect.queues)
        self._ask(fx.Ask(effect.address, call, answered, LEAVE_TIMEOUT_MS))

    def _open(self, effect: fx.OpenQueue) -> None:
        self._ask(
            fx.Ask(
                effect.address,
                group_calls.open_queue(self._group, effect.queue, effect.claim.member, effect.claim.epoch),
                partial(self._core.claims.opened, effect),
                OFFSET_TIMEOUT_MS,
            )
        )
