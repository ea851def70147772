"""Clients that start and stop with a web application, under a real server."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from libramq import Message, MessageExt, Producer, PushConsumer
from libramq.errors import NameServerUnavailable
from libramq.integrations.asgi import LifespanMiddleware, lifespan
from libramq.testing import Broker

#: Nothing listens at the discard port.
NOWHERE = "127.0.0.1:9"


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an application on a free port; the block gets its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="on", log_level="error", ws="none"))
    running = asyncio.create_task(server.serve())
    while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn has no event for it.
        await asyncio.sleep(0.01)
    assert server.started, "the application did not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await running


async def post(url: str) -> str:
    """Send a request."""
    request = urllib.request.Request(url, data=b"tea")
    with await asyncio.to_thread(urllib.request.urlopen, request) as response:
        return str(response.read().decode())


async def test_a_request_sends_a_message_that_the_applications_consumer_gets():
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(messages: list[MessageExt]) -> None:
        for message in messages:
            arrived.put_nowait(message.body)

    async with Broker() as broker:
        producer = Producer(namesrv=broker.namesrv)
        consumer = PushConsumer(group="kitchen", namesrv=broker.namesrv, consume_from="earliest")
        consumer.subscribe("Orders", "*", handle)

        async def order(request: Request) -> PlainTextResponse:
            sent = await producer.send(Message("Orders", await request.body()))
            return PlainTextResponse(str(sent.queue_offset))

        routes = [Route("/orders", order, methods=["POST"])]
        async with serving(Starlette(routes=routes, lifespan=lifespan(producer, consumer))) as url:
            assert await post(f"{url}/orders") == "0"
            assert await asyncio.wait_for(arrived.get(), 60) == b"tea"
        with pytest.raises(Exception, match=r"start"):
            await producer.send(Message("Orders", b"too late"))


async def test_an_application_without_a_lifespan_gets_its_requests_only():
    scopes: list[str] = []
    async with Broker() as broker:
        producer = Producer(namesrv=broker.namesrv)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scopes.append(scope["type"])
            sent = await producer.send(Message("Orders", (await receive())["body"]))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": str(sent.queue_offset).encode()})

        async with serving(LifespanMiddleware(app, producer)) as url:
            assert await post(url) == "0"

    assert scopes == ["http"]


async def test_a_client_that_cannot_start_stops_those_before_it():
    """The server learns why, instead of serving an application that cannot send."""
    async with Broker() as broker:
        producer = Producer(namesrv=broker.namesrv)
        consumer = PushConsumer(group="kitchen", namesrv=NOWHERE)
        consumer.subscribe("Orders", "*", lambda messages: None)

        with pytest.raises(NameServerUnavailable):
            async with lifespan(producer, consumer)(None):
                pytest.fail("it started")

        with pytest.raises(Exception, match=r"start"):
            await producer.send(Message("Orders", b"too late"))


@pytest.mark.parametrize("phase", ["startup", "shutdown"])
@pytest.mark.parametrize("error", [NameServerUnavailable("no name server"), OSError("no file")])
async def test_the_server_is_sent_the_error_of_a_client(phase: str, error: Exception):
    """Of whatever kind: servers take an exception for an application without a lifespan."""
    sent: list[dict[str, Any]] = []

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        if phase == "startup":
            raise error
        yield
        raise error

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(*_: Any) -> None:
        pytest.fail("the application has no lifespan")

    await LifespanMiddleware(app, client())({"type": "lifespan"}, receive, send)

    assert sent[-1]["type"] == f"lifespan.{phase}.failed"
    assert sent[-1]["message"].rstrip().endswith(str(error))
