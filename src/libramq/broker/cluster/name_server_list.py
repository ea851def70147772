"""The name server list of a broker: the addresses in `namesrvAddr`, or those on the page at its URL, and how
often that page is fetched.

    namesrvAddr = a:9876;b:9876               fixed
    namesrvAddr = http://config/rocketmq/ns   fetched at the start and every two minutes, on a thread

While the page cannot be read, the last addresses remain in use. Upstream: BrokerOuterAPI.fetchNameServerAddr.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.broker.config import BrokerConfig
from libramq.clock import MonotonicMs
from libramq.errors import ConfigError
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.transport.address import is_lookup, split_name_servers
from libramq.transport.name_server_lookup import AddressList

log = get_logger(__name__)

#: BrokerController.initialize: two minutes.
LOOK_MS: Final = 120_000
#: BrokerController.initialize: its first look is after ten seconds; ours is at once, and repeated every ten
#: until it has found name servers.
FIRST_MS: Final = 10_000

#: Returns the addresses on a page or raises NameServerUnavailable; blocks.
Fetch = Callable[[str], tuple[str, ...]]


class NameServerList(AddressList):
    """The current addresses."""

    def __init__(self, config: BrokerConfig, kernel: Kernel, fetch: Fetch | None) -> None:
        self._observers: list[Callable[[], None]] = []
        self._effects, self._clock = kernel.effects, kernel.clock
        self._fetch = fetch
        self._url: str | None = None
        self._look_at = kernel.deadlines.new(self._look)
        self._was_read = self._has_failed = False
        if config.namesrv_addr and is_lookup(config.namesrv_addr):
            self._url = config.namesrv_addr.strip()
        elif config.namesrv_addr:
            self._addresses = split_name_servers(config.namesrv_addr)
        if self._url is not None and fetch is None:
            raise ConfigError(f"namesrvAddr {self._url}: this broker was created without a page fetcher")

    def observe(self, changed: Callable[[], None]) -> None:
        """Call a function after each change, and after the first look."""
        self._observers.append(changed)

    def begin(self) -> None:
        """Start fetching the page periodically."""
        if self._url is not None:
            self._look_at.by(self._clock.monotonic_ms())

    def end(self) -> None:
        """Stop fetching the page."""
        self._url = None
        self._look_at.cancel()

    @property
    def is_awaited(self) -> bool:
        """Return whether the first fetch of the page is pending."""
        return self._url is not None and not self._was_read

    def _look(self, now_ms: MonotonicMs) -> None:
        if self._url is None or self._fetch is None:
            return
        # No request waits for this thread; an unresponsive page occupies it for three seconds.
        self._effects.run(Thread.DISK, partial(self._fetch, self._url), self._found)

    def _found(self, outcome: object) -> None:
        if self._url is None:
            return
        is_found = isinstance(outcome, tuple)
        if not is_found and not self._has_failed:
            log.warning("the name servers of before are used", known=len(self), reason=str(outcome))
        self._has_failed = not is_found
        wait_ms = LOOK_MS if self._addresses or is_found else FIRST_MS
        self._look_at.at(self._clock.monotonic_ms() + wait_ms)
        is_first, self._was_read = not self._was_read, True
        is_changed = isinstance(outcome, tuple) and set(outcome) != set(self._addresses)
        if isinstance(outcome, tuple) and is_changed:
            log.info("the name servers changed", name_servers=";".join(outcome))
            self._addresses = outcome
        if is_changed or is_first:
            for changed in self._observers:
                changed()
