"""The first commits: one at a time per topic and broker, until one is acknowledged.

Apache's broker creates a group's offset table of a topic with the first commit, without a lock
(ConsumerOffsetManager.commitOffset): of two concurrent ones one is lost, although both are acknowledged.
"""

from libramq.message.queue import MessageQueue


class FirstCommits:
    """The topics known to have an offset table for the group, and the first commits under way."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._awaited: dict[tuple[str, str], MessageQueue] = {}

    def known(self, queue: MessageQueue) -> None:
        """Note a committed offset from the broker: the table exists."""
        self._known.add(_key(queue))

    def must_wait(self, queue: MessageQueue) -> bool:
        """Return whether a commit has to wait for another queue's."""
        return self._awaited.get(_key(queue), queue) != queue

    def sent(self, queue: MessageQueue) -> None:
        """Note that a commit is sent."""
        if _key(queue) not in self._known:
            self._awaited[_key(queue)] = queue

    def answered(self, queue: MessageQueue, *, ok: bool) -> bool:
        """Handle the result of a commit; return whether commits that waited for it may be sent now."""
        key = _key(queue)
        if ok:
            self._known.add(key)
        if self._awaited.get(key) != queue:
            return False
        del self._awaited[key]
        return True


def _key(queue: MessageQueue) -> tuple[str, str]:
    return queue.broker_name, queue.topic
