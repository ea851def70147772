"""The name server: which brokers are alive, and which queues of which topics they have."""

from libramq.nameserver.name_server import NAME_SERVER_PORT, NameServer
from libramq.nameserver.route_info import RouteInfo

__all__ = ["NAME_SERVER_PORT", "NameServer", "RouteInfo"]
