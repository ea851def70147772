"""The history: every watcher gets the facts of its kinds, from the moment it watches."""

from libramq.testing.history import History, Watcher
from libramq.testing.machine.virtual_time import VirtualTime


class Faults(Watcher):
    """A watcher of one kind of fact."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def disturbed(self, what: str) -> None:
        self.seen.append(what)


def test_watchers_get_facts_also_if_the_first_came_before_them() -> None:
    """Brokers start, and are reported, before there are invariants."""
    history = History(VirtualTime(), lines_kept=None)
    first, second = Faults(), Faults()
    history.watchers += [Watcher(), first]
    history.disturbed("one")
    history.watchers.append(second)
    history.disturbed("two")
    history.watchers.remove(first)
    history.disturbed("three")
    assert (first.seen, second.seen) == (["one", "two"], ["two", "three"])
    assert [line.split(": ")[1] for line in history.lines] == ["one", "two", "three"]
