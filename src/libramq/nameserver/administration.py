"""The name server's administration: KV configuration, brokers' write permission, unit topics, and options.

Upstream: processor/DefaultRequestProcessor.java.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.formats.document import encode_body
from libramq.formats.properties_file import parse_properties
from libramq.formats.route import TopicRouteData
from libramq.formats.tables import FLAG_UNIT, FLAG_UNIT_SUBSCRIPTION
from libramq.kernel.effect import Effects, Thread
from libramq.kernel.work import Work, portions
from libramq.logs import get_logger
from libramq.nameserver.config import NameServerConfig, changed_config, config_text
from libramq.nameserver.kv_config import KVConfig
from libramq.nameserver.route_info import (
    RouteTables,
    flagged,
    member_group,
    register_topic,
    set_writable,
)
from libramq.remoting import headers as h
from libramq.remoting.body.cluster import BrokerMemberGroupBody, KVTable, TopicList
from libramq.rpc.outcome import HOLD, SUCCESS, Outcome, Reply, reply_rows
from libramq.rpc.request import Request, serves
from libramq.rpc.responder import Responder

log = get_logger(__name__)

#: Ours: up to this many topics are encoded on the loop, in 1 ms; longer lists on a thread.
ENCODED_AT_ONCE_MAX: Final = 4_096


def listed(topics: list[str]) -> Outcome:
    """Reply with these topics; a thread encodes a long list."""
    return reply_rows(lambda: TopicList(topic_list=topics), len(topics), inline_max=ENCODED_AT_ONCE_MAX)


def listed_of(topics: list[str], wanted: Callable[[Sequence[str]], list[str]]) -> Work[Outcome]:
    """Reply with those of the topics that are wanted."""
    found: list[str] = []
    for some in portions(topics):
        found += wanted(some)
        yield None
    return listed(found)


class Settings:
    """The configuration in force; requests replace it."""

    def __init__(self, config: NameServerConfig) -> None:
        self.config = config


#: The flags that each request checks, and those that must be set. The requests list: topics of a unit; topics
#: with subscribers of a unit; such topics that belong to no unit.
FLAGGED: Final[Mapping[int, tuple[int, int]]] = {
    RequestCode.GET_UNIT_TOPIC_LIST: (FLAG_UNIT, FLAG_UNIT),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (FLAG_UNIT_SUBSCRIPTION, FLAG_UNIT_SUBSCRIPTION),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (
        FLAG_UNIT | FLAG_UNIT_SUBSCRIPTION, FLAG_UNIT_SUBSCRIPTION
    ),
}  # fmt: skip


class NameServerAdministration:
    """Answers operators' requests. responder: sends answers that waited for the disk."""

    def __init__(
        self, tables: RouteTables, kv: KVConfig, settings: Settings, *, effects: Effects, responder: Responder
    ) -> None:
        self._tables = tables
        self._kv = kv
        self._settings = settings
        self._effects = effects
        self._responder = responder
        #: Requests whose changes are not in the file being written.
        self._changed_by: list[Request] = []
        self._is_writing = False

    # KV configuration.

    @serves(RequestCode.PUT_KV_CONFIG)
    def put_value(self, request: Request) -> Outcome:
        """100: set a value."""
        header: h.PutKVHeader = request.header
        self._kv.put(header.namespace, header.key, header.value)
        log.info("value set", namespace=header.namespace, key=header.key, by=request.peer.address)
        return self._kept(request)

    @serves(RequestCode.GET_KV_CONFIG)
    def get_value(self, request: Request) -> Outcome:
        """101: return a value."""
        header: h.KVHeader = request.header
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return Reply(ResponseCode.QUERY_NOT_FOUND, remark)
        return Reply(ext={"value": value})

    @serves(RequestCode.DELETE_KV_CONFIG)
    def delete_value(self, request: Request) -> Outcome:
        """102: remove a value, if it exists."""
        header: h.KVHeader = request.header
        self._kv.delete(header.namespace, header.key)
        log.info("value deleted", namespace=header.namespace, key=header.key, by=request.peer.address)
        return self._kept(request)

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def values(self, request: Request) -> Outcome:
        """219: return all values of a namespace."""
        header: h.KVNamespaceHeader = request.header
        table = self._kv.namespace(header.namespace)
        if table is None:
            return Reply(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return Reply(body=encode_body(KVTable(table=table)))

    def _kept(self, request: Request) -> Outcome:
        """Reply once the values are on the disk, if there is a file."""
        if not self._kv.is_kept:
            return SUCCESS
        # The change is in the table, so the waiting request need not hold a long value.
        command = msgspec.structs.replace(request.command, ext={}, body=b"")
        self._changed_by.append(msgspec.structs.replace(request, command=command))
        if not self._is_writing:
            self._write()
        return HOLD

    def _write(self) -> None:
        """Write all changes so far at once, and answer their requests."""
        requests, self._changed_by = self._changed_by, []
        self._is_writing = True

        def written(result: object) -> None:
            self._is_writing = False
            failed = isinstance(result, Exception)
            if failed:
                log.error("the KV configuration cannot be written", reason=str(result))
            remark = f"it is in force, but not in the file: {result}"
            reply = Reply(ResponseCode.SYSTEM_ERROR, remark) if failed else SUCCESS
            for request in requests:
                self._responder.answer(request, reply)
            if self._changed_by:
                self._write()

        self._effects.run(Thread.DISK, partial(self._kv.write, self._kv.encoded()), written)

    # Routes.

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def set_writable(self, request: Request) -> Outcome:
        """205, 327: change the write permission of a broker's topics until it registers them again."""
        writable = request.command.code == RequestCode.ADD_WRITE_PERM_OF_BROKER
        header: h.BrokerNameHeader = request.header
        return self._set_writable(request, header.broker_name, writable=writable)

    def _set_writable(self, request: Request, broker_name: str, *, writable: bool) -> Work[Outcome]:
        count = yield from set_writable(self._tables, broker_name, writable=writable)
        log.info(
            "write permission changed",
            broker=broker_name, writable=writable, topics=count, by=request.peer.address,
        )  # fmt: skip
        return Reply(ext={"addTopicCount" if writable else "wipeTopicCount": str(count)})

    @serves(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
    def register_topic(self, request: Request) -> Outcome:
        """217: give a topic a route, as brokers do for static topics."""
        header: h.TopicHeader = request.header
        route: TopicRouteData = request.body
        register_topic(self._tables, header.topic, route.queue_datas)
        return SUCCESS

    @serves(*FLAGGED)
    def flagged_topics(self, request: Request) -> Outcome:
        """311, 312, 313: return the topics with unit flags."""
        if not self._settings.config.enable_topic_list:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "disable")
        tables, (mask, flags) = self._tables, FLAGGED[request.command.code]
        return listed_of(list(tables.topics), lambda topics: flagged(tables, topics, mask, flags))

    @serves(RequestCode.GET_BROKER_MEMBER_GROUP)
    def member_group(self, request: Request) -> Outcome:
        """901: return the addresses of a broker name."""
        header: h.BrokerMemberGroupHeader = request.header
        group = member_group(self._tables, header.cluster_name, header.broker_name)
        return Reply(body=encode_body(BrokerMemberGroupBody(broker_member_group=group)))

    # The name server's own configuration.

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG)
    def update_config(self, request: Request) -> Outcome:
        """318: change options until the name server stops."""
        try:
            properties = parse_properties(request.command.body.decode(errors="replace"))
        except ConfigError as error:
            raise broker_error(ResponseCode.INVALID_PARAMETER, str(error)) from None
        self._settings.config = changed_config(self._settings.config, properties)
        log.info("configuration changed", options=sorted(properties), by=request.peer.address)
        return SUCCESS

    @serves(RequestCode.GET_NAMESRV_CONFIG)
    def get_config(self, _: Request) -> Outcome:
        """319: return the configuration."""
        return Reply(body=config_text(self._settings.config).encode())
