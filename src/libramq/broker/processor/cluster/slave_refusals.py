"""The refusals of a slave: what only a master does, with Apache's codes.

    sends, messages sent back                SYSTEM_BUSY, as clients then turn to another broker
    changes of topics, groups and offsets    SYSTEM_ERROR, for the operator
    recalls of timer messages                SLAVE_NOT_AVAILABLE
    pulls, unless slaveReadEnable            SYSTEM_BUSY
    pops, locks, assignments, openings, coordinators: SYSTEM_BUSY; ours: a slave must not own any of these;
    an acting master locks queues, and serves pops (`pop_at_slave.py`, `ack_at_slave.py`)

Name servers may have lost a master that the slave still copies. Then routes name the slave, which must not
act: two brokers would hand out the same. It forwards locks and pops to its master (`Forwarding`).

Upstream: SendMessageProcessor.rejectRequest, PullMessageProcessor.rejectRequest,
AdminBrokerProcessor.validateSlave, resetOffsetInner.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.errors import LibraError
from libramq.remoting.command import Command
from libramq.remoting.credentials import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from libramq.rpc.call import Call
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import BatchProcessor, Processor, Request
from libramq.rpc.requests import REQUESTS, AtSlave
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
    AtSlave.REFUSE_RECALL: Reply(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker is slave"),
}
#: Ours: requests under way, and how long the master has for one beside the time that it holds a pop.
FORWARDED_MAX: Final = 1_000
FORWARDED_MS: Final = 3_000
#: Credentials of the sender, whom this slave has authorised; it signs for itself.
_NOT_FORWARDED: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})


class LinkedSlave(Protocol):
    """The slave whose master may be out of the name servers' reach alone."""

    @property
    def is_named_for_master(self) -> bool:
        """Return whether name servers have lost a master whose log is copied."""
        ...

    def look_for_master(self) -> None:
        """Ask name servers whether they have lost the master, unless that is known."""
        ...

    def ask_master(self, call: Call[Command], answered: Callable[[Any], None], timeout_ms: int) -> None:
        """Ask the master."""
        ...


class Forwarding:
    """Forwards requests to the master. answer: sends delayed replies."""

    def __init__(self, slave: LinkedSlave, answer: Callable[[Request, Outcome], None]) -> None:
        self._slave = slave
        self._answer = answer
        self._under_way = 0

    def serve(self, processors: dict[int, Processor]) -> None:
        """Put it before the processors of what it forwards."""
        for code, serve in processors.items():
            if REQUESTS[code].is_forwarded:
                processors[code] = partial(self._handle, serve)

    def _handle(self, serve: Processor, request: Request) -> Outcome:
        if not self._slave.is_named_for_master:
            self._slave.look_for_master()
            return serve(request)
        if self._under_way >= FORWARDED_MAX:
            return _BUSY
        command = request.command
        hold_ms = 0
        if command.code == R.POP_MESSAGE:
            hold_ms = min(max(request.header.poll_time, 0), SUSPEND_MS_MAX)
        ext = {name: value for name, value in command.ext.items() if name not in _NOT_FORWARDED}
        call = Call(R(command.code), lambda reply: reply, ext, command.body, accepts=frozenset(ResponseCode))
        self._under_way += 1
        self._slave.ask_master(call, partial(self._answered, request), FORWARDED_MS + hold_ms)
        return HOLD

    def _answered(self, request: Request, reply: Command | LibraError) -> None:
        self._under_way -= 1
        if isinstance(reply, Command):
            self._answer(request, Reply(reply.code, reply.remark, reply.ext, reply.body))
        else:
            self._answer(request, Reply(ResponseCode.SYSTEM_BUSY, f"this is a slave; its master: {reply}"))


def refuse_at_slave(
    processors: dict[int, Processor],
    batch_processors: dict[int, BatchProcessor],
    *,
    is_readable: bool,
    is_acting: Callable[[], bool],
) -> None:
    """Replace the processors of requests that a slave refuses.

    is_readable: pulls are served. is_acting: whether the slave acts for a master that is gone.
    """
    lock = processors[R.LOCK_BATCH_MQ]
    for code, row in REQUESTS.items():
        refusal = _REFUSALS.get(row.at_slave)
        if refusal is not None and not (is_readable and row.at_slave is AtSlave.SERVE_IF_READABLE):
            processors[code] = _refusing(refusal)
            batch_processors.pop(code, None)
    processors[R.LOCK_BATCH_MQ] = _if_acting(is_acting, lock, processors[R.LOCK_BATCH_MQ])


def _if_acting(is_acting: Callable[[], bool], serve: Processor, refuse: Processor) -> Processor:
    def handle(request: Request) -> Outcome:
        return serve(request) if is_acting() else refuse(request)

    return handle


def _refusing(reply: Reply) -> Processor:
    def refuse(request: Request) -> Outcome:
        return reply

    return refuse
