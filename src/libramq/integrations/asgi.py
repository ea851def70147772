"""Clients with the lifetime of a web application: started and stopped by Starlette, FastAPI and every other
ASGI framework.

from libramq.integrations.asgi import lifespan

producer = Producer(namesrv="127.0.0.1:9876")
app = FastAPI(lifespan=lifespan(producer))

Upstream: the ASGI specification's lifespan protocol, 2.0.
"""

import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

from libramq.errors import LibraError

#: Any asynchronous context manager: Producer, PushConsumer, Admin.
Client: TypeAlias = AbstractAsyncContextManager[Any]
_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]
_App: TypeAlias = Callable[[_Message, _Receive, _Send], Awaitable[None]]


def lifespan(*clients: Client) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """Return a lifespan for `Starlette(lifespan=…)` and `FastAPI(lifespan=…)`.

    The clients start in order before the first request and stop in reverse order after the last.
    If one cannot start, the clients before it are stopped, and the server exits with its error.
    Inside your own lifespan: `async with lifespan(producer)(app): yield`.
    """

    @asynccontextmanager
    async def running(_app: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            yield

    return running


class LifespanMiddleware:
    """Wraps an application whose framework has no lifespan: `LifespanMiddleware(django_app, producer)`.

    The middleware answers the server's lifespan events, which the application does not see. Applications with
    their own lifespan use `lifespan` instead.
    """

    def __init__(self, app: _App, *clients: Client) -> None:
        self._app = app
        self._running = lifespan(*clients)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: _Receive, send: _Send) -> None:
        phase = "startup"
        try:
            await receive()  # lifespan.startup
            async with self._running(self._app):
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
                phase = "shutdown"
        except Exception as error:  # Otherwise servers assume an application without a lifespan.
            message = str(error) if isinstance(error, LibraError) else traceback.format_exc()
            await send({"type": f"lifespan.{phase}.failed", "message": message})
        else:
            await send({"type": "lifespan.shutdown.complete"})
