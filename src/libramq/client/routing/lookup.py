"""The name servers of a client that finds them on a page, once at its start: `name_server_lookup`."""

from collections.abc import Sequence

from libramq.client.network_thread import run_on_thread
from libramq.transport.name_server_lookup import NameServerLookup


async def look_up(name_servers: Sequence[str]) -> None:
    """Wait for the list of name servers if it is to be fetched; raises NameServerUnavailable."""
    if isinstance(name_servers, NameServerLookup):
        await run_on_thread(name_servers.look)


def first_server(name_servers: Sequence[str]) -> str:
    """Return the address of a name server, or of the server that lists them."""
    return name_servers.server if isinstance(name_servers, NameServerLookup) else name_servers[0]
