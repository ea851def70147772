"""The tables of a broker below `config/`: topics, groups, users, fences, coordinated groups and others; how
each is loaded and when it is folded.

Each but the filters has a ledger: a change is in its journal before it takes effect, and the whole table is
written soon after by a thread (`plan_folds`). Members' heartbeats register the filters again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from libramq.auth.users import Users
from libramq.broker.config import BrokerConfig
from libramq.catalog.config_file import ConfigFile
from libramq.catalog.config_ledger import ConfigChange, ConfigLedger
from libramq.catalog.group_table import GroupTable
from libramq.catalog.journal_sync import JournalSync
from libramq.catalog.request_modes import RequestModes, RequestModesFile
from libramq.catalog.requirements import Requirements
from libramq.catalog.topic_table import TopicRules, TopicsFile, TopicTable
from libramq.clock import Clock, read_clock
from libramq.filesystem import FileSystem, PendingWrite
from libramq.filter.consumer_filters import ConsumerFilters, ConsumerFiltersFile
from libramq.formats.access import Account, UsersFile
from libramq.formats.tables import (
    MessageRequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
)
from libramq.groups.coordinator.state import GroupState, GroupStatesFile
from libramq.groups.modern.saved_state import ModernGroupsFile, SavedEntry
from libramq.offsets.commits_ahead import CommitAhead, CommitsAhead, CommitsAheadFile
from libramq.offsets.fence import Fences, FencesFile, Opening
from libramq.pop.ordered import OrderEntry, OrderFile, OrderTable

C = TypeVar("C")
F = TypeVar("F")
T = TypeVar("T", bound="_Table")


class _Table(Protocol):
    """A table as its ledger sees it."""

    def apply(self, name: str, entry: Any, /) -> None:
        """Apply a recorded change of an entry."""

    def file(self) -> object:
        """Return the content of the file."""


class Entries(Generic[C]):
    """A table of plain entries. file: returns the content of its file."""

    def __init__(
        self, record: Callable[[str, C | None], None], file: Callable[[dict[str, C]], object]
    ) -> None:
        self.by_name: dict[str, C] = {}
        self._record = record
        self._file = file

    def put(self, name: str, entry: C | None) -> None:
        """Record an entry, or remove it with None; raises OSError if the disk refuses."""
        self._record(name, entry)
        self.apply(name, entry)

    def apply(self, name: str, entry: C | None) -> None:
        """Apply a recorded change."""
        if entry is None:
            self.by_name.pop(name, None)
        else:
            self.by_name[name] = entry

    def file(self) -> object:
        """Return the content of the file."""
        return self._file(dict(self.by_name))


class Tables:
    """The tables below `config/`, as last written."""

    def __init__(self, config: BrokerConfig, filesystem: FileSystem, *, clock: Clock) -> None:
        self._directory = Path(config.store_path) / "config"
        self._filesystem = filesystem
        #: Under SYNC_FLUSH no table content is sent before its journal is on the disk.
        self.journals = JournalSync(waits=config.flush_disk_type == "SYNC_FLUSH")
        self._folded: list[tuple[ConfigLedger[Any], Callable[[], object]]] = []
        #: Whether any table changed since it was last written.
        self.has_changes = False
        #: Called when a fold becomes due.
        self.changed: Callable[[], None] = lambda: None
        self.topics = self._open_topics(config)
        self.groups = self._open_groups(config)
        self.requirements = Requirements(self.topics, self.groups)
        self.fences = self._open(
            "groupFences.json", Opening, FencesFile, lambda file: file.openings,
            lambda ledger: Fences(config.broker_name, record=ledger.append),
        )  # fmt: skip
        self.commits_ahead = self._open(
            "kafkaCommitsAhead.json", CommitAhead, CommitsAheadFile, lambda file: file.commits,
            lambda ledger: CommitsAhead(
                record=lambda changes: ledger.append_all([ConfigChange(*each) for each in changes.items()])
            ),
        )  # fmt: skip
        self.filters_file = ConfigFile(filesystem, self._directory / "consumerFilter.json")
        loaded = self.filters_file.load_cache(
            ConsumerFiltersFile, otherwise="filters are those of members' next heartbeats"
        )
        self.filters = ConsumerFilters(loaded, wall_ms=clock.wall_ms())
        self.request_modes = self._open(
            "messageRequestMode.json", MessageRequestMode, RequestModesFile, RequestModesFile.entries,
            lambda ledger: RequestModes(record=ledger.append),
        )  # fmt: skip
        self.users = self._open(
            "users.json", Account, UsersFile, lambda file: file.users,
            lambda ledger: Users(record=ledger.append), is_private=True,
        )  # fmt: skip
        self.ordered = self._open(
            "consumerOrderInfo.json", OrderEntry, OrderFile, OrderFile.entries,
            lambda ledger: OrderTable(now=partial(read_clock, clock), record=ledger.append),
        )  # fmt: skip
        #: The states of coordinated groups.
        self.group_states = self._open(
            "groups.json", GroupState, GroupStatesFile, lambda file: file.groups,
            lambda ledger: Entries[GroupState](ledger.append, lambda groups: GroupStatesFile(groups=groups)),
        )  # fmt: skip
        #: Groups of KIP-848, with or without members, and their members.
        self.modern_groups = self._open(
            "kafkaGroups.json", SavedEntry, ModernGroupsFile, lambda file: file.entries,
            lambda ledger: Entries[SavedEntry](ledger.append, lambda them: ModernGroupsFile(entries=them)),
        )  # fmt: skip

    def plan_folds(self) -> Iterator[tuple[ConfigLedger[Any], PendingWrite]]:
        """Yield the writes of changed tables, for a thread; each is independent of the others' failures."""
        self.has_changes = False
        for ledger, value in self._folded:
            if (plan := ledger.plan_fold(value)) is not None:
                yield ledger, plan

    def close(self) -> None:
        """Write changed tables and close; a failure does not stop the rest."""
        with ExitStack() as stack:
            for ledger, value in self._folded:
                stack.callback(ledger.close, value)

    def abandon(self) -> None:
        """Close without writing."""
        for ledger, _ in self._folded:
            ledger.abandon()

    def _open(
        self,
        file_name: str,
        kind: type[C],
        content: type[F],
        entries: Callable[[F], Mapping[str, C]],
        empty: Callable[[ConfigLedger[C]], T],
        *,
        is_private: bool = False,
    ) -> T:
        """Return a table with the entries of its file and the changes since. empty: creates an empty one."""
        ledger = self._ledger(file_name, kind, is_private=is_private)
        table, file = empty(ledger), ledger.load(content)
        for name, entry in entries(file).items() if file is not None else ():
            table.apply(name, entry)
        ledger.replay(lambda change: table.apply(change.name, change.config))
        self._folded.append((ledger, table.file))
        return table

    def _ledger(self, file_name: str, kind: type[C], *, is_private: bool = False) -> ConfigLedger[C]:
        filesystem = self._filesystem.private() if is_private else self._filesystem
        return ConfigLedger(filesystem, self._directory / file_name, kind, self._note_change, self.journals)

    def _note_change(self) -> None:
        if not self.has_changes:
            self.has_changes = True
            self.changed()

    def _open_topics(self, config: BrokerConfig) -> TopicTable:
        rules = TopicRules(
            auto_create_topic_enable=config.auto_create_topic_enable,
            default_topic_queue_nums=config.default_topic_queue_nums,
            broker_name=config.broker_name,
            cluster_name=config.cluster_name,
            has_light=config.has_light_queues,
            has_audit=config.is_audited,
        )
        ledger = self._ledger("topics.json", TopicConfig)
        table = TopicTable(rules, ledger.load(TopicsFile), record=ledger.append)
        ledger.replay(lambda change: table.apply(change.name, change.config, change.version))
        self._folded.append((ledger, table.file))
        return table

    def _open_groups(self, config: BrokerConfig) -> GroupTable:
        ledger = self._ledger("subscriptionGroup.json", SubscriptionGroupConfig)
        table = GroupTable(
            auto_create=config.auto_create_subscription_group,
            has_light=config.has_light_queues,
            loaded=ledger.load(SubscriptionGroupWrapper),
            record=ledger.append,
        )
        ledger.replay(lambda change: table.apply(change.name, change.config, change.version))
        self._folded.append((ledger, table.wrapper))
        return table
