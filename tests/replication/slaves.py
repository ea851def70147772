"""A slave as its master sees it, which reports when the test says so."""

from libramq.replication.blocks import Block, BlockReader
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


class Slave(FakePeer):
    """A slave's end of a connection to the HA port, which reports only when a test calls `report`."""

    def __init__(self, talk: Conversation, address: str = "127.0.0.1:60000") -> None:
        super().__init__(address)
        self.blocks: list[Block] = []
        self._blocks = BlockReader()
        self._entrance = talk.performer.entrance(talk.broker.replication.service)
        self._entrance.connected(self)

    def write(self, data: bytes) -> None:
        self.blocks += self._blocks.receive(data)

    def report(self, offset: int) -> None:
        self._entrance.received(self, [offset])

    def follow(self) -> None:
        """Report all received data, until no more arrives."""
        count = -1
        while count != len(self.blocks):
            count = len(self.blocks)
            self.report(self.end)

    @property
    def end(self) -> int:
        return self.blocks[-1].offset + len(self.blocks[-1].data)

    @property
    def data(self) -> bytes:
        return b"".join(block.data for block in self.blocks)

    def hang_up(self) -> None:
        self.is_open = False
        self._entrance.closed(self)
