"""config/delayOffset.json: how far each delay level has been delivered (DelayOffsetSerializeWrapper.java)."""

from libramq.remoting.body.codec import Body
from libramq.remoting.body.topic_config import DataVersion


class ScheduleFile(Body, frozen=True, kw_only=True):
    """Level → the offset of the next message to deliver."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}
