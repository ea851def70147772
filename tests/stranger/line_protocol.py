"""How a protocol is added: a line protocol over the broker's services, with no edit under `src/`.

    LOGIN name password                      OK
    HELLO client group                       OK; operators see the client among the group's producers
    BYE group                                OK; now they do not
    APPEND topic queue text                  OK queue_offset
    LATER level topic queue text             OK; readers find it after the delay level's time
    POLL group topic queue offset wait_ms    FOUND next "text" …, NOTHING next or MOVED next (an offset)
    COMMIT group topic queue offset          OK
    JOIN group client topic                  MEMBER id epoch queue:epoch …
    WAIT group topic id epoch queue:epoch …  QUEUES epoch queue:epoch … -queue …, once the assignment differs
    OPEN group topic queue id epoch          OK offset; OK - if nothing is committed and the member chooses
    LEAVE group id                           OK
    any refused request                      ERROR code remark

A member of a coordinated group opens each queue that it is granted, and adds its id and the queue's epoch to
POLL and COMMIT: they are accepted while the member has the queue open under that epoch.

A protocol consists of four parts, in the order of this module:

1. A reader cuts the bytes of a connection into requests, of any type (`LineReader`). It limits how many bytes
   a client can make it keep.
2. Waiters turn results into bytes (`kernel.purgatory.Waiter`). A service calls either `answer` or `refuse`,
   at once or long after the request, and neither if the connection has ended. A waiter sends through
   `kernel.effects` only, so that its bytes leave with everything else that is sent in the same turn.
3. A translator turns requests into calls of services (`kernel.engine.Translator`). It returns the index of
   the first request that it has not handled. Neighbouring requests that take effect together are one call:
   here, commits share one write of the journal. A service that refuses at once raises; a request that fails
   does not affect the others. A client that has proven who it is becomes the principal of its connection.
   Before the translator calls a service, it describes the resources and the principal of the request
   (`auth.operation`), and the authorizer may refuse it.
4. `BrokerServer.server` makes a server for the translator and its reader, with the limits and the encryption
   of all of the broker's ports. The performer takes care of turns, timers, back-pressure and the consequences
   of a request: journals, flushes, and held pulls of every protocol that wake up. In the simulator
   `SimulatedBroker.entrance` replaces it, and nothing else needs to be written.

Members of coordinated groups (JOIN, WAIT, LEAVE) are answered by waiters too. A minus before a queue means
that the member must release it: its next WAIT leaves the queue out.

The services used here are `Broker.heartbeats`, `.sending`, `.reading`, `.committing`, `.opening` and
`.coordination`;
`docs/design/engine.md` lists the others.
"""

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

from libramq.auth.authorizer import require_permission
from libramq.auth.operation import Consume, Membership, Operation, Send
from libramq.broker.broker import Broker
from libramq.broker.groups.heartbeats import Heartbeat, HeartbeatResult
from libramq.broker.groups.opening import QueueToOpen
from libramq.broker.groups.pull import Pull, PullResult, PullStatus
from libramq.broker.messages.drafts import Draft
from libramq.broker.messages.sending import Sent, Stored
from libramq.clock import read_clock
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, NoPermission, RemoteProtocolError
from libramq.fencing import Claim, OpenedQueue
from libramq.groups.consumer_group import Consumer
from libramq.groups.coordinator.effect import Answer
from libramq.groups.coordinator.request import Join, Leave, Poll
from libramq.groups.pending_notifications import (
    AreYouThere,
    GroupChanged,
    Notice,
    OffsetsReset,
    TransactionCheck,
)
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Effects
from libramq.message import decode_records
from libramq.message.properties import DELAY, properties_to_text
from libramq.message.queue import MessageQueue

LINE_BYTES_MAX = 64 * 1024
MESSAGES_MAX = 32
SESSION_MS = 10_000

