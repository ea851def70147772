"""The store's configuration: RocketMQ's options and defaults for the log's directory (storePathCommitLog),
file sizes, flushing (SYNC_FLUSH, ASYNC_FLUSH) and memory, and the treatment of damage.

Upstream: store/config/MessageStoreConfig.java. LibraMQ's own options are marked.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from libramq.errors import ConfigError
from libramq.message.message import BODY_BYTES_MAX
from libramq.message.record import RECORD_BYTES_MIN

PAGE_BYTES = 4096  # UtilAll / OS_PAGE_SIZE upstream
#: Ours: MessageStoreConfig.accessMessageInMemoryMaxRatio makes it 40 % of the machine's memory.
IN_MEMORY_BYTES = 2 << 30
UNIT_BYTES = 20  # ConsumeQueue.CQ_STORE_UNIT_SIZE
BATCH_UNIT_BYTES = 46  # BatchConsumeQueue.CQ_STORE_UNIT_SIZE


class FlushDiskType(StrEnum):
    """The flush mode: whether a message is on the disk before it is acknowledged and readable."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class Damaged(StrEnum):
    """The treatment of damage that a broker does not skip on its own; see store.recovery.recovery."""

    SKIP = "skip"
    CUT = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The layout, flushing and reading of a store."""

    root: Path
    commit_log: Path | None = None  # storePathCommitLog: another disk's directory, for the log alone.
    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 300_000 * UNIT_BYTES
    mapped_file_size_batch_consume_queue: int = 300_000 * BATCH_UNIT_BYTES  # Upstream: mapperFileSize….
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    max_message_size: int = BODY_BYTES_MAX
    flush_interval_commit_log_ms: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval_ms: int = 10_000
    flush_interval_consume_queue_ms: int = 1_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval_ms: int = 60_000
    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    # Ours: for pulls whose maxMsgBytes exceeds Apache's limits, as sent by readers of whole queues.
    bulk_transfer_bytes: int = 4 << 20
    bulk_transfer_count: int = 32_768
    max_filter_message_size: int = 16_000
    in_memory_bytes: int = IN_MEMORY_BYTES
    tail_bytes: int = 16 << 20  # Ours: the newest bytes of the log are kept in memory for reading.
    queue_slice_cost: int = 256  # Ours: queues written at once, or 32 new ones: 3 to 10 ms of the event loop.
    light_queues_max: int = 0  # maxLmqConsumeQueueNum where enableLmq is on; 0: no light queues.
    is_copy: bool = False  # A slave's store accepts only its master's log.
    damaged: Damaged | None = None  # Ours: the treatment of damage in flushed data; None: refuse to start.
    open_files_max: int = 256  # Ours: a quarter of the usual limit of 1024 descriptors per process.

    def __post_init__(self) -> None:
        if self.mapped_file_size_commit_log < 2 * RECORD_BYTES_MIN:
            raise ConfigError(f"mappedFileSizeCommitLog {self.mapped_file_size_commit_log} holds no message")
        queue = self.mapped_file_size_consume_queue
        if queue < UNIT_BYTES or queue % UNIT_BYTES:
            raise ConfigError(f"mappedFileSizeConsumeQueue {queue} is not a multiple of {UNIT_BYTES}")
        batches = self.mapped_file_size_batch_consume_queue
        if batches < BATCH_UNIT_BYTES or batches % BATCH_UNIT_BYTES:
            raise ConfigError(
                f"mapperFileSizeBatchConsumeQueue {batches} is not a multiple of {BATCH_UNIT_BYTES}"
            )
        if self.open_files_max < 4 or self.tail_bytes < PAGE_BYTES:
            raise ConfigError("a store needs at least 4 open files and a tail of 4096 bytes")

    @property
    def commit_log_directory(self) -> Path:
        """Return the directory of the commit log's files."""
        return self.commit_log or self.root / "commitlog"

    @property
    def disks(self) -> tuple[Path, ...]:
        """Return a directory on each disk that the store may fill."""
        return (self.root,) if self.commit_log is None else (self.root, self.commit_log)

    @property
    def consume_queue_directory(self) -> Path:
        """Return the directory of the consume queues' files, by topic and queue id."""
        return self.root / "consumequeue"

    @property
    def batch_queue_directory(self) -> Path:
        """Return the directory of the queues whose units are batches."""
        return self.root / "batchconsumequeue"
