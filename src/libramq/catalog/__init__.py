"""The catalog of a broker: topics and consumer groups with their configuration, the limits on both, and how
their tables are recorded.
"""

from libramq.catalog.group_table import GroupTable
from libramq.catalog.topic_table import TopicTable

__all__ = ["GroupTable", "TopicTable"]
