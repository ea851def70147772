"""The options of the store, under the names of Apache's MessageStoreConfig: files, flushes, retention."""

import os
from dataclasses import dataclass
from typing import Final

from libramq.broker.option import option
from libramq.broker.timer_config import TimerConfig
from libramq.errors import ConfigError
from libramq.formats.properties_file import shown
from libramq.message.properties import whole_number
from libramq.message.record import RECORD_BYTES_MAX
from libramq.remoting.frame import HEADER_BYTES_MAX
from libramq.store.config import IN_MEMORY_BYTES

#: ScheduleMessageService, MessageStoreConfig.messageDelayLevel.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
#: A message must fit in a pull's frame, with its record and the reply's header.
MESSAGE_BYTES_MAX: Final = RECORD_BYTES_MAX - HEADER_BYTES_MAX
HOURS_A_DAY: Final = 24
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStoreConfig(TimerConfig):
    """The options of the store, those of timer messages included."""

    store_path: str = option(
        "libra-data", "storePathRootDir", "The directory of commit log, consume queues and tables."
    )
    commit_log_path: str = option(
        "",
        "storePathCommitLog",
        "The directory of the commit log, to have it on another disk. Default: `commitlog` in "
        "`storePathRootDir`. If you change it for an existing store, move the files too.",
    )
    max_message_size: int = option(
        4 * 1024 * 1024, "maxMessageSize", "The largest body of a message, in bytes."
    )
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        "flushDiskType",
        "`SYNC_FLUSH`: a send is acknowledged when its message is on the disk. `ASYNC_FLUSH`: when it is "
        "written to the page cache; a power cut may lose the messages of the last `flushIntervalCommitLog`.",
    )
    flush_interval_ms: int = option(
        500, "flushIntervalCommitLog", "How often the commit log is flushed under `ASYNC_FLUSH`, in ms."
    )
    commit_log_file_bytes: int = option(
        1 << 30,
        "mappedFileSizeCommitLog",
        "The size of a commit log file. Do not change it for a store that exists.",
    )
    consume_queue_file_bytes: int = option(
        6_000_000,
        "mappedFileSizeConsumeQueue",
        "The size of a consume queue file: 20 bytes for each message.",
    )
    access_message_in_memory_max_ratio: int = option(  # Apache's default is 40.
        -1,
        "accessMessageInMemoryMaxRatio",
        "How many of the newest messages count as being in memory, in % of the machine's. Behind them pulls "
        "get less at a time, and with `slaveReadEnable` are sent to a slave. -1: 2 GiB of messages.",
    )
    max_hash_slot_num: int = option(
        5_000_000,
        "maxHashSlotNum",
        "The slots of an index file. Do not change it for a store that exists.",
    )
    max_index_num: int = option(
        20_000_000,
        "maxIndexNum",
        "The entries of an index file; each key of a message takes one. Do not change it for a store that "
        "exists.",
    )
    enable_retry_topic_v2: bool = option(
        False,
        "enableRetryTopicV2",
        "Name POP's retry topics `%RETRY%GROUP+TOPIC`, which cannot be another group's. Messages "
        "under the old name, `%RETRY%GROUP_TOPIC`, are delivered as well.",
    )
    enable_lmq: bool = option(
        False,
        "enableLmq",
        "Light queues (LMQ): a message whose property `INNER_MULTI_DISPATCH` names `%LMQ%` topics, separated "
        "by commas, can be read from each of them as well; they and `%LMQ%` groups need not be created. "
        "Together with `enableMultiDispatch`.",
    )
    enable_multi_dispatch: bool = option(
        False, "enableMultiDispatch", "Light queues, together with `enableLmq`."
    )
    max_lmq_consume_queue_num: int = option(
        20_000,
        "maxLmqConsumeQueueNum",
        "How many light queues there may be; a message that names one more is refused.",
    )
    message_delay_level: str = option(
        DELAY_LEVELS, "messageDelayLevel", "The delay levels, the first is level 1."
    )
    file_reserved_hours: int = option(
        72,
        "fileReservedTime",
        "How long messages are kept, in hours. Older files of the commit log are deleted "
        "in the hours of `deleteWhen`, and at any time from `diskMaxUsedSpaceRatio` on.",
    )
    delete_when: str = option(
        "04", "deleteWhen", "The hours of the day in which old files are deleted, 00 to 23, separated by `;`."
    )
    disk_max_used_space_ratio: int = option(
        75,
        "diskMaxUsedSpaceRatio",
        "Above this use of the disk, in percent, files older than `fileReservedTime` are deleted at any "
        "hour; 100: never.",
    )
    disk_space_clean_forcibly_ratio: int = option(
        85,
        "diskSpaceCleanForciblyRatio",
        "Above this use of the disk, in percent, the oldest files are deleted **whatever their age**, as "
        "many as it takes; 100: never.",
    )
    clean_file_forcibly_enable: bool = option(
        True,
        "cleanFileForciblyEnable",
        "Allow forced cleaning. With `false` messages stay for `fileReservedTime`, and producers are "
        "refused when the disk is full.",
    )
    delete_file_batch_max: int = option(
        10, "deleteFileBatchMax", "The most files of the commit log that are deleted at once, every 10 s."
    )
    disk_space_warning_level_ratio: int = option(
        90,
        "diskSpaceWarningLevelRatio",
        "From this use of the disk on, in percent, producers are refused while consumers continue; 100: "
        "never.",
    )

    @property
    def has_light_queues(self) -> bool:
        """Return whether messages go to the light queues that they name."""
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def in_memory_bytes(self) -> int:
        """Return how many of the newest bytes of the commit log count as being in memory."""
        percent = self.access_message_in_memory_max_ratio
        if percent < 0:
            return IN_MEMORY_BYTES
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * percent // 100

    def check_store(self) -> None:
        """Raise ConfigError for values that there are not."""
        self.check_timers()
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(f"flushDiskType {self.flush_disk_type!r}; ASYNC_FLUSH or SYNC_FLUSH is allowed")
        if "," in self.commit_log_path:
            raise ConfigError(f"storePathCommitLog={self.commit_log_path}: only one directory is supported")
        if self.enable_lmq != self.enable_multi_dispatch:
            raise ConfigError("enableLmq and enableMultiDispatch: light queues need both, set the other too")
        if self.max_lmq_consume_queue_num <= 0:
            raise ConfigError(f"maxLmqConsumeQueueNum {self.max_lmq_consume_queue_num} is not positive")
        if not self.delete_hours:
            raise ConfigError("deleteWhen is empty; write for example '04' or '03;15'")
        if not self.delay_levels_ms:
            raise ConfigError(f"messageDelayLevel is empty; write for example {DELAY_LEVELS!r}")

    @property
    def delete_hours(self) -> frozenset[int]:
        """Return the hours of the day in which old files are deleted."""
        hours = []
        for text in filter(None, self.delete_when.split(";")):
            hour = whole_number(text.strip())
            if hour is None or hour >= HOURS_A_DAY:
                raise ConfigError(f"deleteWhen {shown(text)!r}; hours 00 to 23 are allowed, separated by ;")
            hours.append(hour)
        return frozenset(hours)

    @property
    def delay_levels_ms(self) -> list[int]:
        """Return the delay of each level; the first is level 1."""
        levels = []
        for text in self.message_delay_level.split():
            count, seconds = whole_number(text[:-1]), _SECONDS.get(text[-1])
            if count is None or seconds is None:
                raise ConfigError(f"messageDelayLevel {shown(text)!r}; write for example '1s 5s 1m 2h'")
            levels.append(count * seconds * 1000)
        return levels
