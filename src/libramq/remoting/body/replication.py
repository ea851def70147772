"""GET_BROKER_HA_STATUS: a master's slaves, and their progress. Upstream: HARuntimeInfo.java."""

from libramq.formats.document import Document


class SlaveStatus(Document, frozen=True, kw_only=True):
    """One slave, as its master sees it (HAConnectionRuntimeInfo). diff: how many bytes it lacks."""

    addr: str
    slave_ack_offset: int
    diff: int
    in_sync: bool
    transferred_byte_in_second: int
    transfer_from_where: int


class HAStatus(Document, frozen=True, kw_only=True):
    """A master with its slaves."""

    master: bool
    master_commit_log_max_offset: int
    in_sync_slave_nums: int
    ha_connection_info: list[SlaveStatus] = []