_WORDS = {
    PullStatus.FOUND: "FOUND",
    PullStatus.NOTHING_YET: "NOTHING",
    PullStatus.NOTHING_MATCHED: "NOTHING",
    PullStatus.OFFSET_MOVED: "MOVED",
}


class LineReader:
    """Cuts bytes into lines."""

    def __init__(self) -> None:
        self._partial = b""

    @property
    def partial_bytes(self) -> int:
        """Return how many bytes of an unfinished line are held."""
        return len(self._partial)

    def receive(self, data: bytes) -> list[str]:
        """Take the bytes that arrived; return the lines that are whole now."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if any(len(line) > LINE_BYTES_MAX for line in (*lines, self._partial)):
            raise RemoteProtocolError(f"a line of over {LINE_BYTES_MAX} bytes")
        return [line.decode("utf-8", "replace") for line in lines]


class LineWaiter:
    """Answers one request with a line. `say` turns a result into that line."""

    def __init__(self, connection: Connection, effects: Effects, say: Callable[[Any], str]) -> None:
        self.connection = connection
        self._effects = effects
        self._say = say

    def answer(self, result: Any) -> None:
        """Send the line for a result."""
        self._send(self._say(result))

    def refuse(self, error: Exception) -> None:
        """Send an error's code and text."""
        code = error.response_code if isinstance(error, BrokerError) else ResponseCode.SYSTEM_ERROR
        self._send(f"ERROR {int(code)} {' '.join(str(error).split())}")

    def _send(self, line: str) -> None:
        self._effects.send(self.connection, line.encode() + b"\n")


class SendWaiter(LineWaiter):
    """Answers the send of one message: the others of a call may be stored although it is refused."""

    def answer(self, result: Sequence[Sent]) -> None:
        """Send the line for what became of it."""
        (sent,) = result
        if isinstance(sent, Exception):
            self.refuse(sent)
        else:
            super().answer(sent)


