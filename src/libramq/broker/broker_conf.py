"""`broker.conf`: a Java properties file, turned into a configuration.

Unused names of Apache's, and unknown names, cause warnings; only options that promise security or durability
are refused (`refused_options.py`).
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from libramq.broker.config import CREDENTIALS_OPTION, BrokerConfig
from libramq.broker.refused_options import check_refused, is_harmless
from libramq.errors import ConfigError
from libramq.formats.properties_file import read_properties, shown, whole_number
from libramq.remoting.credentials import parse_credentials
from libramq.transport.address import is_lookup, split_name_servers
from libramq.transport.bind import bind_address, check_announced


def broker_config(properties: Mapping[str, str], **overrides: Any) -> tuple[BrokerConfig, list[str]]:
    """Build a configuration from properties and overrides; also return the names without an effect.

    Raises ConfigError for an invalid value, and for an option that the broker cannot honour.
    """
    by_name = {option.metadata["name"]: option for option in fields(BrokerConfig) if option.metadata}
    check_refused(properties, frozenset(by_name))
    values: dict[str, Any] = {}
    unknown = []
    for name, text in properties.items():
        option = by_name.get(name)
        if option is None:
            if not is_harmless(name):
                unknown.append(name)
        else:
            values[option.name] = option_value(name, text, option.default)
    if "bind_address" not in values and "broker_ip" in values:
        announced = values["broker_ip"]
        check_announced(announced, "brokerIP1")
        remedy = f"bindAddress={announced} and allowPublic=true"
        values["bind_address"] = bind_address(announced, "brokerIP1", remedy)
    name_servers = values.get("namesrv_addr")
    if name_servers and not is_lookup(name_servers):
        try:
            split_name_servers(name_servers)
        except ConfigError as error:
            raise ConfigError(f"namesrvAddr: {error}") from None
    values.update({name: value for name, value in overrides.items() if value is not None})
    return BrokerConfig(**values), unknown


def load_broker_config(path: Path, **overrides: Any) -> tuple[BrokerConfig, list[str]]:
    """Read `broker.conf`; see `broker_config`."""
    properties = read_properties(path)
    try:
        return broker_config(properties, **overrides)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def nearest_option(name: str, options: type = BrokerConfig) -> str | None:
    """Return the option whose name is nearest to an unknown one."""
    names = [str(option.metadata["name"]) for option in fields(options) if option.metadata]
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
    return by_lower[near[0]] if near else None


def option_value(name: str, text: str, default: object) -> object:
    """Return the value that an option's text means; raises ConfigError."""
    if name == CREDENTIALS_OPTION:
        return parse_credentials(name, text) if text else None
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}={shown(text)}; true or false is allowed")
        return text.lower() == "true"
    if isinstance(default, int):
        number = whole_number(text)
        if number is None:
            raise ConfigError(f"{name}={shown(text)}; a whole number is needed")
        return number
    return text
