"""InitProducerId (22): producers' ids, and how the sequences of idempotent producers survive a restart.

    the log                                       each record has its batch's numbers
    config/kafkaProducers.json, every 5 s         the sequences, and the log's end at that time

At startup the log is read from that position. The file is progress (`broker.files.progress`): it is written
only after the log is on the disk up to there, so it never contains a batch that a power cut has lost. Without
a file, as at a promoted slave, the last part of the log is read.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from libramq.batches.kafka_batch import PRODUCER
from libramq.broker.files.persistence import PROGRESS_MS
from libramq.broker.files.progress import DocumentSource, ProgressFile
from libramq.catalog.config_file import ConfigFile
from libramq.catalog.topic_table import TopicTable
from libramq.clock import MonotonicMs
from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.formats.document import Document
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message.inner_batch import message_count
from libramq.message.properties import find_property
from libramq.message.record import RecordHead
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.idempotent_producers import Entry, Key, Sequences, read_mark
from libramq.secret_bits import SecretBits
from libramq.store.log.log_scan import LogScan
from libramq.store.message_store import MessageStore
from libramq.store.reading.read_only_files import FileRemoved, ReadOnlyFiles
from libramq.wire.kafka.apis.produce import InitProducerIdRequest, InitProducerIdResponse
from libramq.wire.kafka.error_code import ErrorCode

log = get_logger(__name__)

FILE_NAME: Final = "kafkaProducers.json"
SAVE_MS: Final = 5_000
#: Ours: bytes of the log that are read without a file, in about a second.
SCAN_BYTES_MAX: Final = 256 * 1024 * 1024
_PRODUCER: Final = PRODUCER.encode()
#: Ids are 62 random bits: brokers need not remember them, and no two brokers assign the same.
_ID_BYTES: Final = 8
_ID_MAX: Final = (1 << 62) - 1


class ProducersFile(Document, frozen=True, kw_only=True):
    """The content of the file. log_end: later records are not included."""

    log_end: int
    entries: Sequence[tuple[Key, Entry]] = ()


class Producers:
    """Assigns producers' ids and tracks their sequences. directory: that of the file."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        kernel: Kernel,
        filesystem: FileSystem,
        directory: Path,
        secret_bits: SecretBits,
    ) -> None:
        self._store = store
        self._topics = topics
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._filesystem = filesystem
        self._secret_bits = secret_bits
        self.sequences = Sequences(store.next_offset)
        self._file = ConfigFile(filesystem, directory / FILE_NAME)
        source = DocumentSource(
            self._file,
            lambda: self.sequences.version,
            lambda: ProducersFile(log_end=store.end, entries=self.sequences.snapshot()),
            self.sequences.expire,
        )
        self._progress = ProgressFile(FILE_NAME, SAVE_MS, source, store, kernel.clock)
        self._due = kernel.deadlines.new(self._save, FILE_NAME)
        self._topics.observe(self._topic_changed)

    @serves(InitProducerIdRequest)
    def init(self, request: InitProducerIdRequest, slot: Slot) -> None:
        """Answer with a new id, which is not stored before its first batch."""
        if request.transactional_id is not None:
            slot.answer(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1))
            return
        new_id = int(self._secret_bits.token_hex(_ID_BYTES), 16) & _ID_MAX
        slot.answer(InitProducerIdResponse(producer_id=new_id))

    def changed(self) -> None:
        """Schedule a write of the file."""
        if self._due.due_ms is None and not self._progress.is_writing:
            self._due.at(self._clock.monotonic_ms() + PROGRESS_MS)

    def recover(self) -> None:
        """Recover the sequences from the file and the log; waits for the disk, and may run on a thread.

        Without a readable file, the last part of the log is read.
        """
        end = self._store.end
        saved = self._file.load_cache(ProducersFile, otherwise="the log's last part is read")
        start = max(0, end - SCAN_BYTES_MAX)
        if saved is not None and saved.log_end <= end:
            self.sequences.restore(saved.entries)
            start = saved.log_end
        while start < end:
            try:
                start = self._read(start, end)
            except FileRemoved:  # Continue with the following files.
                continue
            except StoreCorrupt as damaged:
                log.error("retries of Kafka's producers may be stored twice", reason=str(damaged))
                return

    def _read(self, start: int, end: int) -> int:
        """Read the log; return where it ends."""
        directory = self._store.config.commit_log_directory
        with closing(ReadOnlyFiles(self._filesystem, directory)) as files:
            # `protected`: the scan may begin in the middle of a record, and continues after damage.
            for found in LogScan(files, max(start, files.min_offset), protected=end):
                if isinstance(found, RecordHead):
                    if found.physical_offset >= end:
                        break
                    self._note(found)
        return end

    def _note(self, head: RecordHead) -> None:
        data = find_property(head.properties, _PRODUCER)
        marked = read_mark(data) if data is not None else None
        if marked is not None:
            end = head.physical_offset + head.size
            self.sequences.note_record(
                head.topic, head.queue_id, head.queue_offset, marked, end, head.store_timestamp_ms,
                count=message_count(head),
            )  # fmt: skip

    # The file.

    def _topic_changed(self, topic: str) -> None:
        if topic not in self._topics:
            self.sequences.forget_topic(topic)

    def _save(self, now_ms: MonotonicMs) -> None:
        if self._progress.is_due(now_ms):
            self._progress.begin_writing()
            self._effects.run(Thread.DISK, self._progress.write, self._written)
        elif self._progress.has_changes:
            self._due.at(now_ms + PROGRESS_MS)

    def _written(self, result: object) -> None:
        self._progress.done(result)
        if self._progress.has_changes:
            self.changed()
