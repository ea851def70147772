"""The addresses that slaves may connect from: whoever copies the commit log has every message."""

import ipaddress
from collections.abc import Sequence


class SlaveAccess:
    """The networks of `haAllowedAddresses`."""

    def __init__(self, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> None:
        self._networks = networks

    def is_allowed(self, address: str) -> bool:
        """Return whether a slave may connect from "host:port"."""
        host = address.rpartition(":")[0].strip("[]")
        try:
            parsed = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in self._networks)
