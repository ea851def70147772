"""The remotes: one connection per address with many requests in flight. Decides when a request has timed out
(allowing for stalls of this process), when a silent connection is closed, and when to reconnect.

        send ─► connecting ─► open ─► written together with the other requests of a turn or read
                 └─ refused  └─ ended: every request in flight fails; the next one connects again

No sockets are used here: a dialer makes the connections and timers provide the time, both real
(`asyncio_remotes`) or simulated. Upstream: NettyRemotingClient.java.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import ConnectionLost, ProtocolError, RemoteError, RequestTimeout
from libramq.logs import get_logger
from libramq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, reply_to
from libramq.remoting.connection import FrameFiller, PendingRequests
from libramq.remoting.credentials import sign
from libramq.remoting.frame import LARGE_BODY_BYTES, encode_head
from libramq.runtime.seams import Dialer, Link, Timer, Timers
from libramq.transport.access import OPEN, REQUEST_TIMEOUT_MS, Access
from libramq.transport.outages import ADDRESSES_MAX, Outages

log = get_logger(__name__)
T = TypeVar("T")

#: How often deadlines are checked, at most; upstream scans every second (scanResponseTable).
DEADLINE_SCAN_MS: Final = 50

#: As in the kernel's engine: if a deadline check is this late, the process was stalled.
LATE_MS_MIN: Final = 250
#: Ours: the longest grace period for answers after a stall; sendMsgTimeout.
GRACE_MS_MAX: Final = 3_000

#: Ours: a connection on which requests time out and nothing arrived for this long counts as dead; the next
#: request makes a new one. Upstream closes at each timeout (clientCloseSocketIfTimeout).
SILENCE_MS_MAX: Final = 10_000

#: The error of a stopped client's requests.
STOPPED: Final = "this client was stopped"

#: Called with the reply, or the error.
Done = Callable[[Command | RemoteError], None]
#: Called with a request from the other side, and a function to answer it.
OnRequest = Callable[[str, Command, Callable[[Command], None]], None]
#: Called with the address of a connection that ended.
OnConnectionLost = Callable[[str], None]


def refuse(_: str, request: Command, answer: Callable[[Command], None]) -> None:
    """Refuse an unsupported request; the answer shows that we are alive (NettyRemotingAbstract)."""
    if not request.flag & FLAG_ONEWAY:
        remark = f" request type {request.code} not supported"
        answer(reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))


class _Remote:
    """One address, and the connection to it."""

    def __init__(self, remotes: "Remotes", address: str) -> None:
        self._remotes = remotes
        self._frames = FrameFiller()
        self.room = self._frames.room
        self.received = partial(self._read, self._frames.receive)
        self.filled = partial(self._read, self._frames.received)
        self._corked: list[bytes] = []
        self._waiting: list[tuple[Command, Done | None, int, bool]] = []
        self._link: Link | None = None
        self._is_silent = True
        self.address = address
        self.pending: PendingRequests[Done] = PendingRequests()
        self.last_read_ms = remotes.monotonic_ms()

    @property
    def is_open(self) -> bool:
        return self._link is not None

    def send(self, request: Command, done: Done | None, timeout_ms: int, *, takes_late: bool = False) -> None:
        """Send a request once connected; without `done` it is one-way."""
        if self._link is None:
            self._waiting.append((request, done, timeout_ms, takes_late))
            return
        pending, credentials = self.pending, self._remotes.access.credentials
        if done is None:
            pending.number(request)
            self.write(request if credentials is None else sign(request, credentials))
            return
        deadline_ms = self._remotes.monotonic_ms() + timeout_ms
        try:
            pending.add(request, done, deadline_ms=deadline_ms, takes_late=takes_late)
            self.write(request if credentials is None else sign(request, credentials))
        except ProtocolError as error:
            pending.discard(request.opaque)
            done(RemoteError(str(error)))
            return
        self._remotes.expect(deadline_ms)

    def write(self, command: Command) -> None:
        """Send a command together with the turn's other commands."""
        if not self._corked:
            self._remotes.timers.after(0, self._uncork)
        self._corked += encode_head(command), command.body

    def close(self) -> None:
        """Close the connection after all written data has left."""
        if self._link is not None:
            self._uncork()
            self._remotes.forget(self, is_ending=True)
            self._link.close()

    def abort(self) -> None:
        """Close the connection now."""
        if self._link is not None:
            self._remotes.forget(self, is_ending=True)
            self._link.abort()

    # Events of the connection.

    def opened(self, link: Link) -> None:
        if not self._remotes.keeps(self):
            link.abort()
            return
        self._link = link
        self.last_read_ms = self._remotes.monotonic_ms()
        waiting, self._waiting = self._waiting, []
        for request, done, timeout_ms, takes_late in waiting:
            self.send(request, done, timeout_ms, takes_late=takes_late)

    def _read(self, take: Callable[[T], list[Command]], read: T) -> None:
        self.last_read_ms = self._remotes.monotonic_ms()
        if self._is_silent:
            self._is_silent = False
            self._remotes.answered(self)
        try:
            commands = take(read)
        except ProtocolError as error:
            log.warning("connection closed", peer=self.address, reason=str(error))
            self.close()
            return
        self.room = self._frames.room
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                done = self.pending.take(command)
                if done is not None:
                    done(command)
            else:
                self._remotes.on_request(self.address, command, self.write)
        if self._corked:  # The next pull; the loop may read many large replies before its next turn.
            self._uncork()

    def ended(self, reason: str) -> None:
        was_wanted = self._remotes.keeps(self)
        self._remotes.forget(self)
        self._link = None
        # A peer that has answered before was killed; TLS or its lack is not the cause.
        is_silent = self._is_silent and self.address not in self._remotes.have_answered
        lost = self._remotes.why_closed or self._remotes.access.lost(
            self.address, is_silent=is_silent, reason=reason
        )
        if self._is_silent and was_wanted:
            self._remotes.unanswered(self, lost)
        for done in self.pending.drain():
            done(ConnectionLost(lost))

    def refused(self, error: RemoteError) -> None:
        if self._link is None:  # Otherwise it was opened, and `ended` is called.
            self._remotes.unanswered(self, str(error))
            self._remotes.forget(self)
            waiting, self._waiting = self._waiting, []
            for _, done, _, _ in waiting:
                if done is not None:
                    done(error)

    def _uncork(self) -> None:
        corked, self._corked = self._corked, []
        if self._link is None or not corked:
            return
        if max(map(len, corked)) < LARGE_BODY_BYTES:
            self._link.write(b"".join(corked))
            return
        for part in corked:  # Large bodies are not copied.
            self._link.write(part)