class LineTranslator:
    """Serves the line protocol; a `kernel.engine.Translator`."""

    def __init__(self, broker: Broker) -> None:
        self._authenticator = broker.authenticator
        self._heartbeats = broker.members.heartbeats
        self._sending = broker.sends.sending
        self._reading = broker.reads.reading
        self._committing = broker.members.committing
        self._opening = broker.members.opening
        self._coordination = broker.members.coordination
        self._broker_name = broker.config.broker_name
        self._authorizer = broker.authorizer
        self._clock = broker.kernel.clock
        self._effects = broker.kernel.effects

    def receive(self, connection: Connection, requests: Sequence[str], start: int) -> int:
        """Handle one line, or a run of consecutive commits; return the index of the next line."""
        if requests[start].startswith("COMMIT "):
            end = start + 1
            while end < len(requests) and requests[end].startswith("COMMIT "):
                end += 1
            self._commit(connection, requests[start:end])
            return end
        verb, *words = requests[start].split(" ")
        operations = {
            "LOGIN": self._login,
            "HELLO": self._hello,
            "FOLLOW": self._follow,
            "BYE": self._bye,
            "APPEND": self._append,
            "LATER": self._later,
            "POLL": self._poll,
            "JOIN": self._join,
            "WAIT": self._wait,
            "OPEN": self._open,
            "LEAVE": self._leave,
        }
        operation = operations.get(verb, _unknown)
        try:
            operation(connection, words)
        except Exception as error:
            LineWaiter(connection, self._effects, str).refuse(error)
        return start + 1

    def _login(self, connection: Connection, words: Sequence[str]) -> None:
        name, password = words
        if self._authenticator is None:
            raise NoPermission(ResponseCode.NO_PERMISSION, "this broker has no users")
        connection.principal = self._authenticator.by_password(connection, name, password)
        LineWaiter(connection, self._effects, str).answer("OK")

    def _hello(self, connection: Connection, words: Sequence[str]) -> None:
        client, group = words
        self._require(Membership(connection.principal))
        self._beat(connection, Heartbeat(client_id=client, producer_groups=[group], notify=self._notify))

    def _follow(self, connection: Connection, words: Sequence[str]) -> None:
        client, group = words
        self._require(Membership(connection.principal, {group: ()}))
        self._beat(
            connection,
            Heartbeat(client_id=client, consumers=[Consumer(group=group)], notify=self._notify),
        )

    def _notify(self, notice: Notice[Connection]) -> None:
        """Tell a member that its group has changed, or ask whether it is there, or about a transaction."""
        verbs = {
            GroupChanged: "CHANGED",
            AreYouThere: "THERE?",
            TransactionCheck: "COMMITTED?",
            OffsetsReset: "RESET",
        }
        self._effects.send(notice.peer, f"{verbs[type(notice)]} {notice.group}\n".encode())

    def _beat(self, connection: Connection, heartbeat: Heartbeat) -> None:
        waiter = LineWaiter(connection, self._effects, _heartbeat_answer)
        self._effects.proceed(connection, self._beat_all(heartbeat, waiter))

    def _beat_all(self, heartbeat: Heartbeat, waiter: LineWaiter) -> Generator[None]:
        """Answer once all groups of a heartbeat, a thousand perhaps, were served."""
        try:
            result = yield from self._heartbeats.beat(heartbeat, waiter.connection, read_clock(self._clock))
        except BrokerError as error:
            waiter.refuse(error)
        else:
            waiter.answer(result)

    def _bye(self, connection: Connection, words: Sequence[str]) -> None:
        (group,) = words
        self._require(Membership(connection.principal))
        self._heartbeats.leave(connection, read_clock(self._clock), producer_group=group)
        LineWaiter(connection, self._effects, str).answer("OK")

    def _append(self, connection: Connection, words: Sequence[str]) -> None:
        self._send(SendWaiter(connection, self._effects, _stored), words)

    def _later(self, connection: Connection, words: Sequence[str]) -> None:
        level, *rest = words
        properties = properties_to_text({DELAY: level})
        self._send(SendWaiter(connection, self._effects, lambda stored: "OK"), rest, properties)

    def _send(self, waiter: SendWaiter, words: Sequence[str], properties: str = "") -> None:
        topic, queue_id, *text = words
        self._require(Send(waiter.connection.principal, topic))
        draft = Draft(topic, int(queue_id), " ".join(text).encode(), properties)
        clock = self._clock
        sent = self._sending.send(
            [draft], waiter.connection, wall_ms=clock.wall_ms(), now_ms=clock.monotonic_ms()
        )
        end = max((each.end for each in sent if isinstance(each, Stored) and each.waits), default=0)
        self._sending.answer_when_safe(sent, end, waiter)

    def _poll(self, connection: Connection, words: Sequence[str]) -> None:
        group, topic, queue_id, offset, wait_ms, *claim = words
        self._require(Consume(connection.principal, group, (topic,)))
        pull = Pull(
            waiter=LineWaiter(connection, self._effects, _pulled),
            group=group,
            topic=topic,
            queue_id=int(queue_id),
            offset=int(offset),
            count_max=MESSAGES_MAX,
            hold_ms=int(wait_ms),
            **_claimed(claim),
        )
        self._reading.pull(pull, wall_ms=self._clock.wall_ms(), now_ms=self._clock.monotonic_ms())

    def _join(self, connection: Connection, words: Sequence[str]) -> None:
        group, client, topic = words
        self._require(Consume(connection.principal, group, (topic,)))
        join = Join(group=group, client_id=client, session_ms=SESSION_MS, subscriptions={topic: "*"})
        self._coordination.ask(LineWaiter(connection, self._effects, _joined), join)

    def _wait(self, connection: Connection, words: Sequence[str]) -> None:
        group, topic, member, epoch, *held = words
        self._require(Consume(connection.principal, group, (topic,)))
        queues = dict(_held(topic, self._broker_name, text) for text in held)
        poll = Poll(group=group, member=member, epoch=int(epoch), held=queues)
        self._coordination.ask(LineWaiter(connection, self._effects, _assigned), poll)

    def _open(self, connection: Connection, words: Sequence[str]) -> None:
        group, topic, queue_id, member, epoch = words
        self._require(Consume(connection.principal, group, (topic,)))
        queue = QueueToOpen(group, topic, int(queue_id), Claim(member, int(epoch)))
        self._opening.open(queue, LineWaiter(connection, self._effects, _opened))

    def _leave(self, connection: Connection, words: Sequence[str]) -> None:
        group, member = words
        self._require(Membership(connection.principal, {group: ()}))
        waiter = LineWaiter(connection, self._effects, lambda answer: _refused(answer) or "OK")
        self._coordination.ask(waiter, Leave(group=group, member=member))

    def _commit(self, connection: Connection, lines: Sequence[str]) -> None:
        """Apply all commits, journal them with one write, then answer: an answer says they are on disk."""
        waiter = LineWaiter(connection, self._effects, str)
        refusals: list[Exception | None] = []
        for line in lines:
            try:
                _, group, topic, queue_id, offset, *claim = line.split(" ")
                self._require(Consume(connection.principal, group, (topic,)))
                self._committing.commit(
                    connection, group, topic, int(queue_id), int(offset), **_claimed(claim)
                )
                refusals.append(None)
            except Exception as error:
                refusals.append(error)
        try:
            self._committing.write()
        except BrokerError as error:
            refusals = [refusal or error for refusal in refusals]
        for refusal in refusals:
            if refusal is None:
                waiter.answer("OK")
            else:
                waiter.refuse(refusal)

    def _require(self, operation: Operation) -> None:
        """Raise if the operation is not permitted."""
        require_permission(self._authorizer, operation)


