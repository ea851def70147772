"""Wrappers for traces: a producer (asyncio's or the blocking one) that follows its sends, and a handler whose
calls are followed until they end.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

from libramq.client.consuming.handling.handlers import Handler, is_async
from libramq.message.message import Message, MessageExt

#: The messages to send, and a function to call with the send's result.
Sending = tuple[Message | list[Message], Callable[[Any], object]]


class WrappedProducer:
    """Delegates everything that a subclass does not define to `producer`."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.is_asyncio = is_asyncio(producer)

    def sending(self, sent: Message | list[Message]) -> AbstractContextManager[Sending]:
        """Return a context manager for the duration of a send."""
        raise NotImplementedError

    def send(self, message: Message | str, value: object = None, **options: Any) -> Any:
        return self.followed(self.producer.send, self.producer.serialized(message, value), options)

    def send_batch(self, messages: Iterable[Message], **options: Any) -> Any:
        """Send messages; the producer reports invalid ones."""
        sent = [self.producer.serialized(each) if isinstance(each, Message) else each for each in messages]
        return self.followed(self.producer.send_batch, sent, options)

    def followed(
        self, send: Callable[..., Any], sent: Message | list[Message], options: dict[str, Any]
    ) -> Any:
        """Send inside the context manager `sending`."""

        async def awaited() -> Any:
            with self.sending(sent) as (carried, noted):
                result = await send(carried, **options)
                noted(result)
            return result

        if self.is_asyncio:
            return awaited()
        with self.sending(sent) as (carried, noted):
            result = send(carried, **options)
            noted(result)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.producer, name)

    async def __aenter__(self) -> Self:
        await self.producer.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.producer.__aexit__(*error)

    def __enter__(self) -> Self:
        self.producer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.producer.__exit__(*error)


def is_asyncio(producer: Any) -> bool:
    """Return whether a producer is asyncio's or wraps one that is."""
    if isinstance(producer, WrappedProducer):
        return producer.is_asyncio
    return inspect.iscoroutinefunction(producer.send)


class HandlerCall(Protocol):
    """A handler call in progress."""

    def current(self) -> AbstractContextManager[object]:
        """Return the context in which the handler runs."""

    def failed(self) -> None:
        """Note that the handler raised."""

    def returned(self, result: object) -> None:
        """Note what the handler returned."""


def wrapped_handler(handler: Handler, begin: Callable[[Sequence[MessageExt]], HandlerCall]) -> Handler:
    """Return a handler whose calls begin with `begin` and end when the handler has, even if it returns an
    awaitable.
    """

    async def awaited(call: HandlerCall, returned: Awaitable[Any]) -> Any:
        try:
            with call.current():
                result = await returned
        except BaseException:
            call.failed()
            raise
        call.returned(result)
        return result

    def wrapped_call(messages: list[MessageExt]) -> Any:
        call = begin(messages)
        try:
            with call.current():
                returned = handler(messages)
        except BaseException:
            call.failed()
            raise
        if inspect.isawaitable(returned):
            return awaited(call, returned)
        call.returned(returned)
        return returned

    if not is_async(handler):
        return wrapped_call

    @functools.wraps(handler)
    async def wrapped_coroutine(messages: list[MessageExt]) -> Any:
        return await wrapped_call(messages)

    return wrapped_coroutine
