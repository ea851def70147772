"""config/delayOffset.json: how far each delay level has been delivered (DelayOffsetSerializeWrapper.java)."""

from libramq.broker.messages.level_account import LevelAccount
from libramq.formats.document import Document, Int, Long
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
    """The answer to GET_ALL_DELAY_OFFSET and SLAVE_PROGRESS; the members of this class are ours.

    passed_on: of POP; None in an answer of Apache's broker. The others are a slave's. half_offset: the first
    half message that it has not passed on. timers: an offset and a time; timer messages before both are sent.
    committed: some of what groups committed there and the master may not have. last_record: place and size of
    its log's last record; who has the same there has all that this answer speaks of.
    """

    passed_on: PassedOn | None = None
    half_offset: Long | None = None
    timers: tuple[Long, ...] | None = None
    committed: dict[str, dict[Int, Long]] = {}
    last_record: tuple[Long, Long] | None = None
