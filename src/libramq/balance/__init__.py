"""Load balancing: who consumes which queue, as pure functions that compute the same for every member."""

from libramq.balance.averagely import averagely
from libramq.balance.balanced_sticky import balanced_sticky
from libramq.balance.by_circle import by_circle
from libramq.balance.by_config import by_config
from libramq.balance.consistent_hash import consistent_hash
from libramq.balance.group import Assignment, Group, Member
from libramq.balance.kafka_range import kafka_range
from libramq.balance.machine_room import machine_room, machine_room_nearby
from libramq.balance.on_machines import on_machines
from libramq.balance.registry import register_strategy, strategy_named
from libramq.balance.round_robin import round_robin
from libramq.balance.sticky import cooperative_sticky, sticky
from libramq.balance.strategy import GroupRule, GroupStrategy, Strategy, TopicRule, TopicStrategy

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
