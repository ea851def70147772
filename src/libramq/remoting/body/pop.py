"""The bodies of POP: acknowledgements of several messages.

Upstream: body/BatchAckMessageRequestBody.java, BatchAck.java, BitSetSerializerDeserializer.java.
"""

import base64
import binascii

import msgspec

from libramq.errors import RemoteProtocolError
from libramq.formats.document import Document


class BatchAckText(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "consumer_group": "c",
        "topic": "t",
        "retry": "r",
        "start_offset": "so",
        "queue_id": "q",
        "revive_queue": "rq",
        "pop_time": "pt",
        "invisible_time": "it",
        "bit_set": "b",
    },
):
    """The messages of one check point that are done. retry: the kind of topic (`names.pop_kind`).

    bit_set: Base64 of Java's BitSet: bit i stands for the message at `start_offset` + i.
    """

    consumer_group: str
    topic: str
    retry: str = "0"
    start_offset: int
    queue_id: int
    revive_queue: int = 0
    pop_time: int
    invisible_time: int
    bit_set: str = ""

    def bits(self) -> bytes:
        """Return the bit set; raises RemoteProtocolError if it is none."""
        try:
            return base64.b64decode(self.bit_set, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RemoteProtocolError(f"the bit set of a batch of acknowledgements: {error}") from None


class BatchAckBody(Document, frozen=True, kw_only=True):
    """BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAckText] = []
