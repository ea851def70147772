"""Load balancing: who consumes which queue, as pure functions that compute the same for every member."""

from libramq.balance.balanced_sticky import balanced_sticky
from libramq.balance.group import Assignment, Group, Member
from libramq.balance.kafka_rules import cooperative_sticky, kafka_range, round_robin, sticky
from libramq.balance.registry import register_strategy, strategy_named
from libramq.balance.strategy import GroupRule, GroupStrategy, Strategy, TopicRule, TopicStrategy
from libramq.balance.topic_rules import (
    averagely,
    by_circle,
    by_config,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    on_machines,
)

__all__ = [
    "Assignment",
    "Group",
    "GroupRule",
    "GroupStrategy",
    "Member",
    "Strategy",
    "TopicRule",
    "TopicStrategy",
    "averagely",
    "balanced_sticky",
    "by_circle",
    "by_config",
    "consistent_hash",
    "cooperative_sticky",
    "kafka_range",
    "machine_room",
    "machine_room_nearby",
    "on_machines",
    "register_strategy",
    "round_robin",
    "sticky",
    "strategy_named",
]
