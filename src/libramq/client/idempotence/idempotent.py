"""The idempotent handler: passes on only messages that no handler of the group has processed.

claimed by us        ─► handled ─► success: done · retried, rejected or failed: released
done already         ─► skipped
claimed by another   ─► skipped, and redelivered, uncounted, when its claim may be over: the other may fail
  in order           ─► so are the messages behind it
"""

import asyncio
import hashlib
import inspect
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from libramq.client.awaiting import awaited
from libramq.client.consuming.handling.handler_result import (
    Busy,
    Ending,
    HandlerOutcome,
    HandlerResult,
    NotDone,
    Reject,
    Retry,
    ending_of,
)
from libramq.client.consuming.handling.handlers import FailureLog, Handler, is_async, is_in_order
from libramq.client.idempotence.store import BUSY_MS_MAX, ClaimResult, Store
from libramq.errors import ConfigError
from libramq.message import properties as names
from libramq.message.message import MessageExt

#: The identity of a repeated message: the id that its producer gave it, or its keys.
Key = Literal["unique_id", "key"] | Callable[[MessageExt], str]
#: Ours: a size that stores index well; longer keys are replaced by their digest.
KEY_LENGTH_MAX: Final = 256


def idempotent(handler: Handler, *, store: Store, key: Key = "unique_id", scope: str = "") -> Handler:
    """Wrap a handler, plain or coroutine function, so that repeated messages do not reach it.

    key: "unique_id" recognises a message that a broker redelivers. "key" also recognises a message that a
    producer sends again with the same keys; without keys, its id counts. A function computes the key of a
    message. scope: separates handlers that share a store, such as those of two groups.
    """
    key_of = _KEYS.get(key) if isinstance(key, str) else key
    if key_of is None:
        raise ConfigError(f'key is "unique_id", "key" or a function, not {key!r}')

    within_ms, log = min(getattr(store, "lease_ms", BUSY_MS_MAX), BUSY_MS_MAX), FailureLog()

    def attempt_of(messages: Sequence[MessageExt]) -> _Attempt:
        found: dict[str, MessageExt] = {}
        for message in messages:
            found.setdefault(_bounded(f"{scope}:{message.topic}:{key_of(message)}"), message)
        return _Attempt(found, within_ms, log)

    async def finish(attempt: _Attempt, returned: object) -> HandlerResult:
        try:
            attempt.judge(await awaited(returned))
        except Exception:
            if not attempt.failed():
                raise
        finally:  # Even if the task is cancelled.
            for method, keys in attempt.endings(store):
                await _call(store, method, keys, attempt.owner)
        return attempt.result

    async def handle_async(messages: list[MessageExt]) -> HandlerResult:
        async def start() -> object:
            return handler(attempt.messages)

        attempt = attempt_of(messages)
        if behind := attempt.take(await _call(store, store.claim, attempt.keys, attempt.owner)):
            await _call(store, store.release, behind, attempt.owner)
        return await finish(attempt, start()) if attempt.messages else attempt.result

    def handle(messages: list[MessageExt]) -> HandlerResult | Awaitable[HandlerResult]:
        attempt = attempt_of(messages)
        if behind := attempt.take(store.claim(attempt.keys, attempt.owner)):
            store.release(behind, attempt.owner)
        if not attempt.messages:
            return attempt.result
        returned: object = False
        try:
            returned = handler(attempt.messages)
            if not inspect.isawaitable(returned):
                attempt.judge(returned)
        except Exception:
            if not attempt.failed():
                raise
        finally:
            if not inspect.isawaitable(returned):
                for method, keys in attempt.endings(store):
                    method(keys, attempt.owner)
        return finish(attempt, returned) if inspect.isawaitable(returned) else attempt.result

    return handle_async if is_async(handler) else handle


