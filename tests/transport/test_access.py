"""Access as properties: Apache's names, and a sentence for each way to get them wrong."""

import pytest

from libramq.client import Credentials, Tls
from libramq.errors import ConfigError
from libramq.transport.access import Access, access_of


@pytest.mark.parametrize(
    ("properties", "access"),
    [
        ({}, Access()),
        ({"tls.enable": "false", "tls.verify": "ca"}, Access()),
        ({"accessKey": "bob", "secretKey": "s"}, Access(Credentials("bob", "s"))),
        (
            {"accessKey": "bob", "secretKey": "s", "securityToken": "t", "tls.enable": "TRUE"},
            Access(Credentials("bob", "s", "t"), Tls()),
        ),
        ({"tls.enable": "true", "tls.verify": "none"}, Access(tls=Tls(verify="none"))),
    ],
)
def test_properties_set_access(properties: dict[str, str], access: Access) -> None:
    assert access_of(properties) == access


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"accesskey": "bob"}, "access has no rocketmq.accesskey; there are: accessKey"),
        ({"accessKey": "bob"}, "rocketmq.accessKey is given and rocketmq.secretKey is not"),
        ({"secretKey": "s"}, "rocketmq.secretKey is given and rocketmq.accessKey is not"),
        ({"securityToken": "t"}, "rocketmq.securityToken is given and rocketmq.accessKey is not"),
        ({"accessKey": "bob", "secretKey": ""}, "rocketmq.secretKey is not"),
        ({"tls.enable": "yes"}, "rocketmq.tls.enable='yes': give true or false"),
        ({"tls.verify": "none"}, "rocketmq.tls.verify has no effect without rocketmq.tls.enable=true"),
        ({"tls.enable": "true", "tls.verify": "no"}, "verify='no': give full, ca, none"),
        (
            {"tls.enable": "true", "tls.client.trustCertPath": "/no/ca.pem"},
            "ca_file /no/ca.pem cannot be used",
        ),
    ],
)
def test_mistakes_are_named(properties: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        access_of(properties, prefix="rocketmq.")
    assert "'s'" not in str(raised.value)
