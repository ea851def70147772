"""A group's offsets over several brokers, without the brokers."""

from collections.abc import Callable, Sequence

import pytest

from libramq.broker.groups import group_offsets
from libramq.broker.groups.group_offsets import Exchange, Exchanged, Found
from libramq.errors import LibraError
from libramq.message.queue import MessageQueue
from tests.broker.brokers import Conversation


class Away:
    """Other brokers, all of them absent."""

    def names(self) -> Sequence[str]:
        return ()

    def exchange(
        self, broker_name: str, what: Exchange, done: Callable[[Exchanged | LibraError], None]
    ) -> None:
        raise AssertionError("there is no broker")


def test_a_brokers_own_offsets_take_no_place_of_others_copies(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    """A broker kept copies of its own offsets, which left no room for others' offsets that need one."""
    monkeypatch.setattr(group_offsets, "COPIES_MAX", 1)
    offsets = talk.broker.cluster.offsets
    offsets._others = Away()
    own, other = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 0)
    codes: list[object] = []
    for queue in (own, other):
        offsets.commit("G", {queue: 7}, codes.append)
    found: list[Found] = []
    offsets.find("G", [own, other], found.append)
    assert [each.offsets for each in found] == [{other: 7}]
