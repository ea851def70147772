"""The idempotent handler: passes on the messages that no handler of the group has succeeded with.

claimed by us        ─► handled ─► success: done · failure: released, all of them come again
done already         ─► left out
another is at it     ─► left out, and this call fails, so that they come again: the other may fail
"""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from libramq.client.handlers import Handler, is_async, is_success
from libramq.client.idempotence.store import Claim, Store
from libramq.errors import ConfigError
from libramq.message import properties as names
from libramq.message.message import MessageExt

#: What tells a repeated message: its producer's id for it, or its keys.
Key = Literal["unique_id", "key"] | Callable[[MessageExt], str]
#: Ours: what stores index well; a longer key counts by its digest.
KEY_LENGTH_MAX: Final = 256


def idempotent(handler: Handler, *, store: Store, key: Key = "unique_id", scope: str = "") -> Handler:
    """Wrap a handler, plain or coroutine function, so that repeated messages do not reach it.

    key: "unique_id" knows a message that a broker delivers again. "key" also knows one that a producer sends
    again under the same keys; a message without keys counts by its id. Or a function of the message.
    scope: tells apart handlers that share a store, such as those of two groups.
    """
    key_of = _KEYS.get(key) if isinstance(key, str) else key
    if key_of is None:
        raise ConfigError(f'key is "unique_id", "key" or a function, not {key!r}')

    def keyed(messages: Sequence[MessageExt]) -> dict[str, MessageExt]:
        found: dict[str, MessageExt] = {}
        for message in messages:
            found.setdefault(_bounded(f"{scope}:{message.topic}:{key_of(message)}"), message)
        return found

    if is_async(handler):

        async def handle_async(messages: list[MessageExt]) -> bool:
            owner, by_key = uuid.uuid4().hex, keyed(messages)
            claims = await _call(store, store.claim, list(by_key), owner)
            ours, others = _split(by_key, claims)
            if ours:
                returned: Any = False
                try:
                    returned = await handler([by_key[each] for each in ours])
                finally:  # Also when the task is cancelled.
                    ended = store.done if is_success(returned) else store.release
                    await _call(store, ended, ours, owner)
                if not is_success(returned):
                    return False
            return not others

        return handle_async

    def handle(messages: list[MessageExt]) -> bool:
        owner, by_key = uuid.uuid4().hex, keyed(messages)
        ours, others = _split(by_key, store.claim(list(by_key), owner))
        if ours:
            returned: Any = False
            try:
                returned = handler([by_key[each] for each in ours])
            finally:
                ended = store.done if is_success(returned) else store.release
                ended(ours, owner)
            if not is_success(returned):
                return False
        return not others

    return handle


class _Split(NamedTuple):
    ours: list[str]
    others: list[str]


def _split(by_key: dict[str, MessageExt], claims: Sequence[Claim]) -> _Split:
    told = list(zip(by_key, claims, strict=True))
    return _Split(
        [key for key, claim in told if claim is Claim.NEW],
        [key for key, claim in told if claim is Claim.BUSY],
    )


async def _call(
    store: Store, method: Callable[[Sequence[str], str], Any], keys: list[str], owner: str
) -> Any:
    if store.is_blocking:
        return await asyncio.shield(asyncio.to_thread(method, keys, owner))
    return method(keys, owner)


def _unique_id(message: MessageExt) -> str:
    properties = message.properties
    # A message without an id of its producer is, after a retry, known by the one it first had.
    return properties.get(names.UNIQ_KEY) or properties.get(names.ORIGIN_MESSAGE_ID) or message.offset_id


def _keys(message: MessageExt) -> str:
    return " ".join(message.keys) or _unique_id(message)


def _bounded(key: str) -> str:
    return key if len(key) <= KEY_LENGTH_MAX else hashlib.sha256(key.encode()).hexdigest()


_KEYS: Final[dict[str, Callable[[MessageExt], str]]] = {"unique_id": _unique_id, "key": _keys}
