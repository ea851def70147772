"""FindCoordinator (10), LeaveGroup (13): the broker that coordinates a group, and who may commit or read the
group's offsets.

Coordinators are computed by the formula that all LibraMQ brokers and clients use (`location`). With
LeaveGroup members of classic groups leave, and tools remove members of either kind of group.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

from msgspec import structs

from libramq.broker.groups.coordination import FROZEN_MS
from libramq.clock import MonotonicMs
from libramq.groups.classic.values import Beat
from libramq.kernel.connection import Principal
from libramq.kernel.parts import Kernel
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.api11_classic_groups import ClassicGroups
from libramq.protocols.kafka.api68_modern_groups import ModernGroups
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.wire.kafka.apis import groups as wire
from libramq.wire.kafka.error_code import ErrorCode

#: Ours: how long after a stall a broker may still read requests that waited in its sockets.
THAW_MS: Final = 1_000
#: The first version of FindCoordinator that names several groups.
_KEYS_FROM: Final = 4
#: The first version of OffsetCommit with the epochs of KIP-848.
_EPOCHS_FROM: Final = 9


class KafkaGroups:
    """The groups of both protocols. every: the groups, with the checks of their requests."""

    def __init__(
        self, every: BrokerGroups, classic: ClassicGroups, modern: ModernGroups, kernel: Kernel
    ) -> None:
        self.every = every
        self._clock = kernel.clock
        self._deadlines = kernel.deadlines
        self._thawed_ms = MonotonicMs(-THAW_MS)
        self._classic = classic
        self.modern = modern

    def client_arrived(self, slot: Slot, groups: Collection[str] | None = None) -> None:
        """Note a client's first request on a connection, its sign-in, or its request for the coordinators of
        groups.
        """
        self._classic.client_arrived(slot, groups)
        self.modern.client_arrived(slot, groups)

    @serves(wire.LeaveGroupRequest)
    def leave(self, request: wire.LeaveGroupRequest, slot: Slot) -> None:
        """Let the members leave, by the protocol of their group."""
        if self.every.modern.get(request.group_id) is not None:
            self.modern.leave(request, slot)
        else:
            self._classic.leave(request, slot)

    # Offsets.

    @property
    def is_thawing(self) -> bool:
        """Return whether this process was just stalled, so that others may have taken over its groups.

        Requests read now may be older than commits that the others took; some are read before timers fire.
        """
        now_ms, due_ms = self._clock.monotonic_ms(), self._deadlines.next_due_ms
        ran_ms = self._deadlines.ran_ms
        if due_ms is not None and now_ms - max(due_ms, ran_ms or due_ms) >= FROZEN_MS:
            self._thawed_ms = now_ms
        thawed_ms = max(self._thawed_ms, self.every.coordination.thawed_ms)
        return now_ms - thawed_ms < THAW_MS and not self.every.nodes.view.is_alone

    def commit_refusal(self, name: str, beat: Beat, version: int) -> ErrorCode | None:
        """Return the error if a member may not commit with a request of this version."""
        if self.every.modern.get(name) is None:
            refusal = self._classic.commit_refusal(name, beat)
        elif beat.member_id and version < _EPOCHS_FROM:
            refusal = ErrorCode.UNSUPPORTED_VERSION
        else:
            refusal = self.modern.offsets_refusal(name, beat.member_id, beat.generation)
        is_expected = bool(beat.member_id) and self._classic.expects_members
        return None if refusal is ErrorCode.UNKNOWN_MEMBER_ID and is_expected else refusal

    # Coordinators.

    @serves(wire.FindCoordinatorRequest)
    def find(self, request: wire.FindCoordinatorRequest, slot: Slot) -> None:
        """Answer with the coordinators of groups."""
        keys = request.coordinator_keys if slot.version >= _KEYS_FROM else (request.key,)
        self.client_arrived(slot, keys)
        if slot.version >= _KEYS_FROM:
            find = partial(self._coordinator, principal=slot.principal, key_type=request.key_type)
            slot.answer_each(
                keys, find, lambda found: wire.FindCoordinatorResponse(coordinators=tuple(found))
            )
            return
        one = structs.asdict(self._coordinator(request.key, slot.principal, request.key_type))
        del one["key"]
        slot.answer(wire.FindCoordinatorResponse(**one))

    def _coordinator(self, key: str, principal: Principal, key_type: int) -> wire.Coordinator:
        if key_type != wire.GROUP:
            remark = "only groups have coordinators here: transactions and share groups are not supported"
            return wire.Coordinator(key=key, error_code=ErrorCode.INVALID_REQUEST, error_message=remark)
        refusal = self.every.refusal(key, principal)
        if refusal is not None:
            return wire.Coordinator(key=key, error_code=refusal)
        found = self.every.nodes.coordinator(key)
        if found is None:
            remark = "the coordinator of the group is not known yet, or serves no Kafka clients"
            return wire.Coordinator(
                key=key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=remark
            )
        return wire.Coordinator(key=key, node_id=found.node_id, host=found.host, port=found.port)
