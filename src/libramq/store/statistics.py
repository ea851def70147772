"""The statistics of a store: a snapshot for metrics and BROKER_RUNTIME_INFO."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A snapshot of a store's content and activity since the opening; it reads nothing from the disk."""

    min_physical_offset: int
    max_physical_offset: int
    flushed_offset: int
    visible_offset: int
    queue_count: int
    open_file_count: int
    put_message_count: int
    put_bytes: int
    get_message_count: int
    get_bytes: int
    unreadable_count: int
    failure: str | None
