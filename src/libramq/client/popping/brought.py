"""What pops brought: the answers of brokers, whose messages are decoded when they are looked at.

So a program's next pop can leave before the last one is decoded, and the broker reads meanwhile.
"""

from collections.abc import Sequence

from libramq.client.popping.pop_round import Place
from libramq.client.popping.popped import count_of, messages_of
from libramq.message.message import MessageExt
from libramq.rpc.pop_calls import PopReply


class Answer:
    """The answer to one request, of what was popped at a place."""

    def __init__(self, reply: PopReply, place: Place) -> None:
        self._reply: PopReply | None = reply
        self._place = place
        self._messages: list[MessageExt] = []
        self.count = count_of(reply)

    @property
    def messages(self) -> list[MessageExt]:
        """Return the messages; raises RemoteError for an answer that cannot be read."""
        if self._reply is not None:
            self._messages = self._decoded(self._reply) if self.count else []
            self._reply = None
        return self._messages

    def _decoded(self, reply: PopReply) -> list[MessageExt]:
        return messages_of(reply, self._place.broker_name, self._place.topic)


class Brought:
    """The messages of one topic at one broker."""

    def __init__(self, topic: str, answers: Sequence[Answer]) -> None:
        self.topic = topic
        self._answers = answers
        self._messages: list[MessageExt] | None = None

    @property
    def count(self) -> int:
        """Return how many messages they are."""
        if self._messages is not None:
            return len(self._messages)
        return sum(answer.count for answer in self._answers)

    @property
    def messages(self) -> list[MessageExt]:
        """Return the messages; raises RemoteError for an answer that cannot be read."""
        if self._messages is None:
            self._messages = [message for answer in self._answers for message in answer.messages]
        return self._messages

    def first(self, count: int) -> "Brought":
        """Take the first messages out; the others remain here."""
        taken = Brought(self.topic, ())
        taken._messages, self._messages = self.messages[:count], self.messages[count:]
        return taken
