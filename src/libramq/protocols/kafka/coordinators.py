"""Coordinators: FindCoordinator, by the formula that all brokers and clients of ours use (`location`)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from libramq.kernel.connection import Principal
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.groups import GroupRequests
from libramq.protocols.kafka.modern_groups import ModernGroupRequests
from libramq.wire.kafka.apis.find_coordinator import (
    GROUP,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from libramq.wire.kafka.error_code import ErrorCode

#: The first version that names several groups.
_KEYS_FROM: Final = 4


class Coordinators:
    """Answers FindCoordinator."""

    def __init__(self, groups: BrokerGroups, classic: GroupRequests, modern: ModernGroupRequests) -> None:
        self._groups = groups
        self._classic = classic
        self._modern = modern
        self._nodes = groups.nodes

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {FindCoordinatorRequest: self.find}

    def find(self, request: FindCoordinatorRequest, slot: Slot) -> None:
        """Answer with the brokers that coordinate groups."""
        keys = request.coordinator_keys if slot.version >= _KEYS_FROM else (request.key,)
        self._classic.client_arrived(slot, keys)
        self._modern.client_arrived(slot, keys)
        if slot.version >= _KEYS_FROM:
            find = partial(self._coordinator, principal=slot.principal, key_type=request.key_type)
            slot.each(keys, find, partial(_answer, slot))
            return
        one = self._coordinator(request.key, slot.principal, request.key_type)
        slot.answer(
            FindCoordinatorResponse(
                error_code=one.error_code,
                error_message=one.error_message,
                node_id=one.node_id,
                host=one.host,
                port=one.port,
            )
        )

    def _coordinator(self, key: str, principal: Principal, key_type: int) -> Coordinator:
        if key_type != GROUP:
            remark = "only groups have coordinators here: transactions and share groups are not supported"
            return Coordinator(key=key, error_code=ErrorCode.INVALID_REQUEST, error_message=remark)
        refusal = self._groups.refusal(key, principal)
        if refusal is not None:
            return Coordinator(key=key, error_code=refusal)
        found = self._nodes.coordinator(key)
        if found is None:
            remark = "the coordinator of the group is not known yet, or serves no Kafka clients"
            return Coordinator(key=key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=remark)
        return Coordinator(key=key, node_id=found.node_id, host=found.host, port=found.port)


def _answer(slot: Slot, found: Sequence[Coordinator]) -> None:
    slot.answer_with(lambda: FindCoordinatorResponse(coordinators=tuple(found)), len(found))
