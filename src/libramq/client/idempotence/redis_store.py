"""The store in Redis: for processes on any machine. It needs `redis`: pip install 'libramq[redis]'."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from libramq.client.idempotence.store import KEEP_MS, LEASE_MS, ClaimResult
from libramq.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    import redis

_DONE: Final = b"done"
_DONE_ANSWERS: Final = (_DONE, _DONE.decode())  # Text if the user's client decodes responses.
# Deletes only the owner's own claims: its lease may have expired, and another may have claimed the key.
_RELEASE: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"


class RedisStore:
    """Keys in Redis, which expire there.

    client: a URL like redis://host:6379/0, or a client of the package. prefix: of the keys in Redis.
    lease_ms, keep_ms: as for SqliteStore. Messages whose keys Redis loses, by failover or eviction, are
    handled again.
    """

    is_blocking = True

    def __init__(
        self,
        client: "str | redis.Redis",
        *,
        prefix: str = "libramq:handled:",
        lease_ms: int = LEASE_MS,
        keep_ms: int = KEEP_MS,
    ) -> None:
        self._client: Any = _connected(client) if isinstance(client, str) else client
        self._prefix = prefix
        self.lease_ms = lease_ms
        self._keep_ms = keep_ms

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def claim(self, keys: Sequence[str], owner: str) -> list[ClaimResult]:
        """Claim keys for an owner."""
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.set(self._prefix + key, owner, nx=True, px=self.lease_ms)
                pipeline.get(self._prefix + key)
            answers = pipeline.execute()
        return [
            ClaimResult.NEW if was_set else ClaimResult.DONE if value in _DONE_ANSWERS else ClaimResult.BUSY
            for was_set, value in zip(answers[::2], answers[1::2], strict=True)
        ]

    def done(self, keys: Sequence[str], owner: str) -> None:
        """Mark keys as done: the handler has succeeded."""
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.set(self._prefix + key, _DONE, px=self._keep_ms)
            pipeline.execute()

    def release(self, keys: Sequence[str], owner: str) -> None:
        """Release keys: the handler has failed."""
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.eval(_RELEASE, 1, self._prefix + key, owner)
            pipeline.execute()


def _connected(url: str) -> Any:
    with needs_extra("RedisStore", "redis"):
        import redis
    try:
        return redis.Redis.from_url(url)
    except ValueError as error:
        raise ConfigError(f"{url!r} is no address of a Redis server: {error}") from None
