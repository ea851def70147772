"""The name server's processors of requests about brokers and routes: signed registrations, acting masters in
routes, order configuration, and the JSON dialect of each client.

Upstream: processor/DefaultRequestProcessor.java, ClientRequestProcessor.java.
"""

from functools import partial
from typing import Final

import msgspec

from libramq.auth.audit import Audit, Kind
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats import fastjson
from libramq.formats.document import encode_body
from libramq.formats.route import MASTER_ID, BrokerData, TopicRouteData, away_remark
from libramq.formats.tables import PERM_WRITE, DataVersion, TopicConfigSerializeWrapper
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Room, Work
from libramq.logs import get_logger
from libramq.message.names import MEMBERS_TOPIC_PREFIX, REBALANCE_EVENTS_TOPIC
from libramq.nameserver.administration import Settings, listed, listed_of
from libramq.nameserver.displacement import Displacement
from libramq.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from libramq.nameserver.registration import check_topics, decode_registration, decoded_bytes, is_compressed
from libramq.nameserver.route_info import BrokerAddress, RouteInfo
from libramq.remoting import headers as h
from libramq.remoting.body.cluster import KVTable, TopicList
from libramq.remoting.credentials import Credentials, is_signed_by_broker
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import INLINE_BODY_BYTES_MAX, Request, serves

log = get_logger(__name__)

#: MQVersion.V4_9_4: the first clients that read standard JSON.
VERSION_WITH_STANDARD_JSON: Final = 401
#: DefaultRequestProcessor reads the zone from the ext fields (MixAll.ZONE_NAME).
ZONE_NAME: Final = "__ZONE_NAME"
#: FAQUrl.suggestTodo(APPLY_TOPIC_URL): tools compare remarks, so the text is exactly Apache's.
FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

UNSIGNED: Final = (
    "the request is not signed with the innerClientAuthenticationCredentials of this name server; "
    "set the same at all brokers of the cluster"
)


