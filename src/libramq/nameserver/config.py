"""The name server's configuration: options, defaults, and which options may change at runtime.

Upstream: NamesrvConfig.java.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from libramq.codes import ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.formats.properties_file import property_line, shown, whole_number
from libramq.transport.admission import CONNECTIONS_MAX, PER_ADDRESS_MAX, ConnectionLimits


def _option(name: str, default: Any, about: str, *, changes: bool = True) -> Any:
    return field(default=default, metadata={"name": name, "about": about, "changes": changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """The options, under Apache's names and with Apache's defaults."""

    listen_port: int = _option(
        "listenPort", 9876, "The port to listen on; `--port` has precedence.", changes=False
    )
    bind_address: str = _option(  # Ours: Apache's is 0.0.0.0.
        "bindAddress", "127.0.0.1", "The address to listen on; `--host` has precedence.", changes=False
    )
    authentication_enabled: bool = _option(  # Ours: Apache's name server authenticates nobody.
        "authenticationEnabled",
        False,
        "Requests that change the name server (KV configuration, write permission, options, topics) must be "
        "signed by the user of `initAuthenticationUser`. Routes are public.",
        changes=False,
    )
    max_connections: int = _option(  # LibraMQ's own, as is the next one.
        "maxConnections",
        CONNECTIONS_MAX,
        "The most connections; further ones are closed. See [Limits](security.md#limits).",
        changes=False,
    )
    max_connections_per_address: int = _option(
        "maxConnectionsPerAddress",
        PER_ADDRESS_MAX,
        "The most of these from one IPv4 address or IPv6 network (/64).",
        changes=False,
    )
    kv_config_path: str = _option(
        "kvConfigPath",
        "",
        "The file that keeps the KV configuration (`mqadmin updateKvConfig`, `updateOrderConf`); "
        "without one it is lost when the name server stops.",
        changes=False,
    )
    audit_path: str = _option(  # Ours alone.
        "auditPath",
        "",
        "With `authenticationEnabled`: the file of the [audit](security.md#audit). Without one it goes to "
        "the log.",
        changes=False,
    )
    order_message_enable: bool = _option(
        "orderMessageEnable",
        False,
        "Routes include the order configuration of their topic (`mqadmin updateOrderConf`).",
    )
    return_order_topic_config_to_broker: bool = _option(
        "returnOrderTopicConfigToBroker",
        True,
        "Brokers that register get the topics with an order configuration; Apache's mark them as ordered.",
    )
    support_acting_master: bool = _option(
        "supportActingMaster",
        False,
        "While a master is gone, routes name the slave with the lowest id as the master, if it has "
        "`enableSlaveActingMaster`.",
    )
    notify_min_broker_id_changed: bool = _option(
        "notifyMinBrokerIdChanged",
        False,
        "When the lowest id among a broker and its slaves changes, the others are notified at once, over "
        "connections that the name server opens.",
    )
    enable_all_topic_list: bool = _option(
        "enableAllTopicList", True, "Clients may list all topics (`mqadmin topicList`)."
    )
    enable_topic_list: bool = _option(
        "enableTopicList", True, "Clients may list the topics of a cluster, and unit topics."
    )

    @property
    def connection_limits(self) -> ConnectionLimits:
        """Return the limits on connections. Routes are public, so clients need not authenticate."""
        return ConnectionLimits(
            connections_max=self.max_connections, per_address_max=self.max_connections_per_address
        )


PORT_MAX: Final = 65_535
#: The number options that are not ports.
_COUNTS: Final = ("maxConnections", "maxConnectionsPerAddress")
#: DefaultRequestProcessor.initConfigBlackList: names that no request may change.
BLACK_LIST: Final = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")

_FIELDS: Final = {each.metadata["name"]: each for each in fields(NameServerConfig)}


def name_server_config(properties: Mapping[str, str]) -> tuple[NameServerConfig, list[str]]:
    """Return the configuration of a properties file, and the unknown names in it."""
    values: dict[str, Any] = {
        _FIELDS[name].name: _value(name, text) for name, text in properties.items() if name in _FIELDS
    }
    return NameServerConfig(**values), [name for name in properties if name not in _FIELDS]


def changed_config(config: NameServerConfig, properties: Mapping[str, str]) -> NameServerConfig:
    """Return the configuration after UPDATE_NAMESRV_CONFIG.

    Names of the black list are refused, as Apache's name server does. Names without an effect are refused as
    well; Apache's name server silently ignores them.
    """
    if not properties.keys().isdisjoint(BLACK_LIST):
        raise broker_error(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    can_change = [name for name, each in _FIELDS.items() if each.metadata["changes"]]
    for name in properties:
        if name not in can_change:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"{name} cannot be changed here; these can: {', '.join(can_change)}",
            )
    try:
        values: dict[str, Any] = {_FIELDS[name].name: _value(name, text) for name, text in properties.items()}
    except ConfigError as error:
        raise broker_error(ResponseCode.INVALID_PARAMETER, str(error)) from None
    return replace(config, **values)


def config_text(config: NameServerConfig) -> str:
    """Return all options as lines `name=value`, as GET_NAMESRV_CONFIG answers them."""
    return "".join(property_line(name, _text(getattr(config, each.name))) for name, each in _FIELDS.items())


def _value(name: str, text: str) -> object:
    default = _FIELDS[name].default
    if type(default) is int:
        number = whole_number(text)
        if name in _COUNTS:
            if number is None or number < 1:
                raise ConfigError(f"{name}={shown(text)}; a number is needed, 1 or more")
            return number
        if number is None or not 0 <= number <= PORT_MAX:
            raise ConfigError(f"{name}={shown(text)}; a port is needed, 0 to {PORT_MAX}")
        return number
    if type(default) is str:
        return text
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={shown(text)}; true or false is allowed")
    return text.lower() == "true"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
