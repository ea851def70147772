"""Apache's name server and broker as they run on a public network: with ACL 2.0, and TLS for brokers.

The broker accepts encrypted connections only; the name server also accepts plaintext ones, so that the test
can poll it without TLS. The certificate names 127.0.0.1.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from libramq.client import Credentials, Tls
from libramq.sync import Admin
from tests.interop.apache import BROKER_JVM, SMALL_STORE, ApacheBroker, ApacheNameServer
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Process

USER = "root"
PASSWORD = "rootsecret"
_AUTH = "org.apache.rocketmq.auth"


class Secured:
    def __init__(
        self, home: Path, *, jvm: Sequence[str] = BROKER_JVM, store: Mapping[str, object] = SMALL_STORE
    ) -> None:
        self.jvm, self.store = jvm, store
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.authority = trustme.CA()
        self.ca_file = home / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca_file))
        tls = self._serving(home)
        self._name_server = ApacheNameServer(home / "namesrv", properties=tls)
        self.namesrv = self._name_server.address
        self._broker: ApacheBroker | None = None
        self._tls = tls

    def start(self) -> None:
        self._name_server.wait_ready()
        self._broker = ApacheBroker(
            self.home / "broker",
            namesrv=self.namesrv,
            jvm=self.jvm,
            properties={**self._tls, "tls.server.mode": "enforcing"},
            settings={
                **self.store,
                "authenticationEnabled": "true",
                "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
                "authenticationMetadataProvider": (
                    f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
                ),
                "authorizationEnabled": "true",
                "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
                "authorizationMetadataProvider": (
                    f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
                ),
                "initAuthenticationUser": json.dumps({"username": USER, "password": PASSWORD}),
                "innerClientAuthenticationCredentials": json.dumps(
                    {"accessKey": USER, "secretKey": PASSWORD}
                ),
            },
        )
        self._broker.wait_ready()

    @property
    def process(self) -> Process:
        """The broker."""
        assert self._broker is not None
        return self._broker.process

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.process.kill()
        self._name_server.process.kill()

    @property
    def credentials(self) -> Credentials:
        return Credentials(USER, PASSWORD)

    @property
    def tls(self) -> Tls:
        return Tls(ca_file=str(self.ca_file))

    @property
    def properties(self) -> dict[str, str]:
        """The same access as Java properties."""
        return {
            "accessKey": USER,
            "secretKey": PASSWORD,
            "tls.enable": "true",
            "tls.client.trustCertPath": str(self.ca_file),
        }

    @property
    def spark_options(self) -> dict[str, str]:
        """The same access as options of format("rocketmq"), with the name server."""
        return {
            "namesrv": self.namesrv,
            **{f"rocketmq.{name}": text for name, text in self.properties.items()},
        }

    def create_topic(self, topic: str, queues: int) -> None:
        with Admin(namesrv=self.namesrv, credentials=self.credentials, tls=self.tls) as admin:
            admin.create_topic(topic, queues=queues)

    def wait_stored(self, topic: str, count: int) -> None:
        """Wait until a topic's queues have this many messages: the broker acknowledges earlier."""
        with Admin(namesrv=self.namesrv, credentials=self.credentials, tls=self.tls) as admin:
            Cluster.wait_until(
                lambda: sum(ends.max_offset for ends in admin.topic_stats(topic).values()) == count,
                f"{count} messages in {topic}",
                within_s=PATIENCE_S,
            )

    def _serving(self, home: Path) -> dict[str, object]:
        """Return the TLS settings of an Apache server; its private key must be PKCS #8."""
        issued = self.authority.issue_cert("127.0.0.1")
        chain, key = home / "server.pem", home / "server.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        private = load_pem_private_key(issued.private_key_pem.bytes(), None)
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return {
            "tls.server.mode": "permissive",
            "tls.test.mode.enable": False,
            "tls.server.certPath": chain,
            "tls.server.keyPath": key,
        }
