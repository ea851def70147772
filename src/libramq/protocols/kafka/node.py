"""The node: this broker as Kafka clients see it."""

from typing import Final

from libramq.wire.kafka.apis.metadata import MetadataBroker

#: One broker only so far: it is node 0, leads every partition since epoch 0, and coordinates every group.
NODE_ID: Final = 0
LEADER_EPOCH: Final = 0


class Node:
    """This broker as Kafka clients see it: its address, and the name of its cluster."""

    def __init__(self, host: str, port: int, cluster_id: str) -> None:
        self.host = host
        #: Set again when the server listens, if the system chose it.
        self.port = port
        self.cluster_id = cluster_id

    @property
    def broker(self) -> MetadataBroker:
        """Return the broker for Metadata."""
        return MetadataBroker(node_id=NODE_ID, host=self.host, port=self.port)
