"""The requests of a member of a coordinated group: one for each effect for its coordinator or a fence.

Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS
from libramq.client.consuming.push_consumer_core import PushConsumerCore
from libramq.client.consuming.requests.ask import Ask, Performers
from libramq.client.consuming.requests.consumer_requests import OFFSET_TIMEOUT_MS
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.rpc import group_calls as calls
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: a lost release is requested again by the response to the next poll.
RELEASE_TIMEOUT_MS: Final = 3_000


class MemberRequests:
    """Sends the requests: one method per effect."""

    def __init__(self, group: str, core: PushConsumerCore, ask: Ask) -> None:
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
            effect.address,
            calls.find_group(self._group),
            partial(self._core.coordination.found, effect),
            effect.timeout_ms,
        )

    def _join(self, effect: fx.JoinGroup) -> None:
        self._ask(
            effect.address,
            calls.join_group(effect.header, effect.body),
            partial(self._core.coordination.joined, effect),
            effect.timeout_ms,
        )

    def _poll(self, effect: fx.PollGroup) -> None:
        self._ask(
            effect.address,
            calls.poll_group(self._group, effect.member, effect.epoch, effect.body, effect.hold_ms),
            partial(self._core.coordination.polled, effect),
            effect.timeout_ms,
            takes_late=True,
        )

    def _release(self, effect: fx.ReleaseQueues) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> Sequence[fx.Effect]:
            if outcome is not None:
                log_failed_request(log, "queues not released", outcome, queues=len(effect.queues))
            return ()

        call = calls.release_queues(
            self._group,
            effect.member,
            effect.queues,
            uncommitted=effect.uncommitted,
            leaving=effect.leaving,
            slow=effect.slow,
        )
        self._ask(effect.address, call, answered, RELEASE_TIMEOUT_MS)

    def _leave(self, effect: fx.LeaveGroup) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> Sequence[fx.Effect]:
            if outcome is not None:  # Our session will expire.
                log.warning("the coordinator could not be notified of our leaving", reason=str(outcome))
            return self._core.group_left()

        call = calls.leave_group(self._group, effect.member, effect.reason, effect.queues)
        self._ask(effect.address, call, answered, LEAVE_TIMEOUT_MS)

    def _open(self, effect: fx.OpenQueue) -> None:
        self._ask(
            effect.address,
            calls.open_queue(self._group, effect.queue, effect.claim.member, effect.claim.epoch),
            partial(self._core.claims.opened, effect),
            OFFSET_TIMEOUT_MS,
        )
