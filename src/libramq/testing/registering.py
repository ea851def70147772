"""The simulated registration: tells the name server about a broker, as `broker.registration` does."""

from libramq.broker.config import BrokerConfig
from libramq.broker.registration import (
    CHANGE_DELAY_MS,
    REGISTER_TIMEOUT_MS,
    RETRY_MS,
    UNREGISTER_TIMEOUT_MS,
    farewell,
    introduction,
)
from libramq.catalog import TopicTable
from libramq.errors import LibraError
from libramq.rpc.name_server_calls import register_broker, unregister_broker
from libramq.testing.process import Process
from libramq.testing.remotes import SimulatedRemotes
from libramq.testing.virtual_time import Action


class SimulatedRegistration:
    """At start, at every change, and again and again."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        process: Process,
        remotes: SimulatedRemotes,
        name_server: str,
    ) -> None:
        self._config = config
        self._topics = topics
        self._process = process
        self._remotes = remotes
        self._name_server = name_server
        self._is_busy = self._has_changed = False

    def begin(self) -> None:
        """Register, and go on registering."""
        self._register()
        self._process.every(self._config.register_name_server_period_ms, self.announce)

    def announce(self) -> None:
        """The topics changed, or the name server may have forgotten us."""
        self._has_changed = True
        if not self._is_busy:
            self._is_busy = True
            self._process.after(CHANGE_DELAY_MS, self._register)

    def end(self, then: Action) -> None:
        """Say that we leave, and go on when that was heard or not."""
        call = unregister_broker(farewell(self._config))
        self._remotes.ask(self._name_server, call, lambda _: self._process.do(then), UNREGISTER_TIMEOUT_MS)

    def _register(self) -> None:
        self._is_busy, self._has_changed = True, False
        call = register_broker(*introduction(self._config, self._topics))
        self._remotes.ask(self._name_server, call, self._registered, REGISTER_TIMEOUT_MS)

    def _registered(self, outcome: object) -> None:
        if isinstance(outcome, LibraError):
            self._process.after(RETRY_MS, self._register)
        elif self._has_changed:
            self._process.after(CHANGE_DELAY_MS, self._register)
        else:
            self._is_busy = False