class Remotes:
    """All remote addresses with a connection or requests.

    on_request: called with requests that the other side sends over our connections; None refuses them.
    lost: called when an open connection has ended, except during `close`.
    access: its credentials sign the requests. outages: logs addresses that do not answer.
    """

    def __init__(
        self,
        dialer: Dialer,
        timers: Timers,
        monotonic_ms: Callable[[], MonotonicMs],
        *,
        on_request: OnRequest | None = None,
        lost: OnConnectionLost | None = None,
        access: Access = OPEN,
        outages: Outages | None = None,
    ) -> None:
        self.timers = timers
        self.monotonic_ms = monotonic_ms
        self.on_request = on_request or refuse
        self.access = access
        self._dialer = dialer
        self._lost = lost
        self.outages = outages
        self._remotes: dict[str, _Remote] = {}
        #: Addresses that have ever sent anything.
        self.have_answered: set[str] = set()
        #: Closed connections that have not ended yet.
        self._ending: dict[_Remote, None] = {}
        self._expiry: Timer | None = None
        self._expiry_ms = self._expiry_due_ms = MonotonicMs(0)
        #: The error of every further request; "" while open.
        self.why_closed = ""

    def send(
        self,
        address: str,
        request: Command,
        done: Done | None,
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        takes_late: bool = False,
    ) -> None:
        """Send a request; `done` is called exactly once, with the reply or a RemoteError.

        Without `done` the request is one-way, and dropped if no connection can be made.
        takes_late: `done` is called again if the reply arrives after the timeout.
        """
        if self.why_closed:
            if done is not None:
                done(ConnectionLost(self.why_closed))
            return
        remote = self._remotes.get(address)
        if remote is None:
            remote = self._remotes[address] = _Remote(self, address)
            self._dialer.dial(address, remote)
        remote.send(request, done, timeout_ms, takes_late=takes_late)

    def is_connected(self, address: str) -> bool:
        """Return whether a connection to the address is open."""
        remote = self._remotes.get(address)
        return remote is not None and remote.is_open

    def close_connection(self, address: str) -> None:
        """Close the connection to an address, if any; the next request reconnects."""
        remote = self._remotes.get(address)
        if remote is not None:
            remote.close()

    def refuse_all(self, reason: str) -> None:
        """Make every further request fail."""
        self.why_closed = reason

    def close(self) -> None:
        """Close every connection; requests in flight fail with ConnectionLost."""
        self.why_closed = self.why_closed or STOPPED
        if self._expiry is not None:
            self._expiry.cancel()
        for remote in list(self._remotes.values()):
            remote.close()
            remote.refused(ConnectionLost(STOPPED))

    # Called by the connections.

    def answered(self, remote: _Remote) -> None:
        """Note that a connection has received its first bytes."""
        if len(self.have_answered) < ADDRESSES_MAX:
            self.have_answered.add(remote.address)
        if self.outages is not None:
            self.outages.answered(remote.address)

    def unanswered(self, remote: _Remote, reason: str) -> None:
        """Note that an address was not reached, or that its connection ended without receiving a byte."""
        if self.outages is not None and not self.why_closed:
            is_known = remote.address in self.have_answered
            self.outages.unanswered(remote.address, reason, is_known=is_known)

    def keeps(self, remote: _Remote) -> bool:
        """Return whether a dialed connection is still wanted."""
        return self._remotes.get(remote.address) is remote

    def forget(self, remote: _Remote, *, is_ending: bool = False) -> None:
        """Make the next request reconnect. is_ending: the connection is closed but has not ended yet."""
        if is_ending:
            self._ending[remote] = None
        else:
            self._ending.pop(remote, None)
        if self.keeps(remote):
            del self._remotes[remote.address]
            if remote.is_open and self._lost is not None and not self.why_closed:
                self._lost(remote.address)

    def expect(self, deadline_ms: MonotonicMs) -> None:
        """Schedule the check of deadlines no later than this one."""
        if self._expiry is not None:
            if self._expiry_ms <= deadline_ms:
                return
            self._expiry.cancel()
        self._expiry_ms = deadline_ms
        delay_ms = max(DEADLINE_SCAN_MS, deadline_ms - self.monotonic_ms())
        self._expiry_due_ms = self.monotonic_ms() + delay_ms
        self._expiry = self.timers.after(delay_ms, self._expire)

    def _expire(self) -> None:
        """Fail the requests whose deadline has passed.

        After a stall of this process, answers may lie unread in sockets, because timers fire before sockets
        are read; after a stall of the whole machine, they are still to come. So deadlines are extended.
        """
        self._expiry = None
        now_ms = self.monotonic_ms()
        stall_ms = now_ms - self._expiry_due_ms
        if stall_ms >= LATE_MS_MIN:
            for remote in [*self._remotes.values(), *self._ending]:
                remote.pending.extend(now_ms, min(stall_ms, GRACE_MS_MAX))
        for remote in [*self._remotes.values(), *self._ending]:
            late = remote.pending.expire(now_ms)
            for done in late:
                done(RequestTimeout.of(remote.address))
            if late and now_ms - remote.last_read_ms >= SILENCE_MS_MAX:
                log.warning("connection closed: the peer is silent", peer=remote.address)
                remote.abort()
            deadline_ms = remote.pending.next_deadline_ms
            if deadline_ms is not None and not self.why_closed:
                self.expect(deadline_ms)