class _Attempt:
    """One call of the handler: the messages it has claimed, and their results.

    Until `judge`, all of them count as failed. within_ms: when messages claimed by another call are
    redelivered.
    """

    def __init__(self, by_key: dict[str, MessageExt], within_ms: int, log: FailureLog) -> None:
        self._within_ms = within_ms
        self._log = log
        self.owner = uuid.uuid4().hex
        self._ours = by_key
        self._done: set[str] = set()
        self._busy: list[MessageExt] = []
        self._ending: Ending = HandlerOutcome.SUCCESS

    @property
    def keys(self) -> list[str]:
        """Return the keys to claim."""
        return list(self._ours)

    @property
    def messages(self) -> list[MessageExt]:
        """Return the messages for the handler."""
        return list(self._ours.values())

    def take(self, claims: Sequence[ClaimResult]) -> list[str]:
        """Keep the messages that this call has claimed; others may be busy, or done already.

        In orderly mode, messages behind a busy one wait with it; their keys are returned, to be released.
        """
        by_key, self._ours = self._ours, {}
        behind = []
        for (key, message), claim in zip(by_key.items(), claims, strict=True):
            waits = claim is ClaimResult.NEW and bool(self._busy) and is_in_order.get()
            if waits:
                behind.append(key)
            if waits or claim is ClaimResult.BUSY:
                self._busy.append(message)
            elif claim is ClaimResult.NEW:
                self._ours[key] = message
        return behind

    def judge(self, returned: object) -> None:
        """Take the handler's return value; raises InvalidResult."""
        self._ending = ending_of(returned, self.messages)
        if self._ending is HandlerOutcome.SUCCESS:
            self._done = set(self._ours)
        elif isinstance(self._ending, NotDone):
            done = {id(message) for message in self._ending.done(self.messages)}
            self._done = {key for key, message in self._ours.items() if id(message) in done}

    @property
    def result(self) -> HandlerResult:
        """Return the result for the consumer: messages unfinished, or claimed by another, are redelivered."""
        if self._ending is HandlerOutcome.LATER and not self._busy:
            return False
        results: list[Retry | Reject | Busy] = []
        if isinstance(self._ending, NotDone):
            results = self._ending.results()
        elif self._ending is HandlerOutcome.LATER:
            results.append(Retry(messages=self.messages))
        if self._busy:
            results.append(Busy(messages=self._busy, within=self._within_ms / 1000))
        return results or True

    def failed(self) -> bool:
        """Handle an exception of the handler; return whether the result reports it.

        Messages claimed by another call have not failed, so it must not reach the consumer as a failure of
        all.
        """
        if self._busy:
            self._ending = HandlerOutcome.LATER
            self._log(self.messages, self.messages[0].topic)
        return bool(self._busy)

    def endings(self, store: Store) -> list[tuple[Callable[[Sequence[str], str], None], list[str]]]:
        """Return the methods of the store to call, with their keys."""
        done = [key for key in self._ours if key in self._done]
        left = [key for key in self._ours if key not in self._done]
        return [(method, keys) for method, keys in ((store.done, done), (store.release, left)) if keys]


async def _call(
    store: Store, method: Callable[[Sequence[str], str], Any], keys: list[str], owner: str
) -> Any:
    if store.is_blocking:
        return await asyncio.shield(asyncio.to_thread(method, keys, owner))
    return method(keys, owner)


def _unique_id(message: MessageExt) -> str:
    properties = message.properties
    # A message without a producer's id is identified, after a retry, by its original id.
    return properties.get(names.UNIQ_KEY) or properties.get(names.ORIGIN_MESSAGE_ID) or message.offset_id


def _keys(message: MessageExt) -> str:
    return " ".join(message.keys) or _unique_id(message)


def _bounded(key: str) -> str:
    return key if len(key) <= KEY_LENGTH_MAX else hashlib.sha256(key.encode()).hexdigest()


_KEYS: Final[dict[str, Callable[[MessageExt], str]]] = {"unique_id": _unique_id, "key": _keys}
