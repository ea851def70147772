"""config/delayOffset.json: how far each delay level has been delivered (DelayOffsetSerializeWrapper.java)."""

from libramq.formats.document import Document
from libramq.formats.tables import DataVersion


class ScheduleFile(Document, frozen=True, kw_only=True):
    """The offset of the next message to deliver, by level."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}
