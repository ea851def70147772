"""The witness: reports a member's requests about offsets and fences, and their answers, to the history.

It reads the wire, so it sees the same whatever the client's internals.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import Fenced, LibraError
from libramq.fencing import Claim, Opened
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import GroupAssignment, epochs_of
from libramq.rpc.call import Call
from libramq.rpc.group_calls import Joined
from libramq.testing.history import Commit
from libramq.testing.nodes.slave_node import is_slave, master_name
from libramq.testing.scenarios.happening import Happening
from libramq.testing.world import World

_FENCED = {
    RequestCode.UPDATE_CONSUMER_OFFSET: Happening.COMMIT_FENCED,
    RequestCode.PULL_MESSAGE: Happening.PULL_FENCED,
}


_RENEWING = frozenset({RequestCode.GROUP_JOIN, RequestCode.GROUP_POLL})
_OF_A_QUEUE = frozenset(
    {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.OPEN_QUEUE,
        RequestCode.PULL_MESSAGE,
    }
)


#: What a slave must refuse.
_CHANGING: Mapping[int, str] = {
    RequestCode.OPEN_QUEUE: "an opening",
    RequestCode.UPDATE_CONSUMER_OFFSET: "a commit",
}


class Witness:
    """Reports the observations of one member."""

    def __init__(self, world: World, member: str, group: str) -> None:
        self._world = world
        self._member = member
        self._group = group

    def refused(self, call: Call[Any], error: LibraError) -> None:
        """Note a request that was answered with an error."""
        happening = _FENCED.get(call.code) if isinstance(error, Fenced) else None
        if happening is not None:
            self._world.history.happened(happening, f"of {self._member}, {call.ext['topic']}")

    def answers_of(self, address: str, call: Call[Any]) -> Callable[[Any], None] | None:
        """Return the callback for the result of a call, if any."""
        history, group, requested_ms = self._world.history, self._group, self._world.time.now_ms
        if call.code in _RENEWING:
            return partial(self._renewed, requested_ms)
        if call.code not in _OF_A_QUEUE:
            return None
        name = self._world.network.name_at(address)
        queue = MessageQueue(call.ext["topic"], master_name(name), int(call.ext["queueId"]))
        epoch = call.ext.get("lbQueueEpoch")
        claim = Claim(self._member, int(epoch)) if epoch is not None else None
        if is_slave(name):
            if call.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                # An acting slave passes it on when its master is back, if it is not restarted before.
                history.commit_requested(group, queue, Commit(int(call.ext["commitOffset"]), requested_ms))
            return self._answer_of_slave(call.code, queue, claim)
        if call.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            commit = Commit(int(call.ext["commitOffset"]), requested_ms, claim)
            history.commit_requested(group, queue, commit)
            return lambda _: history.commit_acknowledged(group, queue, commit)
        if call.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return lambda offset: history.offset_read(group, queue, offset, requested_ms)
        if claim is None:
            return None

        def pulled(reply: Any) -> None:
            if reply.code == ResponseCode.SUCCESS:
                history.pulled(group, queue, claim, requested_ms)

        is_opening = call.code == RequestCode.OPEN_QUEUE
        return partial(self._opened, requested_ms, queue, claim) if is_opening else pulled

    def _renewed(self, requested_ms: MonotonicMs, answer: Joined | GroupAssignment) -> None:
        """Take a coordinator's answer, and what it has opened with it."""
        self._world.history.session_renewed(self._member, requested_ms)
        assignment = answer.assignment if isinstance(answer, Joined) else answer
        epochs = epochs_of(assignment.queues)
        for queue, opened in (each.value() for each in assignment.opened):
            self._opened(requested_ms, queue, Claim(self._member, epochs[queue]), opened)
            self._world.history.happened(Happening.OPENED_WITH_GRANT, f"{self._member}, {queue.topic}")

    def _opened(self, requested_ms: MonotonicMs, queue: MessageQueue, claim: Claim, answer: Opened) -> None:
        self._world.history.opened(self._group, queue, claim, requested_ms)
        self._world.history.offset_read(self._group, queue, answer.offset, requested_ms)

    def _answer_of_slave(
        self, code: int, queue: MessageQueue, claim: Claim | None
    ) -> Callable[[Any], None] | None:
        """Return the callback for what a slave answers."""
        history = self._world.history
        if code in _CHANGING:
            return lambda _: history.changed_at_slave(self._group, queue, _CHANGING[code], claim)

        def pulled(reply: Any) -> None:
            if reply.code == ResponseCode.SUCCESS:
                history.happened(Happening.READ_FROM_SLAVE, f"{self._member}, {queue.topic}")

        return pulled if code == RequestCode.PULL_MESSAGE and claim is not None else None
