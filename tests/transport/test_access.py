"""Access as properties: Apache's names, and a sentence for each kind of mistake."""

import pytest

from libramq.client import Credentials, Tls
from libramq.errors import ConfigError
from libramq.transport.access import VARIABLE, Access, access_of, environment_access


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


@pytest.mark.parametrize("rest", ["cGFydDI", "cGFydDI=", "cGFydDI=="])
def test_the_rest_of_a_secret_in_two_lines_is_not_shown(rest: str, tmp_path, monkeypatch) -> None:
    """The second line used to be reported as an unknown property of access."""
    file = tmp_path / "access"
    file.write_text(f"accessKey=bob\nsecretKey=cGFydDEt\n{rest}\n")
    file.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(ConfigError, match=r"a line has no value, .* on one line, as secretKey=") as raised:
        environment_access()
    assert "cGFydD" not in str(raised.value)


def test_a_key_password_that_all_can_read_is_warned_of(tmp_path, monkeypatch, caplog) -> None:
    file = tmp_path / "access"
    file.write_text("tls.enable=true\ntls.client.keyPassword=s\n")
    file.chmod(0o644)
    monkeypatch.setenv(VARIABLE, str(file))
    environment_access()
    assert "every user of this machine can read the secret key" in caplog.text
