"""A broker without sockets: a real store, a manual clock, peers that record everything sent to them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from libramq.auth.authorizer import ALLOW_ALL, Authenticator, Authorizer
from libramq.broker.broker import Broker
from libramq.broker.cluster.name_server_list import Fetch
from libramq.broker.config import BrokerConfig
from libramq.broker.machine import Machine
from libramq.codes import RequestCode
from libramq.filter.subscription import SubscriptionData
from libramq.formats.document import encode_body
from libramq.kernel.effect import Ask, Effect, Thread
from libramq.message import MessageExt, decode_records
from libramq.message.properties import properties_to_text
from libramq.remoting import headers as h
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.rpc.broker_calls import PULL_SUBSCRIPTION, PULL_SUSPEND
from libramq.rpc.question import Question
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Dialer, Seams
from libramq.store.flush import run_flush
from tests.fakes import FakePeer, ManualClock, ManualThreads, ManualTimers, raise_it
from tests.store.stores import Disk, plan_flush


class QuestionKeeper(Performer):
    """A performer that keeps its engine's questions for a test to answer."""

    asked: list[Question]

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.asked = []

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Ask):
            self.asked.append(effect.question)
        else:
            super()._do(effect)


class Conversation:
    """A broker under its performer, one step at a time."""

    def __init__(
        self,
        root: Path,
        *,
        clock: ManualClock | None = None,
        authorizer: Authorizer = ALLOW_ALL,
        authenticator: Authenticator | None = None,
        dialer: Dialer | None = None,
        fetch_name_servers: Fetch | None = None,
        **options: object,
    ) -> None:
        defaults: dict[str, object] = {
            "store_path": str(root),
            "commit_log_file_bytes": 1 << 20,
            "consume_queue_file_bytes": 2_000,
            "default_topic_queue_nums": 4,
        }
        self.clock = clock or ManualClock()
        self.disk = Disk()
        self.config = BrokerConfig(**(defaults | options))  # type: ignore[arg-type]
        self.broker = Broker(
            self.config,
            Machine(clock=self.clock, filesystem=self.disk, randomness=random.Random(7), process_id=1),
            authorizer=authorizer,
            authenticator=authenticator,
            fetch_name_servers=fetch_name_servers,
        )
        self.threads = ManualThreads()
        self.performer = QuestionKeeper(
            self.broker.engine,
            Seams(remotes=None, timers=ManualTimers(), threads=self.threads, dialer=dialer),
            monotonic_ms=self.clock.monotonic_ms,
            listen=lambda listening: None,
            failed=raise_it,
        )
        self.performer.follow()
        self.opaque = self.turns = 0
        self.is_killed = False

    # Events from outside.

    def advance(self, milliseconds: int) -> None:
        """Let time pass: held pulls expire, due messages are delivered, silent members leave."""
        end_ms = self.clock.monotonic_ms() + milliseconds
        engine = self.broker.engine
        while (due_ms := engine.next_due_ms) is not None and due_ms <= end_ms:
            self.clock.advance(max(0, due_ms - self.clock.monotonic_ms()))
            self.tick()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def extend_deadlines(self, milliseconds: int) -> None:
        """Stall the process for a while, then let it continue: timers that fell due meanwhile fire first."""
        self.clock.advance(milliseconds)
        self.tick()

    def tick(self) -> None:
        """Run the work due now."""
        self.broker.engine.tick()
        self.performer.follow()

    def coordinate(self) -> None:
        """Run due work until none is left."""
        engine = self.broker.engine
        self.performer.follow()
        while (due_ms := engine.next_due_ms) is not None and due_ms <= self.clock.monotonic_ms():
            self.tick()

    def flush(self) -> None:
        """Flush everything to the disk, and answer the requests that waited for that."""
        self.threads.run_all(Thread.FLUSH)
        plan = plan_flush(self.broker.store, self.clock.monotonic_ms(), thorough=True)
        if plan is not None:
            run_flush(self.disk, plan)
            self.broker.store.complete_flush(plan)
        self.performer.follow()

    def read_cold(self) -> None:
        """Run the threads' cold reads."""
        self.threads.run_all(Thread.READ)

    def close(self) -> None:
        """Stop the broker, unless it was killed."""
        if not self.is_killed:
            self.broker.close()

    def kill(self) -> None:
        """Kill the process; what it wrote is in the kernel's page cache."""
        self.is_killed = True
        self.broker.store._release()
        self.disk.close_all()

    # Clients' actions.

    def give(self, peer: FakePeer, *commands: Command) -> None:
        """Deliver these commands in one read."""
        self.performer.received(peer, list(commands))

    def command(
        self, code: int, header: h.Header | dict[str, str] | None = None, body: object = b"", *, flag: int = 0
    ) -> Command:
        self.opaque += 1
        ext = header if isinstance(header, dict) else h.encode_header(header) if header is not None else {}
        data = body if isinstance(body, bytes) else encode_body(body)
        return Command(code=code, ext=ext, body=data, opaque=self.opaque, flag=flag)

    def ask(
        self, peer: FakePeer, code: int, header: h.Header | dict[str, str] | None = None, body: object = b""
    ) -> Command:
        """Make a request and return its answer; other commands to the peer stay in its replies."""
        command = self.command(code, header, body)
        self.give(peer, command)
        return find_answer(peer, command) or self.answer_later(peer, command)

    def answer_later(self, peer: FakePeer, command: Command) -> Command:
        """Return the answer to a large request, which needs a thread or several turns."""
        self.turns = 0
        while True:
            self.threads.run_all(Thread.COMPUTE)
            turn = self.performer.turns.timer
            if turn is None:
                if (found := find_answer(peer, command)) is not None:
                    return found
                self.coordinate()  # An operator's cleaning is due at once, and answered when files are gone.
                self.threads.run_all(Thread.DISK)
                return answer(peer, command)
            turn.cancel()
            turn.action()  # type: ignore[attr-defined]
            self.turns += 1

    def tell(self, peer: FakePeer, code: int, header: h.Header | None = None, body: object = b"") -> None:
        """Make a one-way request."""
        self.give(peer, self.command(code, header, body, flag=FLAG_ONEWAY))

    def send(self, peer: FakePeer, topic: str = "T", body: bytes = b"hello", **fields: object) -> Command:
        return self.ask(peer, RequestCode.SEND_MESSAGE_V2, send_header(topic, **fields), body)

    def pull_command(self, group: str = "G", topic: str = "T", **fields: object) -> Command:
        defaults: dict[str, object] = {
            "queue_id": 0,
            "queue_offset": 0,
            "max_msg_nums": 32,
            "sys_flag": PULL_SUSPEND | PULL_SUBSCRIPTION,
            "suspend_timeout_millis": 0,
            "subscription": "*",
        }
        header = h.PullMessageHeader(consumer_group=group, topic=topic, **(defaults | fields))  # type: ignore[arg-type]
        return self.command(RequestCode.PULL_MESSAGE, header)

    def pull(self, peer: FakePeer, group: str = "G", topic: str = "T", **fields: object) -> Command | None:
        """Pull, and return the answer, or None while the broker holds the pull."""
        command = self.pull_command(group, topic, **fields)
        self.give(peer, command)
        return find_answer(peer, command)

    def beat(
        self, peer: FakePeer, client_id: str, group: str = "G", *, stock: bool = True, **fields: object
    ) -> Command:
        """Send a consumer's heartbeat. stock: the client does not know of coordinators."""
        ext = {} if stock else {"libraGroups": "1"}
        if fields.pop("lease_ended", False):
            ext["libraLeaseEnded"] = "1"
        return self.ask(peer, RequestCode.HEART_BEAT, ext, heartbeat(client_id, group, **fields))

    def beat_producer(self, peer: FakePeer, client_id: str, group: str = "P") -> Command:
        data = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)])
        return self.ask(peer, RequestCode.HEART_BEAT, None, data)

    def create_topic(
        self, topic: str, queues: int = 4, perm: int = 6, attributes: str | None = None
    ) -> Command:
        header = h.CreateTopicHeader(
            topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm, attributes=attributes
        )
        peer, command = FakePeer(), self.command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        self.give(peer, command)
        if not peer.replies:  # Under SYNC_FLUSH it waits for the disk.
            self.flush()
        return answer(peer, command)

    def messages(self, topic: str, queue_id: int = 0) -> list[MessageExt]:
        """Return the messages of a queue, as a reader with all permissions sees them."""
        store = self.broker.store
        found: list[MessageExt] = []
        offset = store.min_offset(topic, queue_id)
        while offset < store.max_offset(topic, queue_id):
            result = store.read(topic, queue_id, offset, 32)
            found += decode_records(b"".join(result.data))
            offset = result.next_offset
        return found


