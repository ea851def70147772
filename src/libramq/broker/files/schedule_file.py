"""config/delayOffset.json: how far each delay level has been delivered (DelayOffsetSerializeWrapper.java)."""

from libramq.broker.messages.level_account import LevelAccount
from libramq.formats.document import Document
from libramq.formats.tables import DataVersion
from libramq.pop.passed_on import PassedOn


class ScheduleFile(Document, frozen=True, kw_only=True):
    """The offset of the next message to deliver, by level.

    level_accounts: what acting slaves have delivered behind it; ours, and Apache's broker ignores it.
    """

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}
    level_accounts: dict[int, LevelAccount] = {}


class DelayAnswer(ScheduleFile, frozen=True, kw_only=True):
    """The answer to GET_ALL_DELAY_OFFSET. passed_on: of POP, ours; None in an answer of Apache's broker."""

    passed_on: PassedOn | None = None
