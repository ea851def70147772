"""Tests of options: each mistake, by any name and of any type, is one clear sentence."""

import inspect

import pytest

import libramq
from libramq import (
    ConfigError,
    Consumer,
    InvalidMessage,
    InvalidName,
    LibraError,
    Message,
    Producer,
    PushConsumer,
    errors,
    sync,
)
from libramq.client import Admin, ConsumeFrom, SimpleConsumer, identity
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.options import AdminOptions, ConsumerOptions, PushConsumerOptions


def keywords(function):
    """Return the keyword-only parameters of a function by name, with their annotations."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_the_blocking_admin_has_the_options_of_the_asynchronous_one():
    """Each has the same type."""
    assert {name: str(kind) for name, kind in keywords(Admin).items()} == {
        name: str(kind) for name, kind in AdminOptions.__annotations__.items()
    }


def test_every_setting_of_consumers_is_an_option_of_one():
    """Settings that the consumer determines itself are excepted."""
    ours = {"client_id", "group_strategy", "has_assigned_hook", "has_revoke_hook", "fetches", "assigns"}
    options = PushConsumerOptions.__annotations__.keys() | ConsumerOptions.__annotations__.keys()
    assert ConsumerSettings.__annotations__.keys() - ours <= options


@pytest.mark.parametrize("kind", [PushConsumer, Consumer, sync.PushConsumer, sync.Consumer])
def test_a_consumer_needs_a_group(kind):
    with pytest.raises(ConfigError, match="a consumer needs a group"):
        kind(namesrv="127.0.0.1:1")


@pytest.mark.parametrize("kind", [Producer, sync.Producer])
def test_an_unknown_option_of_a_producer_is_explained(kind):
    with pytest.raises(ConfigError, match="no such option: retry; did you mean retries"):
        kind(retry=2)


@pytest.mark.parametrize("kind", [SimpleConsumer, sync.SimpleConsumer])
def test_an_unknown_option_of_a_simple_consumer_is_explained(kind):
    with pytest.raises(ConfigError, match="SimpleConsumer has no such option: fromend; did you mean"):
        kind(group="g", fromend=True)


@pytest.mark.parametrize("kind", [Admin, sync.Admin])
def test_an_unknown_option_of_an_admin_is_explained(kind):
    with pytest.raises(ConfigError, match="Admin has no such option: namesvr; did you mean namesrv"):
        kind(namesvr="127.0.0.1:9876")


WRONG = [
    ({"session_ms": "abc"}, "session_ms is a whole number, not 'abc'"),
    ({"session_ms": 1.5}, "session_ms is a whole number, not 1.5"),
    ({"session_ms": True}, "session_ms is a whole number, not True"),
    ({"session_ms": 5}, "session_ms is between 1000 and 1800000, not 5"),
    ({"threads": "4"}, "threads is a whole number"),
    ({"batch_size": None}, "batch_size is a whole number"),
    ({"consume_from": "oldest"}, 'consume_from is "earliest", "latest" or "timestamp"'),
    ({"consume_from": 0}, "consume_from is"),
    ({"consume_timestamp_ms": "now"}, "consume_timestamp_ms is a whole number"),
    ({"orderly": "yes"}, "orderly is True or False, not 'yes'"),
    ({"broadcasting": 1}, "broadcasting is True or False, not 1"),
    ({"strategy": 5}, "strategy is a name"),
    ({"strategy": "best"}, "best"),
    ({"instance_id": 7}, "instance_id is a text"),
    ({"instance_name": 7}, "instance"),
    ({"on_assigned": 5}, "on_assigned is a function, not 5"),
    ({"on_error": "print"}, "on_error is a function"),
    ({"namesrv": 9876}, 'namesrv is "host:port"'),
    ({"namesrv": [9876]}, 'namesrv is "host:port"'),
    ({"namesrv": "localhost"}, "host:port"),
    ({"credentials": "me"}, "credentials is"),
    ({"tls": True}, "tls is"),
    ({"local_offsets": 5, "broadcasting": True}, "local_offsets is a path"),
    ({"sesion_ms": 5000}, "no such option: sesion_ms; did you mean session_ms?"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=str)
@pytest.mark.parametrize("kind", [PushConsumer, sync.PushConsumer])
def test_a_wrong_option_is_explained(kind, options, text):
    """The error has its name, the values that are allowed, and the one that was passed."""
    with pytest.raises(ConfigError) as caught:
        kind(group="g", **options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retries": "2"}, "retries is a whole number, not '2'"),
        ({"send_timeout_ms": 0}, "send_timeout_ms is 1 or more"),
        ({"linger_ms": "1"}, "linger_ms is a number"),
        ({"linger_ms": -1}, "linger_ms is a number"),
        ({"buffer_bytes_max": None}, "buffer_bytes_max is a whole number"),
        ({"group": 5}, "the group is a text, not 5"),
        ({"latency_fault": "yes"}, "latency_fault is True or False, not 'yes'"),
        ({"retry_when_not_safe": 1}, "retry_when_not_safe is True or False, not 1"),
        ({"back_off_table": 5}, "back_off_table is a sequence of BackOff(…), not 5"),
        ({"back_off_table": [5]}, "an entry of back_off_table is a BackOff(…), not 5"),
        ({"tls": "yes"}, "tls is"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Producer, sync.Producer])
def test_a_wrong_option_of_a_producer_is_explained(kind, options, text):
    """Blocking code gets the same error."""
    with pytest.raises(ConfigError) as caught:
        kind(**options)
    assert text in str(caught.value)


def names_of(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_blocking_admin_has_every_method():
    """`reset_offsets` was missing once."""
    assert names_of(Admin) - {"start", "stop"} <= names_of(sync.Admin)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "text"),
    [
        ("topic_route", [5], {}, "the topic is a text, not 5"),
        ("topic_stats", [5], {}, "the topic is a text, not 5"),
        ("delete_topic", [5], {}, "the topic is a text, not 5"),
        ("consume_stats", [5], {}, "the group is a text, not 5"),
        ("create_topic", ["T"], {"queues": "5"}, "queues is a whole number, not '5'"),
        ("create_topic", ["T"], {"read_queues": 0}, "read_queues is between 1 and 65536, not 0"),
        ("create_topic", ["T"], {"perm": "rw"}, "perm is a whole number, not 'rw'"),
        ("reset_offsets", ["g", "T", "now"], {}, "timestamp_ms is a whole number, not 'now'"),
    ],
)
async def test_a_wrong_argument_of_the_admin_is_explained(method, arguments, options, text):
    """The error is raised before anything is sent."""
    async with Admin(namesrv="127.0.0.1:1") as admin:
        with pytest.raises(ConfigError) as caught:
            await getattr(admin, method)(*arguments, **options)
    assert str(caught.value) == text


def test_the_timeout_of_the_admin_is_a_number():
    with pytest.raises(ConfigError, match="timeout_ms is a whole number, not 'a'"):
        Admin(timeout_ms="a")


@pytest.mark.parametrize("messages", ["text", 5, Message("T", b"x"), [5], None])
async def test_an_invalid_batch_is_explained(messages):
    async with Producer(namesrv="127.0.0.1:1") as producer:
        with pytest.raises(InvalidMessage) as caught:
            await producer.send_batch(messages)
    assert "a batch is a list of messages" in str(caught.value) or "is a Message" in str(caught.value)


async def test_message_options_are_checked_before_sending():
    async with Producer(namesrv="127.0.0.1:1") as producer:
        with pytest.raises(ConfigError, match="the callback is a function, not 5"):
            producer.send_nowait(Message("T", b"x"), 5)
        with pytest.raises(ConfigError, match="queue is a MessageQueue"):
            producer.send_nowait(Message("T", b"x"), queue=5)
        with pytest.raises(ConfigError, match="queue is a MessageQueue"):
            await producer.send_batch([Message("T", b"x")], queue=5)
    with (
        sync.Producer(namesrv="127.0.0.1:1") as blocking,
        pytest.raises(ConfigError, match="the callback is a function, not 5"),
    ):
        blocking.send_nowait(Message("T", b"x"), 5)


@pytest.mark.parametrize("group", [None, 5, b"g", ["g"]])
def test_a_group_is_a_string(group):
    """Another type that has a length is refused."""
    with pytest.raises(InvalidName, match="the group is a text"):
        PushConsumer(group=group)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((5, "*", print), "the topic is a text, not 5"),
        (("T", ["a"], print), "a subscription is a text"),
        (("T", "*", None), "not a function"),
        (("T", "*", "print"), "not a function"),
    ],
    ids=str,
)
def test_a_wrong_subscription_is_explained(arguments, text):
    """The error is raised by `subscribe`."""
    with pytest.raises(ConfigError) as caught:
        PushConsumer(group="g").subscribe(*arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "text", None, Message("T", "text"), Message("T", b"x", delay_level="3"), Message("T", b"x", flag="1"),
        Message("T", b"x", keys=5), Message("T", b"x", properties=["a"]), Message(5, b"x"),
        Message("T", b"x", properties={"a": 1}), Message("T", b"x", tags=5),
    ],
    ids=str,
)  # fmt: skip
async def test_an_invalid_message_is_explained(message):
    """The error is ours, and raised before anything is sent."""
    async with Producer() as producer:
        for call in (producer.send, producer.send_oneway):
            with pytest.raises((InvalidMessage, InvalidName)):
                await call(message)
        with pytest.raises((InvalidMessage, InvalidName)):
            producer.send_nowait(message)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("earliest", ConsumeFrom.FIRST_OFFSET), ("latest", ConsumeFrom.LAST_OFFSET),
        ("timestamp", ConsumeFrom.TIMESTAMP), ("EARLIEST", ConsumeFrom.FIRST_OFFSET),
        ("CONSUME_FROM_FIRST_OFFSET", ConsumeFrom.FIRST_OFFSET),
        (ConsumeFrom.TIMESTAMP, ConsumeFrom.TIMESTAMP),
    ],
)  # fmt: skip
def test_consume_from_accepts_the_names_of_other_clients(given, meant):
    """It accepts RocketMQ's as well."""
    assert PushConsumer(group="g", consume_from=given)._settings.consume_from is meant


def test_the_default_name_server_is_on_this_machine(monkeypatch):
    """It is that of the commands; the environment variable takes precedence."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert identity.name_server_addresses(None) == ("127.0.0.1:9876",)
    for kind in (PushConsumer, sync.PushConsumer):
        kind(group="g")
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert identity.name_server_addresses(None) == ("a:1", "b:2")


def test_every_error_can_be_imported_from_the_package():
    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, LibraError)
    }
    assert public == set(errors.__all__)
    assert public <= set(libramq.__all__)
    for name in libramq.__all__:
        assert getattr(libramq, name).__name__ == name
