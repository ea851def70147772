"""Decoded messages: each with the value that the program's deserializer makes of its body.

A deserializer is any function of the body's bytes: json.loads, msgspec.json.Decoder(Order).decode. It runs in
the program's call that takes the message, which raises its error, with a note that names the message.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, Self, TypeVar

from libramq.errors import ConfigError
from libramq.message.message import MessageExt

Value = TypeVar("Value")


def check_deserializer(deserializer: object) -> None:
    """Raise ConfigError for what cannot be called."""
    if not callable(deserializer):
        raise ConfigError(f"the deserializer is a function of bytes, not {deserializer!r}")


def decode(message: MessageExt, deserializer: Callable[[bytes], Value]) -> tuple[MessageExt, Value]:
    """Return a message and its value; an error of the deserializer gets a note that names the message."""
    try:
        return message, deserializer(message.body)
    except (StopIteration, StopAsyncIteration) as error:  # It would end the loop as if all had been read.
        raise RuntimeError(f"the deserializer raised {error!r} for {_name_of(message)}") from error
    except Exception as error:
        error.add_note(f"while the body of {_name_of(message)} was deserialized")
        raise


def _name_of(message: MessageExt) -> str:
    place = f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset}"
    return f"message {message.message_id} ({place})"


class DecodedMessages(Generic[Value]):
    """An asynchronous iterator of messages with their values, which an error does not end."""

    def __init__(self, messages: AsyncIterator[MessageExt], deserializer: Callable[[bytes], Value]) -> None:
        check_deserializer(deserializer)
        self._messages = messages
        self._deserializer = deserializer

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> tuple[MessageExt, Value]:
        """Return the next message with its value; raises what the deserializer raises."""
        return decode(await anext(self._messages), self._deserializer)


class BlockingDecodedMessages(Generic[Value]):
    """An iterator of messages with their values, which an error does not end."""

    def __init__(self, messages: Iterator[MessageExt], deserializer: Callable[[bytes], Value]) -> None:
        check_deserializer(deserializer)
        self._messages = messages
        self._deserializer = deserializer

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> tuple[MessageExt, Value]:
        """Return the next message with its value; raises what the deserializer raises."""
        return decode(next(self._messages), self._deserializer)
