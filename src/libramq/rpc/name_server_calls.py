"""Calls from brokers and clients to a name server: routes, registration, heartbeats; each request and the
form of its answer.

Upstream: BrokerOuterAPI.java, MQClientAPIImpl.java.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from libramq.codes import RequestCode
from libramq.errors import NameServerUnavailable, RequestCodeNotSupported
from libramq.formats.document import decode_body, encode_body
from libramq.formats.route import TopicRouteData
from libramq.remoting import headers as h
from libramq.remoting.body.cluster import ClusterInfo, RegisterBrokerBody, TopicList
from libramq.remoting.command import Command
from libramq.rpc.call import Call, body_call, header_call, nothing

T = TypeVar("T")


def name_server_result(call: Call[T], reply: Command, address: str) -> T:
    """Decode a name server's answer; raises NameServerUnavailable if a broker sent it.

    Every name server knows these requests, and brokers know none of them.
    """
    try:
        return call.result(reply, where=f"name server {address}")
    except RequestCodeNotSupported:
        raise NameServerUnavailable(
            f"{address} is the address of a broker, not of a name server (whose port is usually 9876)"
        ) from None


def topic_route(topic: str) -> Call[TopicRouteData]:
    """Return the locations of the topic's queues; TopicNotExist if no broker has it."""
    header = h.RouteHeader(topic=topic, accept_standard_json_only=True)
    return body_call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, TopicRouteData)


def cluster_info() -> Call[ClusterInfo]:
    """Return all clusters and brokers."""
    return body_call(RequestCode.GET_BROKER_CLUSTER_INFO, None, ClusterInfo)


def all_topics() -> Call[list[str]]:
    """Return the names of all topics."""
    return header_call(
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        None,
        lambda reply: decode_body(reply.body, TopicList).topic_list,
    )


def delete_topic(topic: str) -> Call[None]:
    """Remove a topic's route."""
    return header_call(RequestCode.DELETE_TOPIC_IN_NAMESRV, h.TopicHeader(topic=topic), nothing)


class Master(NamedTuple):
    """The addresses of a slave's master: for requests, and for copying its log."""

    address: str
    ha_address: str


def register_broker(header: h.RegisterBrokerHeader, body: RegisterBrokerBody) -> Call[Master | None]:
    """Register a broker with its topics; a slave gets its master's addresses, if there is one."""
    data = encode_body(body)
    header.body_crc32 = zlib.crc32(data) & 0x7FFF_FFFF
    return header_call(RequestCode.REGISTER_BROKER, header, _master, body=data)


def _master(reply: Command) -> Master | None:
    address, ha_address = reply.ext.get("masterAddr"), reply.ext.get("haServerAddr")
    return Master(address, ha_address) if address and ha_address else None


def broker_heartbeat(header: h.BrokerHeartbeatHeader) -> Call[None]:
    """Send a broker's heartbeat."""
    return header_call(RequestCode.BROKER_HEARTBEAT, header, nothing)


def unregister_broker(header: h.BrokerHeader) -> Call[None]:
    """Unregister a broker."""
    return header_call(RequestCode.UNREGISTER_BROKER, header, nothing)


def name_servers_unavailable(failures: Sequence[str]) -> NameServerUnavailable:
    """Return the error for a request that no name server answered."""
    return NameServerUnavailable(
        f"no name server answered: {'; '.join(failures)}. Check that it runs (`libra up` starts one) and "
        "that its address is right (-n, namesrv or NAMESRV_ADDR)"
    )
