"""The wrapped producer: a producer, asyncio's or the blocking one, some of whose methods do more."""

import inspect
from collections.abc import Iterable
from typing import Any, Self

from libramq.message.message import Message


class WrappedProducer:
    """Passes on everything that a subclass does not define. producer: the wrapped one."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.is_asyncio = inspect.iscoroutinefunction(producer.send)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.producer, name)

    def serialized_all(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages as they are sent; what is wrong, the producer reports."""
        return [self.producer.serialized(each) if isinstance(each, Message) else each for each in messages]

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
