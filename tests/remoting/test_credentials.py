"""Signatures: equal to those of Apache's client, in both header forms, without ever showing the secret."""

import copy

import pytest

from libramq.auth.signature import signature
from libramq.clock import SystemClock
from libramq.codes import RequestCode
from libramq.errors import ConfigError
from libramq.remoting.command import Command, Serialization
from libramq.remoting.credentials import (
    Credentials,
    is_signed,
    is_signed_for,
    parse_credentials,
    sign,
    sign_for,
)
from libramq.remoting.frame import decode_frame, encode_frame
from libramq.transport.access import Access
from libramq.transport.blocking import BlockingRemote
from tests.transport.echo_server import echo_server

BOB = Credentials("bob", "12345678")


def test_the_signature_of_apaches_own_test() -> None:
    """AclSignerTest.java signs the text RocketMQ with the key 12345678."""
    assert signature({}, b"RocketMQ", b"12345678") == "IUc8rrO/0gDch8CjObLQsW2rsiA="
    assert signature({"b": "ketMQ", "a": "Roc"}, b"", b"12345678") == "IUc8rrO/0gDch8CjObLQsW2rsiA="
    assert signature({"b": "Rock", "C": "", "z": "et"}, b"MQ", b"12345678") == "IUc8rrO/0gDch8CjObLQsW2rsiA="


def test_signing_adds_the_access_key_and_changes_nothing_else() -> None:
    request = Command(code=RequestCode.PULL_MESSAGE, ext={"topic": "T", "queueId": "3"}, body=b"x", opaque=7)
    before = copy.deepcopy(request)
    signed = sign(request, Credentials("bob", "12345678", "temporary"))
    assert request == before
    assert signed.ext.keys() == {"topic", "queueId", "AccessKey", "SecurityToken", "Signature"}
    assert (signed.opaque, signed.body, signed.ext["AccessKey"]) == (7, b"x", "bob")
    # AccessKey, SecurityToken, queueId, topic: capitals first, as in Java.
    assert signed.ext["Signature"] == signature({"all": "bobtemporary3T"}, b"x", b"12345678")


@pytest.mark.parametrize("form", list(Serialization))
def test_a_signature_verifies_after_the_wire(form: Serialization) -> None:
    """The binary form leaves out empty fields, which add nothing to a signature."""
    ext = {"topic": "Bücher", "subscription": "", "batch": "true"}
    request = Command(code=RequestCode.SEND_BATCH_MESSAGE, ext=ext, body=b"\x00\xff", serialization=form)
    decoded = decode_frame(encode_frame(sign(request, BOB)), 0)
    assert decoded is not None
    read, _ = decoded
    told = read.ext.pop("Signature")
    assert told == signature(read.ext, read.body, b"12345678")
    assert told != signature(read.ext, read.body, b"12345679")


def test_signing_is_idempotent() -> None:
    request = Command(code=1, ext={"topic": "T"})
    assert sign(sign(request, BOB), BOB) == sign(request, BOB)


def test_secrets_are_not_shown() -> None:
    shown = repr(Access(Credentials("bob", "hunter2", "hunter3")))
    assert "bob" in shown
    assert "hunter" not in shown


@pytest.mark.parametrize(("access_key", "secret_key"), [("", "x"), ("x", "")])
def test_incomplete_credentials_are_refused(access_key: str, secret_key: str) -> None:
    with pytest.raises(ConfigError, match="credentials need access_key and secret_key"):
        Credentials(access_key, secret_key)


def test_every_request_of_a_connection_is_signed() -> None:
    """One-way requests are signed too."""
    with echo_server() as server:
        remote = BlockingRemote(server.address, SystemClock().monotonic_ms, access=Access(BOB))
        remote.send_oneway(Command(code=1, flag=2, ext={"topic": "T"}))
        remote.call(Command(code=2, body=b"x"))
        remote.close()
    assert [request.ext.pop("Signature") for request in server.requests] == [
        signature({"AccessKey": "bob", "topic": "T"}, b"", b"12345678"),
        signature({"AccessKey": "bob"}, b"x", b"12345678"),
    ]


def test_a_signature_is_valid_for_its_request_and_secret_only() -> None:
    signed = sign(Command(code=1, ext={"topic": "T"}, body=b"x"), BOB)
    assert is_signed(signed, BOB)
    for other in (
        Command(code=1, ext=signed.ext, body=b"y"),
        Command(code=1, ext=signed.ext | {"topic": "U"}, body=b"x"),
        Command(code=1, ext={"topic": "T"}, body=b"x"),
        Command(code=1, ext=signed.ext | {"Signature": "\ud800"}, body=b"x"),
        Command(code=1, ext=signed.ext | {"topic": "\ud800"}, body=b"x"),
        sign(Command(code=1, ext={"topic": "T"}, body=b"x"), Credentials("bob", "a guess")),
        sign(Command(code=1, ext={"topic": "T"}, body=b"x"), Credentials("alice", "12345678")),
    ):
        assert not is_signed(other, BOB)


def test_a_broker_request_is_valid_for_its_code_and_receiver_only() -> None:
    signed = sign_for(Command(code=31010, ext={"lbVersion": "1"}, body=b"{}"), BOB, "10.0.0.1:10911")
    assert is_signed_for(signed, BOB, "10.0.0.1:10911")
    assert not is_signed_for(signed, BOB, "10.0.0.2:10911")
    assert not is_signed_for(Command(code=31011, ext=signed.ext, body=b"{}"), BOB, "10.0.0.1:10911")
    assert not is_signed_for(sign(Command(code=31010, body=b"{}"), BOB), BOB, "10.0.0.1:10911")


def test_credentials_are_read_as_apache_writes_them() -> None:
    """AuthConfig.innerClientAuthenticationCredentials."""
    found = parse_credentials("option", '{"accessKey":"bob","secretKey":"12345678"}')
    assert found == BOB
    assert parse_credentials("option", '{"accessKey":"b","secretKey":"s","securityToken":"t"}').security_token
    both = parse_credentials("option", '{"accessKey":"b","secretKey":"s","secondSecretKey":"t"}')
    assert both.secrets == (b"s", b"t")
    assert "'t'" not in repr(both)


def test_a_second_secret_is_accepted_and_signs_nothing() -> None:
    both = Credentials("bob", "next", second_secret_key="12345678")
    request = Command(code=31010, ext={"lbVersion": "1"}, body=b"{}")
    for credentials in (BOB, both, Credentials("bob", "next")):
        assert is_signed_for(sign_for(request, credentials, "a:1"), both, "a:1")
        assert not is_signed_for(sign_for(request, credentials, "a:2"), both, "a:1")
    assert not is_signed_for(sign_for(request, both, "a:1"), BOB, "a:1")
    assert not is_signed_for(sign_for(request, Credentials("eve", "next"), "a:1"), both, "a:1")


@pytest.mark.parametrize(
    "text",
    [
        "hush",
        '{"accessKey":"bob"}',
        '{"accessKey":"","secretKey":"hush"}',
        '{"secretKey":["hush"]}',
        '["hush"]',
    ],
)
def test_unreadable_credentials_are_named_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^option cannot be read; write") as raised:
        parse_credentials("option", text)
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None
