"""A broker that sends inner batches whole: a task returns exactly the messages of its ranges."""

import pytest

from libramq.message.batch import BatchItem
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.remoting.command import Command, reply_to
from libramq.remoting.headers import PullMessageHeader, decode_header
from libramq.spark.reading.positions import Range
from libramq.spark.reading.source_options import SourceOptions
from libramq.spark.reading.worker import read_ranges

from ..client.fake_broker import FakeBroker, serving
from ..message.inner_batches import wrapped

SIZE, COUNT = 7, 50


class BatchingBroker(FakeBroker):
    """A broker of batches of seven messages; a pull returns two batches."""

    def _pull(self, request: Command) -> Command | None:
        header = decode_header(request, PullMessageHeader)
        assert header.lb_takes_batches
        held, offset = self.queues[self._queue(request)], header.queue_offset
        self.pulls.append((offset, header.max_msg_nums))
        base = offset - offset % SIZE
        end = min(base + 2 * SIZE, COUNT)
        body = b"".join(self._batch(held, at) for at in range(base, end, SIZE))
        ext = {
            "minOffset": "0",
            "maxOffset": str(COUNT),
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(end),
        }
        return reply_to(request, 0, ext=ext, body=body)

    def _batch(self, held: dict[int, bytes], base: int) -> bytes:
        messages = [m for at in range(base, min(base + SIZE, COUNT)) for m in decode_records(held[at])]
        return wrapped([BatchItem(0, message.body, message._stored) for message in messages], base)


@pytest.mark.parametrize(("start", "end"), [(0, COUNT), (3, 4), (10, 33), (6, 7), (49, 50)])
def test_a_range_has_its_messages_wherever_its_batches_begin(start, end):
    queue = MessageQueue("T", "broker-a", 0)
    with serving(BatchingBroker()) as broker:
        broker.fill("T", 1, COUNT)
        options = SourceOptions.parse({"subscribe": "T", "namesrv": broker.address})
        columns = ("offset", "body", "key", "queueId")
        batches = list(read_ranges(options, columns, [Range(queue, start, end)]))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(start, end))
    assert [row["body"] for row in rows] == [b"0/%d" % offset for offset in range(start, end)]
    assert {row["key"] for row in rows} == {"k"}
