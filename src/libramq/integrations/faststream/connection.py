"""The connection of a FastStream broker: its producer, which is made when the broker connects."""

from typing import Any

from faststream.exceptions import IncorrectState

from libramq.admin.admin import Admin
from libramq.client.producing.producer import Producer
from libramq.errors import LibraError


class Connection:
    """The clients of one broker. options: those that all of LibraMQ's clients have."""

    def __init__(self, group: str = "", **options: Any) -> None:
        self.group = group
        self.options = options
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    @property
    def producer(self) -> Producer:
        """Return the producer; raises IncorrectState before the broker is connected."""
        if self._producer is None:
            raise IncorrectState("connect or start the broker first: it has no producer yet")
        return self._producer

    async def connect(self) -> Producer:
        """Start the clients."""
        if self._producer is None:
            producer, admin = Producer(group=self.group, **self.options), Admin(**self.options)
            await producer.start()
            await admin.start()
            self._producer, self._admin = producer, admin
        return self._producer

    async def disconnect(self) -> None:
        """Stop them."""
        producer, self._producer = self._producer, None
        admin, self._admin = self._admin, None
        if producer is not None:
            await producer.stop()
        if admin is not None:
            await admin.stop()

    async def ping(self) -> bool:
        """Return whether a name server answers with a broker."""
        if self._admin is None:
            return False
        try:
            return bool((await self._admin.cluster_info()).broker_addr_table)
        except LibraError:
            return False
