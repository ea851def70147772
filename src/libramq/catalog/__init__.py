"""The catalog of a broker: topics and consumer groups with their configuration, and the limits on both."""

from libramq.catalog.group_table import GroupTable
from libramq.catalog.topic_table import TopicTable

__all__ = ["GroupTable", "TopicTable"]