def send_header(topic: str = "T", **fields: object) -> h.SendMessageHeaderV2:
    properties = fields.pop("properties", {})
    defaults: dict[str, object] = {
        "producer_group": "P",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 12_345,
        "flag": 0,
        "properties": properties if isinstance(properties, str) else properties_to_text(properties),  # type: ignore[arg-type]
    }
    return h.SendMessageHeaderV2(topic=topic, **(defaults | fields))  # type: ignore[arg-type]


def subscription(
    topic: str = "T", expression: str = "*", version: int = 1, **fields: object
) -> SubscriptionData:
    from libramq.filter.tag import parse_tag_filter

    parsed = parse_tag_filter(expression)
    data = SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tuple(sorted(parsed.tags)),
        code_set=tuple(sorted(parsed.codes or ())),
        sub_version=version,
    )
    return (
        data
        if not fields
        else SubscriptionData(**({f: getattr(data, f) for f in data.__struct_fields__} | fields))
    )


def heartbeat(
    client_id: str,
    group: str = "G",
    *,
    subscriptions: Sequence[SubscriptionData] | None = None,
    fingerprint: int = 0,
    without_sub: bool = False,
    message_model: str = "CLUSTERING",
) -> HeartbeatData:
    data = ConsumerData(
        group_name=group,
        message_model=message_model,
        subscription_data_set=list(subscriptions) if subscriptions is not None else [subscription()],
    )
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=[data],
        heartbeat_fingerprint=fingerprint,
        without_sub=without_sub,
    )


def find_answer(peer: FakePeer, command: Command) -> Command | None:
    """Remove the answer to a command from the peer's replies and return it, or None."""
    for position, reply in enumerate(peer.replies):
        if reply.is_response and reply.opaque == command.opaque:
            return peer.replies.pop(position)
    return None


def answer(peer: FakePeer, command: Command) -> Command:
    found = find_answer(peer, command)
    assert found is not None, f"no answer to {command.code}; the peer was sent {peer.replies}"
    return found


def notifications(peer: FakePeer) -> list[str]:
    """Remove the notifications from the peer's replies and return the groups they name."""
    told = [reply for reply in peer.replies if reply.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    peer.replies[:] = [reply for reply in peer.replies if reply not in told]
    assert all(reply.is_oneway and not reply.is_response for reply in told)
    return [reply.ext["consumerGroup"] for reply in told]


__all__ = [
    "Conversation",
    "answer",
    "find_answer",
    "heartbeat",
    "notifications",
    "replace",
    "send_header",
    "subscription",
]
