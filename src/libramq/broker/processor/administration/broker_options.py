"""GET_BROKER_CONFIG, UPDATE_BROKER_CONFIG: a broker's options without secrets, and which of them can be
changed while it runs.

A change lasts until the broker stops: its file belongs to the operator. Apache's broker writes the file, and
accepts names that it reads only at its start; here a name that cannot be changed is refused.
Upstream: AdminBrokerProcessor.java, common/Configuration.java.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from libramq.broker.broker_conf import option_value
from libramq.broker.config import SECRET_OPTIONS, BrokerConfig
from libramq.clock import WallMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.formats.document import encode_body
from libramq.formats.properties_file import parse_properties, property_line
from libramq.formats.tables import DataVersion
from libramq.logs import get_logger
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import Request, serves

log = get_logger(__name__)

#: AdminBrokerProcessor.initConfigBlackList and BrokerConfig.configBlackList, and our secrets.
BLACK_LIST: Final = ("brokerConfigPath", "configBlackList", "rocketmqHome", *SECRET_OPTIONS)
#: Further values that mqadmin exportConfigs looks for, as they are here.
FIXED: Final = {"msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC", "filterServerNums": "0"}

#: Options that may change while the broker runs; the parts that use them are notified (`BrokerOptions`).
CHANGEABLE: Final = (
    "autoCreateSubscriptionGroup", "longPollingEnable", "shortPollingTimeMills", "fileReservedTime",
    "deleteWhen", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "cleanFileForciblyEnable",
    "deleteFileBatchMax", "recallMessageEnable",
)  # fmt: skip

_OPTIONS: Final = {each.metadata["name"]: each for each in fields(BrokerConfig) if each.metadata}


class BrokerOptions:
    """The processor of options. changed: applies a changed configuration to the parts that use it."""

    def __init__(
        self, config: BrokerConfig, changed: Callable[[BrokerConfig], None], wall_ms: WallMs
    ) -> None:
        self._config = config
        self._changed = changed
        self._version = DataVersion().next(wall_ms)

    @serves(RequestCode.GET_BROKER_CONFIG)
    def get(self, request: Request) -> Outcome:
        """Return all options but the secrets."""
        values = {
            name: _text(getattr(self._config, option.name))
            for name, option in _OPTIONS.items()
            if name not in SECRET_OPTIONS
        }
        body = "".join(property_line(name, value) for name, value in (FIXED | values).items())
        return Reply(ext={"version": encode_body(self._version).decode()}, body=body.encode())

    @serves(RequestCode.UPDATE_BROKER_CONFIG)
    def update(self, request: Request) -> Outcome:
        """Change options; none of them if one cannot be changed."""
        try:
            properties = parse_properties(request.command.body.decode(errors="replace"))
        except ConfigError as error:
            raise broker_error(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if not properties.keys().isdisjoint(BLACK_LIST):
            raise broker_error(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        for name in properties:
            if name not in CHANGEABLE:
                raise broker_error(
                    ResponseCode.INVALID_PARAMETER,
                    f"{name} cannot be changed while the broker runs; these can: {', '.join(CHANGEABLE)}",
                )
        values: dict[str, Any] = {}
        try:
            for name, text in properties.items():
                values[_OPTIONS[name].name] = option_value(name, text, _OPTIONS[name].default)
            self._config = replace(self._config, **values)
        except ConfigError as error:
            raise broker_error(ResponseCode.INVALID_PARAMETER, str(error)) from None
        self._changed(self._config)
        self._version = self._version.next(request.wall_ms)
        log.info("configuration changed", options=properties, by=request.peer.address)
        return SUCCESS


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value)))
    return str(value).lower() if isinstance(value, bool) else str(value)
