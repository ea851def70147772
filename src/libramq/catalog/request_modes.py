"""The request modes: whether a group pulls or pops a topic, as set by an operator
(config/messageRequestMode.json) or observed of its members.

    topic → group → mode                config/messageRequestMode.json

Upstream: broker/loadbalance/MessageRequestModeManager.java.
"""

from collections.abc import Callable
from typing import Final

from libramq.catalog.config_table import refused_without_room
from libramq.errors import ConfigError
from libramq.formats.document import Document
from libramq.formats.tables import MODE_POP, MODE_PULL, MessageRequestMode

#: Ours: entries of the table; each is set by an operator's request.
MODES_MAX: Final = 100_000
_SEPARATOR: Final = "@"


class RequestModesFile(Document, frozen=True, kw_only=True):
    """The content of config/messageRequestMode.json."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = {}

    def entries(self) -> dict[str, MessageRequestMode]:
        """Return the modes by "topic@group", the journal's names."""
        return {
            f"{topic}{_SEPARATOR}{group}": mode
            for topic, groups in self.message_request_mode_map.items()
            for group, mode in groups.items()
        }


class RequestModes:
    """The table of modes. record: journals a change before it takes effect."""

    def __init__(self, *, record: Callable[[str, MessageRequestMode | None], None]) -> None:
        self._modes: dict[tuple[str, str], MessageRequestMode] = {}
        self._record = record
        #: Topics and groups whose members pop without a mode set, as ours do (`pop=True`).
        self._seen_popping: set[tuple[str, str]] = set()
        #: Those that were pulled afterwards.
        self._pulled_since: set[tuple[str, str]] = set()
        #: Those that were then popped again: some members pop, and others pull.
        self._mixed: set[tuple[str, str]] = set()

    def get(self, topic: str, group: str) -> MessageRequestMode | None:
        """Return the mode set for a group and topic; None if none is set."""
        return self._modes.get((topic, group))

    def is_popped(self, topic: str, group: str) -> bool:
        """Return whether a group pops a topic: by its mode, or else by observation."""
        mode = self._modes.get((topic, group))
        return mode.mode == MODE_POP if mode is not None else (topic, group) in self._seen_popping

    def pops(self, group: str) -> bool:
        """Return whether a group pops any topic."""
        known = (*self._modes, *self._seen_popping)
        return any(name == group and self.is_popped(topic, name) for topic, name in known)

    def popped(self, topic: str, group: str) -> None:
        """Note that a group pops a topic."""
        if len(self._seen_popping) < MODES_MAX:
            self._seen_popping.add((topic, group))
        if self._pulled_since and (topic, group) in self._pulled_since:
            self._pulled_since.discard((topic, group))
            self._mixed.add((topic, group))

    def pulled(self, topic: str, group: str) -> None:
        """Note that a group pulls a topic."""
        if self._seen_popping and (topic, group) in self._seen_popping:
            self._seen_popping.discard((topic, group))
            if len(self._pulled_since) < MODES_MAX:
                self._pulled_since.add((topic, group))

    def take_mixed(self) -> set[tuple[str, str]]:
        """Return topics and groups found to be popped, pulled and popped again since the last call."""
        mixed, self._mixed = self._mixed, set()
        return mixed

    def set(self, mode: MessageRequestMode) -> None:
        """Set the mode of a group and topic; raises ConfigError."""
        if mode.mode not in (MODE_PULL, MODE_POP):
            raise ConfigError(f"message request mode {mode.mode!r}; {MODE_PULL} or {MODE_POP} is allowed")
        if len(self._modes) >= MODES_MAX and (mode.topic, mode.consumer_group) not in self._modes:
            raise ConfigError(f"{MODES_MAX} message request modes are set, which is the limit")
        name = f"{mode.topic}{_SEPARATOR}{mode.consumer_group}"
        with refused_without_room(name):
            self._record(name, mode)
        self._modes[mode.topic, mode.consumer_group] = mode

    def copy(self, file: RequestModesFile) -> None:
        """Replace the table with the master's, at a slave."""
        ours, theirs = self.file().entries(), file.entries()
        for name in [each for each in ours | theirs if ours.get(each) != theirs.get(each)]:
            self._record(name, theirs.get(name))
            self.apply(name, theirs.get(name))

    def apply(self, name: str, mode: MessageRequestMode | None) -> None:
        """Apply a recorded change."""
        topic, _, group = name.partition(_SEPARATOR)
        if mode is None:
            self._modes.pop((topic, group), None)
        else:
            self._modes[topic, group] = mode

    def file(self) -> RequestModesFile:
        """Return the content of config/messageRequestMode.json."""
        table: dict[str, dict[str, MessageRequestMode]] = {}
        for (topic, group), mode in self._modes.items():
            table.setdefault(topic, {})[group] = mode
        return RequestModesFile(message_request_mode_map=table)
