"""The name server's engine: its requests, the scan for silent brokers, and notifications when the lowest id
of a broker name changes.

Upstream: NamesrvController.java, routeinfo/BrokerHousekeepingService.java.
"""

from collections.abc import Mapping
from typing import Final, cast

from libramq.auth.access_control import AccessControl
from libramq.auth.authorizer import ALLOW_ALL
from libramq.auth.users import Users
from libramq.clock import Clock, MonotonicMs
from libramq.codes import RequestCode
from libramq.formats.access import UserInfo
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Listen
from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Each
from libramq.logs import get_logger
from libramq.nameserver.administration import NameServerAdministration, Settings
from libramq.nameserver.audit_file import AuditFile
from libramq.nameserver.config import NameServerConfig
from libramq.nameserver.displacement import Displacement
from libramq.nameserver.kv_config import KVConfig
from libramq.nameserver.processor import NameServerProcessor
from libramq.nameserver.route_info import BrokerRecord, RouteInfo
from libramq.remoting.credentials import Credentials
from libramq.remoting.headers import LowestIdHeader
from libramq.rpc.call import header_call, nothing
from libramq.rpc.endpoint import Endpoint, Signatures
from libramq.rpc.question import Question, signing
from libramq.rpc.request import Processors, served_by
from libramq.rpc.responder import Responder

log = get_logger(__name__)

#: Requests that only an operator may make. Brokers make registrations: see `NameServerProcessor`.
CHANGES: Final = frozenset({
    RequestCode.PUT_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG,
})  # fmt: skip
#: NamesrvConfig.scanNotActiveBrokerInterval, here an upper bound: a broker is removed as soon as its timeout
#: is over, because the groups that it coordinates wait for that.
SCAN_INTERVAL_MS: Final = 5_000
#: Ours: Apache's name server waits for no answer. An unreachable broker finds out by itself.
NOTIFY_TIMEOUT_MS: Final = 3_000


#: The addresses of the brokers to notify, and the notification.
LowestIdNotice = tuple[list[str], LowestIdHeader]


class LowestIds:
    """The last seen lowest id and address of each broker name, and the brokers to notify of a change.

        a lower id has registered ──► the others, with the new one's HA address
        the lowest id has left ─────► the remaining ones, if they have enableSlaveActingMaster

    So a slave learns at once that it may act for its master, or that its master is back. Requires
    notifyMinBrokerIdChanged. Upstream: RouteInfoManager.notifyMinBrokerIdChanged.
    """

    def __init__(self, brokers: Mapping[str, BrokerRecord]) -> None:
        self._brokers = brokers
        self._seen: dict[str, tuple[int, str]] = {}

    def notices(self, changed: Mapping[str, str]) -> list[LowestIdNotice]:
        """Return the notifications to send after changes; changed: see `RouteTables`."""
        found = (self._look(name, ha_address) for name, ha_address in changed.items())
        return [each for each in found if each is not None]

    def _look(self, name: str, ha_address: str) -> LowestIdNotice | None:
        broker, before = self._brokers.get(name), self._seen.pop(name, None)
        if broker is None:
            return None
        lowest = broker.lowest_id
        address = broker.addresses[lowest]
        self._seen[name] = lowest, address
        if before is None or before[0] == lowest:
            return None
        header = LowestIdHeader(min_broker_id=lowest, min_broker_addr=address)
        if lowest < before[0]:
            header.ha_broker_addr = ha_address or None
            return [at for id_, at in broker.addresses.items() if id_ != lowest], header
        if not broker.acting_master:
            return None
        header.offline_broker_addr = before[1]
        return list(broker.addresses.values()), header


