"""The first commits: one at a time for each topic at each broker, until one is acknowledged.

Apache's broker makes a group's table of a topic when the first offset comes, and does not lock it
(ConsumerOffsetManager.commitOffset): of two that come at once one is lost, although both are acknowledged.
"""

from libramq.message.queue import MessageQueue


class FirstCommits:
    """Which topics the group has a table of, as far as we know, and whose first commit is under way."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._awaited: dict[tuple[str, str], MessageQueue] = {}

    def known(self, queue: MessageQueue) -> None:
        """The broker told us a committed offset: there is a table."""
        self._known.add(_key(queue))

    def must_wait(self, queue: MessageQueue) -> bool:
        """Return whether a commit has to wait for another queue's."""
        return self._awaited.get(_key(queue), queue) != queue

    def sent(self, queue: MessageQueue) -> None:
        """A commit goes out."""
        if _key(queue) not in self._known:
            self._awaited[_key(queue)] = queue

    def answered(self, queue: MessageQueue, *, ok: bool) -> bool:
        """A commit was answered; whether those that waited for it may go now."""
        key = _key(queue)
        if ok:
            self._known.add(key)
        if self._awaited.get(key) != queue:
            return False
        del self._awaited[key]
        return True


def _key(queue: MessageQueue) -> tuple[str, str]:
    return queue.broker_name, queue.topic