def _unknown(connection: Connection, words: Sequence[str]) -> None:
    raise RemoteProtocolError(
        "the verbs are LOGIN, HELLO, BYE, APPEND, LATER, POLL, COMMIT, JOIN, WAIT, OPEN and LEAVE"
    )


def _claimed(words: Sequence[str]) -> dict[str, Any]:
    """Return the claim of a coordinated group's member if the line ends with one."""
    if not words:
        return {}
    member, epoch = words
    return {"member": member, "epoch": int(epoch)}


def _heartbeat_answer(result: HeartbeatResult) -> str:
    return "OK" if result.refused is None else f"ERROR {result.refused.response_code}"


def _stored(stored: Stored) -> str:
    return f"OK {stored.queue_offset}"


def _pulled(result: PullResult) -> str:
    texts = [json.dumps(message.body.decode()) for message in decode_records(b"".join(result.read.data))]
    return " ".join([_WORDS[result.status], str(result.read.next_offset), *texts])


def _opened(opened: OpenedQueue) -> str:
    return f"OK {'-' if opened.offset is None else opened.offset}"


def _held(topic: str, broker_name: str, text: str) -> tuple[MessageQueue, int]:
    queue_id, _, epoch = text.partition(":")
    return MessageQueue(topic, broker_name, int(queue_id)), int(epoch)


def _refused(answer: Answer[Any]) -> str:
    return "" if answer.code == ResponseCode.SUCCESS else f"ERROR {int(answer.code)} {answer.remark}"


def _joined(answer: Answer[Any]) -> str:
    return _refused(answer) or f"MEMBER {answer.member} {_queues(answer)}"


def _assigned(answer: Answer[Any]) -> str:
    return _refused(answer) or f"QUEUES {_queues(answer)}"


def _queues(answer: Answer[Any]) -> str:
    assignment = answer.assignment
    assert assignment is not None, "a join or a poll that succeeds has one"
    held = [f"{queue.queue_id}:{epoch}" for queue, epoch in assignment.queues.items()]
    return " ".join([str(assignment.epoch), *held, *(f"-{queue.queue_id}" for queue in assignment.revoke)])