class NameServerProcessor:
    """Answers requests from a route table.

    credentials: brokers must sign with them, if set: clients, slaves and other brokers connect to registered
    addresses.
    """

    def __init__(
        self,
        route_info: RouteInfo,
        displacement: Displacement,
        kv: KVConfig,
        settings: Settings,
        credentials: Credentials | None = None,
        audit: Audit | None = None,
    ) -> None:
        #: The audit of registrations, only if they must be signed.
        self._audit = audit if credentials is not None else None
        self._route_info = route_info
        self._displacement = displacement
        self._kv = kv
        self._settings = settings
        self._credentials = credentials

    @serves(RequestCode.REGISTER_BROKER)
    def register_broker(self, request: Request) -> Outcome:
        """103: register a broker and its topics."""
        self._require_broker(request)
        header: h.RegisterBrokerHeader = request.header
        return self._decode(request, header, frozenset())

    def _decode(
        self, request: Request, header: h.RegisterBrokerHeader, dead: frozenset[object]
    ) -> Work[Outcome]:
        """Decode a registration's body; again after a wait, because the body is smaller than its topics."""
        command = request.command
        decode = partial(
            _decode_checked,
            command.body,
            compressed=header.compressed,
            version=command.version,
            crc=header.body_crc32,
        )
        if len(command.body) > INLINE_BODY_BYTES_MAX or is_compressed(command.body, header.compressed):
            yield Room(decoded_bytes(command.body, header.compressed))
            table = yield InThread(Thread.COMPUTE, decode)
        else:
            table = decode()
        return self._register(request, header, table, dead)

    def _register(
        self,
        request: Request,
        header: h.RegisterBrokerHeader,
        table: TopicConfigSerializeWrapper,
        dead: frozenset[object],
    ) -> Outcome:
        """Register a broker. An unsigned registration first probes the live brokers that it would replace.

        dead: connections that have not answered the probe.
        """
        had_to_sign = self._credentials is not None
        displaced = self._route_info.displaced(header, table, owner=request.peer)
        if not had_to_sign and not dead.issuperset(displaced):
            again = partial(self._decode, request, header)
            return self._displacement.hold(request, displaced, again)
        if displaced:
            log.warning(
                "a broker replaces another one",
                broker=header.broker_name, address=header.broker_addr, signed=had_to_sign,
            )  # fmt: skip
        return self._register_in_steps(request, header, table)

    def _register_in_steps(
        self, request: Request, header: h.RegisterBrokerHeader, table: TopicConfigSerializeWrapper
    ) -> Work[Outcome]:
        registered = yield from self._route_info.register(
            header,
            table,
            owner=request.peer,
            zone=request.command.ext.get(ZONE_NAME),
            now_ms=request.monotonic_ms,
        )
        if registered.is_new:
            self._note(Kind.CREATED, request, header.broker_name, header.broker_addr)
            log.info(
                "broker registered",
                cluster=header.cluster_name,
                broker=header.broker_name,
                id=header.broker_id,
                address=header.broker_addr,
                topics=len(table.topic_config_table),
            )
        answer = {"masterAddr": registered.master_address, "haServerAddr": registered.ha_address}
        order = None
        if self._settings.config.return_order_topic_config_to_broker:
            order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        body = encode_body(KVTable(table=order or {}))
        return Reply(ext={name: value for name, value in answer.items() if value}, body=body)

    @serves(RequestCode.UNREGISTER_BROKER)
    def unregister_broker(self, request: Request) -> Outcome:
        """104: unregister a broker."""
        self._require_broker(request)
        header: h.BrokerHeader = request.header
        key = BrokerAddress(header.cluster_name, header.broker_addr)
        if self._route_info.unregister(key, owner=request.peer):
            self._note(Kind.DELETED, request, header.broker_name, header.broker_addr)
            log.info("broker unregistered", broker=header.broker_name, address=header.broker_addr)
        return SUCCESS

    @serves(RequestCode.QUERY_DATA_VERSION)
    def query_data_version(self, request: Request) -> Outcome:
        """322: return whether a broker's topic table differs from the registered one."""
        self._require_broker(request)
        header: h.BrokerHeader = request.header
        theirs: DataVersion = request.body
        key = BrokerAddress(header.cluster_name, header.broker_addr)
        self._route_info.seen(key, request.monotonic_ms)
        ours = self._route_info.data_version(key)
        changed = "false" if ours == theirs else "true"
        return Reply(ext={"changed": changed}, body=encode_body(ours) if ours is not None else b"")

    @serves(RequestCode.BROKER_HEARTBEAT)
    def broker_heartbeat(self, request: Request) -> Outcome:
        """904: note a heartbeat."""
        self._require_broker(request)
        header: h.BrokerHeartbeatHeader = request.header
        self._route_info.seen(BrokerAddress(header.cluster_name, header.broker_addr), request.monotonic_ms)
        return SUCCESS

    def _note(self, kind: Kind, request: Request, broker: str, address: str) -> None:
        """Audit a new or ended registration."""
        if self._audit is not None:
            name = RequestCode(request.command.code).name
            self._audit.changed(kind, request.principal, name, [f"Broker:{broker}", f"Address:{address}"])

    def _require_broker(self, request: Request) -> None:
        """Raise BrokerError unless a broker of the cluster has signed the request."""
        if self._credentials is not None and not is_signed_by_broker(request.command, self._credentials):
            raise broker_error(ResponseCode.NO_PERMISSION, UNSIGNED)

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def topic_route(self, request: Request) -> Outcome:
        """105: return a topic's route."""
        header: h.RouteHeader = request.header
        route = self._route_info.route(header.topic)
        if route is None:
            away = away_remark(self._route_info.absent(header.topic))
            remark = f"No topic route info in name server for the topic: {header.topic}{away}{FAQ}"
            return Reply(ResponseCode.TOPIC_NOT_EXIST, remark)
        if self._settings.config.support_acting_master:
            route = with_acting_masters(header.topic, route)
        if self._settings.config.order_message_enable:
            order = self._kv.get(ORDER_TOPIC_CONFIG, header.topic)
            route = msgspec.structs.replace(route, order_topic_conf=order)
        standard = header.accept_standard_json_only or request.command.version >= VERSION_WITH_STANDARD_JSON
        return Reply(body=fastjson.dumps_standard(route) if standard else encode_body(route))

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self, _: Request) -> Outcome:
        """106: return all clusters and brokers, always in fastjson's dialect."""
        return Reply(body=encode_body(self._route_info.clusters()))

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def all_topics(self, _: Request) -> Outcome:
        """206: return the names of all topics."""
        if not self._settings.config.enable_all_topic_list:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "disable")
        return listed(self._route_info.topics())

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, request: Request) -> Outcome:
        """216: remove a topic's route."""
        header: h.DeleteTopicInNamesrvHeader = request.header
        self._route_info.delete_topic(header.topic, header.cluster_name)
        return SUCCESS

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_by_cluster(self, request: Request) -> Outcome:
        """224: return the names of one cluster's topics."""
        if not self._settings.config.enable_topic_list:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "disable")
        header: h.ClusterHeader = request.header
        return listed_of(self._route_info.topics(), partial(self._route_info.of_cluster, header.cluster))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, _: Request) -> Outcome:
        """304: return the names of clusters and brokers, which are also topics, and a broker's address."""
        info = self._route_info.clusters()
        names = [name for cluster, brokers in info.cluster_addr_table.items() for name in (cluster, *brokers)]
        address = next((broker.any_address for broker in info.broker_addr_table.values()), None)
        return Reply(body=encode_body(TopicList(topic_list=names, broker_addr=address)))


def _decode_checked(data: bytes, *, compressed: bool, version: int, crc: int) -> TopicConfigSerializeWrapper:
    table = decode_registration(data, compressed=compressed, version=version, crc=crc)
    check_topics(table)
    return table


def with_acting_masters(topic: str, route: TopicRouteData) -> TopicRouteData:
    """Return a topic's route with acting masters, for brokers whose queues are not writable.

    An acting master is a slave listed as the master while the master is gone: clients lock queues and commit
    offsets at the slave with the lowest id, of brokers with enableSlaveActingMaster (upstream:
    RouteInfoManager.pickupTopicRouteData).

    Our brokers use the route of the rebalance events' topic to divide groups among masters. A slave does not
    coordinate groups, so there is no acting master in that route.
    """
    if topic.startswith(MEMBERS_TOPIC_PREFIX) or topic == REBALANCE_EVENTS_TOPIC:
        return route
    unwritable = {each.broker_name for each in route.queue_datas if not each.perm & PERM_WRITE}
    brokers = [_acting(each) if each.broker_name in unwritable else each for each in route.broker_datas]
    return msgspec.structs.replace(route, broker_datas=brokers)


def _acting(broker: BrokerData) -> BrokerData:
    addresses = broker.broker_addrs
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    lowest = min(addresses)
    acting = {MASTER_ID: addresses[lowest]} | {id_: at for id_, at in addresses.items() if id_ != lowest}
    return msgspec.structs.replace(broker, broker_addrs=acting)
