"""The name server lookup: a client's list of name servers, fetched from a page every two minutes.

    GET http://config.example:8080/rocketmq/nsaddr  ─►  10.0.0.1:9876;10.0.0.2:9876

The first fetch blocks the calling thread. Later ones run on a separate thread while the known addresses stay
in use, also if a fetch fails. Upstream: DefaultTopAddressing.java, HttpTinyClient.java.
"""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Final, overload
from urllib.parse import urlsplit

from libramq.errors import ConfigError, NameServerUnavailable
from libramq.logs import get_logger
from libramq.transport.address import join_address, split_name_servers

log = get_logger(__name__)

#: MQClientInstance.startScheduledTask: two minutes.
REFRESH_SECONDS: Final = 120.0
#: DefaultTopAddressing.fetchNSAddr.
TIMEOUT_SECONDS: Final = 3.0
#: Ours: the time for a whole page, redirections included.
PAGE_SECONDS_MAX: Final = 10.0
#: Ours: a few thousand addresses.
PAGE_BYTES_MAX: Final = 64 * 1024
#: A cluster's address servers are never behind a proxy.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str) -> tuple[str, ...]:
    """Return the name servers in the first line of a page; raises NameServerUnavailable if there are none."""
    page = _page_in_time(url)
    try:
        if isinstance(page, bytes):
            return split_name_servers((page.decode().strip().splitlines() or [""])[0])
        reason = page
    except (ValueError, ConfigError) as error:
        reason = str(error)
    raise NameServerUnavailable(
        f"no list of name servers at {url}: {reason}. Check the URL (namesrv, NAMESRV_ADDR)"
    )


def _page_in_time(url: str) -> bytes | str:
    """Return a page, or the reason for having none. It is fetched on another thread: a server that sends a
    byte now and then never triggers a socket timeout.
    """
    pages: SimpleQueue[bytes | str] = SimpleQueue()
    fetching = threading.Thread(
        target=lambda: pages.put(_page_or_reason(url)), name="libra-name-servers-page", daemon=True
    )
    fetching.start()
    try:
        return pages.get(timeout=PAGE_SECONDS_MAX)
    except Empty:
        return f"the page is incomplete after {PAGE_SECONDS_MAX:.0f} s"


def _page_or_reason(url: str) -> bytes | str:
    try:
        return _page(url)
    except urllib.error.HTTPError as refused:
        refused.close()
        return str(refused)
    except (OSError, HTTPException, ValueError) as error:
        return str(error)


def _page(url: str) -> bytes:
    """Return a page; raises ValueError if it is too long or cut short: half an address is a wrong address."""
    ends_at = time.monotonic() + PAGE_SECONDS_MAX
    data = b""
    with _OPENER.open(url, timeout=TIMEOUT_SECONDS) as page:
        while piece := page.read1(PAGE_BYTES_MAX):
            data += piece
            if len(data) > PAGE_BYTES_MAX:
                raise ValueError(f"the page has more than {PAGE_BYTES_MAX} bytes")
            if time.monotonic() > ends_at:
                raise TimeoutError("the page arrived too slowly")
        if page.length:
            raise ValueError(f"the page ends {page.length} bytes early")
    return data


class AddressList(Sequence[str]):
    """Addresses of name servers: a sequence whose content can be replaced."""

    _addresses: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._addresses)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._addresses[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)


class NameServerLookup(AddressList):
    """The name servers listed on a page: a sequence that follows the page."""

    def __init__(
        self,
        url: str,
        *,
        fetch: Callable[[str], tuple[str, ...]] = fetch,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.strip()
        try:
            parts = urlsplit(self.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConfigError(f"{url!r} is not the URL of a list of name servers: {error}") from None
        if not parts.hostname:
            raise ConfigError(f"{url!r} is not the URL of a list of name servers: it names no host")
        #: The page's host and port.
        self.server = join_address(parts.hostname, port)
        self._fetch = fetch
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._looking = threading.Lock()

    def look(self) -> None:
        """Fetch the page, unless it was fetched before; raises NameServerUnavailable."""
        if not self._addresses:
            self._addresses = self._fetch(self.url)
            self._looked_at = self._monotonic()

    def __iter__(self) -> Iterator[str]:
        """Yield the known addresses; start a refresh if the last one was two minutes ago."""
        if self._monotonic() - self._looked_at >= REFRESH_SECONDS and self._looking.acquire(blocking=False):
            self._looked_at = self._monotonic()
            threading.Thread(target=self._look_again, name="libra-name-servers", daemon=True).start()
        return iter(self._addresses)

    def _look_again(self) -> None:
        try:
            addresses = self._fetch(self.url)
            if set(addresses) != set(self._addresses):
                log.info("the name servers changed", url=self.url, name_servers=";".join(addresses))
            self._addresses = addresses
        except NameServerUnavailable as error:
            log.warning("the previous name servers stay in use", reason=str(error))
        finally:
            self._looking.release()