class Routes:
    """The route table with its timers and brokers' connections."""

    def __init__(
        self, route_info: RouteInfo, settings: Settings, kernel: Kernel, credentials: Credentials | None
    ) -> None:
        self._route_info = route_info
        self._settings = settings
        self._lowest_ids = LowestIds(route_info.tables.brokers)
        self._ask = signing(kernel.effects.ask, credentials)
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._scan = kernel.deadlines.new(self._expire)
        self._tidying: Each[None] = Each(kernel.work, self._tidy)

    def settle(self) -> None:
        """Send notifications, and schedule the expiry of silent brokers and the clean-up of topics."""
        changed = self._route_info.tables.changed
        if changed:
            notices = self._lowest_ids.notices(changed)
            changed.clear()
            if self._settings.config.notify_min_broker_id_changed:
                self._notify(notices)
        if self._route_info.is_untidy:
            self._tidying.add((None,))
        if self._scan.due_ms is None and self._route_info.has_brokers:
            next_ms = self._clock.monotonic_ms() + SCAN_INTERVAL_MS
            self._scan.at(min(next_ms, self._route_info.expires_ms))

    def _tidy(self, _: None) -> None:
        self._route_info.tidy()
        if self._route_info.is_untidy:
            self._tidying.add((None,))

    def connection_ended(self, connection: Connection) -> None:
        """Remove the brokers registered over a connection that ended."""
        for key in self._route_info.owner_lost(connection):
            log.info("broker connection closed", cluster=key.cluster, address=key.address)

    def _notify(self, notices: list[LowestIdNotice]) -> None:
        for addresses, header in notices:
            log.info("lowest broker id changed", id=header.min_broker_id, informed=addresses)
            call = header_call(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header, nothing)
            for address in addresses:
                self._ask(Question(address, call, lambda _: None, NOTIFY_TIMEOUT_MS))

    def _expire(self, now_ms: MonotonicMs) -> None:
        forgotten, connections = self._route_info.expire(now_ms)
        for key in forgotten:
            log.warning("broker expired", cluster=key.cluster, address=key.address)
        for connection in connections:
            self._effects.close(cast(Connection, connection), "its broker sent no heartbeat in time")


def _access_control(operator: UserInfo, credentials: Credentials | None) -> AccessControl:
    """Return an access control with one super user and the cluster's brokers."""
    users = Users(record=lambda name, account: None)
    users.create_first(operator)
    brokers = (credentials.access_key, credentials.secrets) if credentials is not None else None
    return AccessControl(users, cluster="", brokers=brokers)


def name_server_engine(
    route_info: RouteInfo,
    *,
    clock: Clock,
    operator: UserInfo | None = None,
    credentials: Credentials | None = None,
    config: NameServerConfig | None = None,
    kv: KVConfig | None = None,
    audit_file: AuditFile | None = None,
) -> Engine:
    """Return the engine of a name server.

    operator: the only user who may change it, which is audited; None: anyone. credentials: of the cluster's
    brokers; if set, registrations must be signed with them.
    """
    kernel, kv = Kernel(clock), kv or KVConfig()
    settings = Settings(config or NameServerConfig())
    audit_file = audit_file or AuditFile(clock)
    audit_file.begin(kernel)
    audit = audit_file.audit if operator is not None else None
    routes = Routes(route_info, settings, kernel, credentials)
    responder = Responder(kernel.effects)
    displacement = Displacement(kernel, responder)
    services = (
        NameServerProcessor(route_info, displacement, kv, settings, credentials, audit),
        NameServerAdministration(
            route_info.tables, kv, settings, effects=kernel.effects, responder=responder
        ),
    )
    processors = Processors(served_by(services))
    access, signatures = None, None
    if operator is not None:  # Changes must be signed; other requests are lookups or come from brokers.
        access = _access_control(operator, credentials)
        lookups = frozenset(processors.singly) - CHANGES
        signatures = Signatures(access, unsigned=lookups, unrestricted=lookups, audit=audit_file.audit)
    endpoint = Endpoint(
        clock=clock,
        authorizer=access or ALLOW_ALL,
        responder=responder,
        processors=processors,
        answered=displacement.answered,
        signatures=signatures,
    )
    kernel.effects.add(Listen(lambda: None))
    hooks = Hooks(
        connection_ended=(
            kernel.purgatory.connection_ended,
            routes.connection_ended,
            displacement.connection_ended,
        ),
        settle=(routes.settle,),
        stalled=(route_info.stalled, displacement.stalled),
    )
    return Engine(kernel, endpoint, hooks)
