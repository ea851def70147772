"""The tables of a broker below `config/`: topics, groups, users, fences, coordinated groups and others; how
each is loaded and when it is folded.

Each but the last has a ledger: a change is in its journal before it takes effect, and the whole table is
written soon after, by a thread (`plan_folds`). Members' heartbeats bring the filters again.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from libramq.auth.users import Users
from libramq.broker.config import BrokerConfig
from libramq.catalog import GroupTable, TopicTable
from libramq.catalog.config_file import ConfigFile
from libramq.catalog.config_ledger import ConfigChange, ConfigLedger, FoldPlan
from libramq.catalog.journal_sync import JournalSync
from libramq.catalog.request_modes import RequestModes, RequestModesFile
from libramq.catalog.requirements import Requirements
from libramq.catalog.topic_table import TopicRules, TopicsFile
from libramq.clock import Clock, read_clock
from libramq.filesystem import FileSystem
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
from libramq.offsets import Fences
from libramq.offsets.commits_ahead import CommitAhead, CommitsAhead, CommitsAheadFile
from libramq.offsets.fence import FencesFile, Opening
from libramq.pop.ordered import OrderEntry, OrderFile, OrderTable

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Fold:
    """A table to be written whole, and its ledger, which gets the result."""

    ledger: ConfigLedger[Any]
    plan: FoldPlan


class Tables:
    """The tables below `config/`, as last written."""

    def __init__(self, config: BrokerConfig, filesystem: FileSystem, *, clock: Clock) -> None:
        self._config = config
        self._filesystem = filesystem
        #: Under SYNC_FLUSH no table content is sent before its journal is on the disk.
        self.journals = JournalSync(waits=config.flush_disk_type == "SYNC_FLUSH")
        self._folded: list[tuple[ConfigLedger[Any], Callable[[], object]]] = []
        #: Whether any table changed since it was last written.
        self.has_changes = False
        #: Called when a fold becomes due.
        self.changed: Callable[[], None] = lambda: None
        self.topics = self._load_topics()
        self.groups = self._load_groups()
        self.requirements = Requirements(self.topics, self.groups)
        self.fences = self._load_fences()
        self.commits_ahead = self._load_commits_ahead()
        self.filters_file = ConfigFile(filesystem, Path(config.store_path) / "config" / "consumerFilter.json")
        loaded = self.filters_file.load_cache(
            ConsumerFiltersFile, otherwise="filters are those of members' next heartbeats"
        )
        self.filters = ConsumerFilters(loaded, wall_ms=clock.wall_ms())
        self.request_modes = self._load_request_modes()
        self.users = self._load_users()
        self.ordered = self._load_ordered(clock)
        self.group_states: dict[str, GroupState] = {}
        self._states_ledger = self._load_group_states()
        #: Groups of KIP-848, with members or without, and their members.
        self.modern_groups: dict[str, SavedEntry] = {}
        self._modern_ledger = self._load_modern_groups()

    def plan_folds(self) -> list[Fold]:
        """Return the changed tables, to be written in a thread."""
        self.has_changes = False
        return [
            Fold(ledger, plan)
            for ledger, value in self._folded
            if (plan := ledger.plan_fold(value)) is not None
        ]

    def close(self) -> None:
        """Write what changed and close; a failure does not stop the rest."""
        with ExitStack() as stack:
            for ledger, value in self._folded:
                stack.callback(ledger.close, value)

    def abandon(self) -> None:
        """Close without writing."""
        for ledger, _ in self._folded:
            ledger.abandon()

    def record_group(self, group: str, state: GroupState | None) -> None:
        """Record the state of a coordinated group, None: remove it; raises OSError if the disk refuses."""
        self._states_ledger.append(group, state)
        self._apply_state(group, state)

    def record_modern_group(self, key: str, entry: SavedEntry | None) -> None:
        """Record a group of KIP-848 or a member, None: remove it; raises OSError if the disk refuses."""
        self._modern_ledger.append(key, entry)
        self._apply_modern(key, entry)

    def _apply_modern(self, key: str, entry: SavedEntry | None) -> None:
        if entry is None:
            self.modern_groups.pop(key, None)
        else:
            self.modern_groups[key] = entry

    def _apply_state(self, group: str, state: GroupState | None) -> None:
        if state is None:
            self.group_states.pop(group, None)
        else:
            self.group_states[group] = state

    def _ledger(self, file_name: str, kind: type[C], *, is_private: bool = False) -> ConfigLedger[C]:
        path = Path(self._config.store_path) / "config" / file_name
        filesystem = self._filesystem.private() if is_private else self._filesystem
        return ConfigLedger(filesystem, path, kind, self._note_change, self.journals)

    def _note_change(self) -> None:
        if not self.has_changes:
            self.has_changes = True
            self.changed()

    def _load_topics(self) -> TopicTable:
        rules = TopicRules(
            auto_create_topic_enable=self._config.auto_create_topic_enable,
            default_topic_queue_nums=self._config.default_topic_queue_nums,
            broker_name=self._config.broker_name,
            cluster_name=self._config.cluster_name,
            has_light=self._config.has_light_queues,
            has_audit=self._config.is_audited,
        )
        ledger = self._ledger("topics.json", TopicConfig)
        table = TopicTable(rules, ledger.load(TopicsFile), record=ledger.append)
        ledger.replay(lambda change: table.apply(change.name, change.config, change.version))
        self._folded.append((ledger, table.file))
        return table

    def _load_groups(self) -> GroupTable:
        ledger = self._ledger("subscriptionGroup.json", SubscriptionGroupConfig)
        table = GroupTable(
            auto_create=self._config.auto_create_subscription_group,
            has_light=self._config.has_light_queues,
            loaded=ledger.load(SubscriptionGroupWrapper),
            record=ledger.append,
        )
        ledger.replay(lambda change: table.apply(change.name, change.config, change.version))
        self._folded.append((ledger, table.wrapper))
        return table

    def _load_request_modes(self) -> RequestModes:
        ledger = self._ledger("messageRequestMode.json", MessageRequestMode)
        table = RequestModes(ledger.load(RequestModesFile), record=ledger.append)
        ledger.replay(lambda change: table.apply(change.name, change.config))
        self._folded.append((ledger, table.file))
        return table

    def _load_users(self) -> Users:
        ledger = self._ledger("users.json", Account, is_private=True)
        table = Users(ledger.load(UsersFile), record=ledger.append)
        ledger.replay(lambda change: table.apply(change.name, change.config))
        self._folded.append((ledger, table.file))
        return table

    def _load_ordered(self, clock: Clock) -> OrderTable:
        ledger = self._ledger("consumerOrderInfo.json", OrderEntry)
        file = ledger.load(OrderFile)
        table = OrderTable(
            file.table if file is not None else {}, now=partial(read_clock, clock), record=ledger.append
        )
        ledger.replay(lambda change: table.apply(change.name, change.config))
        self._folded.append((ledger, lambda: OrderFile(table=table.entries())))
        return table

    def _load_fences(self) -> Fences:
        ledger = self._ledger("groupFences.json", Opening)
        fences = Fences(self._config.broker_name, record=ledger.append)
        file = ledger.load(FencesFile)
        for name, opening in file.openings.items() if file is not None else ():
            fences.apply(name, opening)
        ledger.replay(lambda change: fences.apply(change.name, change.config))
        self._folded.append((ledger, fences.file))
        return fences

    def _load_commits_ahead(self) -> CommitsAhead:
        ledger = self._ledger("kafkaCommitsAhead.json", CommitAhead)
        commits = CommitsAhead(
            record=lambda changes: ledger.append_all([ConfigChange(*change) for change in changes.items()])
        )
        file = ledger.load(CommitsAheadFile)
        for name, commit in file.commits.items() if file is not None else ():
            commits.apply(name, commit)
        ledger.replay(lambda change: commits.apply(change.name, change.config))
        self._folded.append((ledger, commits.file))
        return commits

    def _load_group_states(self) -> ConfigLedger[GroupState]:
        ledger = self._ledger("groups.json", GroupState)
        file = ledger.load(GroupStatesFile)
        self.group_states.update(file.groups if file is not None else {})
        ledger.replay(lambda change: self._apply_state(change.name, change.config))
        self._folded.append((ledger, lambda: GroupStatesFile(groups=dict(self.group_states))))
        return ledger

    def _load_modern_groups(self) -> ConfigLedger[SavedEntry]:
        ledger = self._ledger("kafkaGroups.json", SavedEntry)
        file = ledger.load(ModernGroupsFile)
        self.modern_groups.update(file.entries if file is not None else {})
        ledger.replay(lambda change: self._apply_modern(change.name, change.config))
        self._folded.append((ledger, lambda: ModernGroupsFile(entries=dict(self.modern_groups))))
        return ledger
