"""The options by which a broker finds its name servers, under the names of Apache's BrokerConfig.

Upstream: BrokerController.initialize, BrokerStartup.setSystemProperty, MixAll.getWSAddr.
"""

from dataclasses import dataclass

from libramq.broker.option import option
from libramq.broker.replication_config import ReplicationConfig
from libramq.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(ReplicationConfig):
    """The options of a broker towards name servers, beside those towards masters and slaves."""

    namesrv_addr: str | None = option(
        None,
        "namesrvAddr",
        "Name servers, `HOST:PORT` separated by `;`, or the URL of a page that lists them. Default: "
        "`$NAMESRV_ADDR` or `127.0.0.1:9876`.",
    )
    fetch_namesrv_addr: bool = option(
        False,
        "fetchNamesrvAddrByAddressServer",
        "Without `namesrvAddr`: find the name servers on a page of an address server, and look again every "
        "two minutes.",
    )
    address_server_domain: str = option(  # Ours: Apache's is a host that only its first makers have.
        "",
        "rmqAddressServerDomain",
        "That address server, `HOST` or `HOST:PORT`; the port is 8080 without one.",
    )
    address_server_sub_group: str = option(
        "nsaddr",
        "rmqAddressServerSubGroup",
        "The page of the address server: `http://HOST:8080/rocketmq/nsaddr` by default.",
    )
    register_name_server_period_ms: int = option(
        30_000,
        "registerNameServerPeriod",
        "How often the broker registers with all its topics, in ms, between 10,000 and 60,000.",
    )

    @property
    def address_server_url(self) -> str | None:
        """Return the page that lists the name servers; None if none is to be asked. Raises ConfigError."""
        if not self.fetch_namesrv_addr:
            return None
        domain = self.address_server_domain.strip()
        if not domain:
            raise ConfigError(
                "fetchNamesrvAddrByAddressServer=true needs rmqAddressServerDomain, as in config.example:8080"
            )
        host = domain if ":" in domain else f"{domain}:8080"
        return f"http://{host}/rocketmq/{self.address_server_sub_group}"
