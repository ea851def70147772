"""The blocking admin: the asyncio one on a thread of its own."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from libramq.admin import admin as asyncio_admin
from libramq.client.blocking_client import BlockingClient
from libramq.client.options import AdminOptions

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[asyncio_admin.Admin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Admin", P], T]:
    """Return a method of the asynchronous admin as one that waits for its result."""

    @wraps(method)
    def wait(self: "Admin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method.__name__, method(self._admin, *args, **kwargs))

    return wait


class Admin(BlockingClient):
    """Queries and changes topics and groups; see libramq.client.Admin."""

    def __init__(self, **options: Unpack[AdminOptions]) -> None:
        super().__init__("admin")
        self._admin = asyncio_admin.Admin(**options)

    async def _start(self) -> None:
        await self._admin.start()

    async def _stop(self) -> None:
        await self._admin.stop()

    topics = _blocking(asyncio_admin.Admin.topics)
    cluster_info = _blocking(asyncio_admin.Admin.cluster_info)
    topic_route = _blocking(asyncio_admin.Admin.topic_route)
    create_topic = _blocking(asyncio_admin.Admin.create_topic)
    delete_topic = _blocking(asyncio_admin.Admin.delete_topic)
    topic_stats = _blocking(asyncio_admin.Admin.topic_stats)
    consume_stats = _blocking(asyncio_admin.Admin.consume_stats)
    reset_offsets = _blocking(asyncio_admin.Admin.reset_offsets)
    reset_queue = _blocking(asyncio_admin.Admin.reset_queue)
    delete_group = _blocking(asyncio_admin.Admin.delete_group)
    consumer_connection = _blocking(asyncio_admin.Admin.consumer_connection)
    running_info = _blocking(asyncio_admin.Admin.running_info)
    consume_directly = _blocking(asyncio_admin.Admin.consume_directly)
    remove_member = _blocking(asyncio_admin.Admin.remove_member)
