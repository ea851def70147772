"""Options are read once, and each invalid one is reported in one clear sentence."""

import re
from collections.abc import Callable

import pytest

from libramq.client import Credentials, Tls
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue
from libramq.spark.options import ACCESS, ACCESS_PREFIX
from libramq.spark.reading.positions import Bounds
from libramq.spark.reading.source_options import EARLIEST, KNOWN, LATEST, Boundary, Connection, SourceOptions
from libramq.spark.schema import COLUMNS, ddl
from libramq.spark.writing.sink_options import SinkOptions
from libramq.transport import access
from libramq.transport.access import Access

T = {"subscribe": "T"}
Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def test_option_names_are_case_insensitive():
    """Spark passes a mapping whose plain copy has lower-case names."""
    options = SourceOptions.parse(
        {
            "SUBSCRIBE": "B, A,B",
            "maxoffsetspertrigger": "5",
            "NameSrv": "h:1;i:2",
            "ROCKETMQ.mqclientapitimeout": "7",
        }
    )
    assert options.subscription.topics == ("A", "B")
    assert options.max_offsets_per_trigger == 5
    assert options.connection.namesrv == ("h:1", "i:2")
    assert options.connection.timeout_ms == 7


def test_every_option_is_explained():
    import libramq.spark.reading.source_options as module

    for name in KNOWN:
        assert name in (module.__doc__ or "")


def test_options_have_their_defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    options = SourceOptions.parse(T)
    assert options.connection.namesrv == ("127.0.0.1:9876",)
    assert options.connection.group == "TOOLS_CONSUMER"
    assert options.fail_on_data_loss
    assert options.columns == tuple(name for name in COLUMNS if name != "properties")
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    assert (options.starting_batch.default, options.starting_stream.default) == (EARLIEST, LATEST)
    monkeypatch.setenv("NAMESRV_ADDR", "ns:9876")
    assert SourceOptions.parse(T).connection.namesrv == ("ns:9876",)


def test_group_of_a_prefix_is_the_same_after_a_restart():
    """Brokers keep every group they have ever seen."""
    first, again, other = (
        SourceOptions.parse({"subscribe": topic, "groupIdPrefix": "night"}).connection.group
        for topic in "TTU"
    )
    assert first == again != other
    assert first.startswith("night-")
    assert SourceOptions.parse({**T, "groupIdPrefix": "night", "groupId": "day"}).connection.group == "day"


def test_columns_are_chosen():
    assert SourceOptions.parse({**T, "columns": "key, body,key"}).columns == ("key", "body")
    assert "body" not in SourceOptions.parse({**T, "includeBody": "false"}).columns
    assert SourceOptions.parse({**T, "includeHeaders": "true"}).columns == tuple(COLUMNS)
    assert ddl({"key": "string", "body": "binary"}) == "`key` string, `body` binary"


def test_sizes_are_in_sparks_notation():
    given = ("1", "500k", "64 MB", "2g")
    sizes = [SourceOptions.parse({**T, "maxBytesPerTrigger": text}).max_bytes_per_trigger for text in given]
    assert sizes == [1, 500 << 10, 64 << 20, 2 << 30]


def test_assigned_queues_are_parsed():
    options = SourceOptions.parse({"assign": '{"T": {"b": [1, 0, 1], "a": [2]}}'})
    assert options.subscription.assigned == (
        MessageQueue("T", "a", 2),
        MessageQueue("T", "b", 0),
        MessageQueue("T", "b", 1),
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "exactly one of subscribe, subscribePattern, assign, and got none.*CREATE TEMPORARY VIEW"),
        ({**T, "assign": "{}"}, "got subscribe and assign"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "../x"}, r"subscribe='../x'.*\.\./x"),
        ({"subscribePattern": "("}, "subscribePattern='\\(' is not a regular expression"),
        ({"assign": "[1]"}, 'assign=.*{"Flights": {"broker-a": \\[0, 1\\]}}'),
        ({"assign": '{"T": {"a": ["0"]}}'}, "assign="),
        ({**T, "startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({**T, "includeProperties": "true"}, "did you mean includeHeaders"),
        ({**T, "kafka.bootstrap.servers": "h:1"}, "did you mean namesrv"),
        ({**T, "kafka.group.id": "g"}, "did you mean groupId"),
        ({**T, "path": "/data"}, "there are: subscribe"),
        ({**T, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0'"),
        ({**T, "maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger='many': give a whole number from 1"),
        ({**T, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger=9 is above"),
        ({**T, "maxBytesPerTrigger": "1.5m"}, "maxBytesPerTrigger='1.5m': give a size like 500k, 64m or 2g"),
        ({**T, "maxBytesPerTrigger": "0k"}, "maxBytesPerTrigger='0k': give a size"),
        (
            {**T, "columns": "key,bodies"},
            "columns='key,bodies': there is no column 'bodies'; there are topic",
        ),
        ({**T, "columns": " "}, "columns=' ': there is no column ''"),
        ({**T, "columns": "key", "includeBody": "true"}, "leave includeBody and includeHeaders out"),
        ({**T, "provider": "rocketmq"}, "use CREATE TEMPORARY VIEW NAME USING rocketmq OPTIONS"),
        ({**T, "maxTriggerDelay": "soon"}, "maxTriggerDelay='soon': give a duration like"),
        ({**T, "failOnDataLoss": "no"}, "failOnDataLoss='no': give true or false"),
        ({**T, "startingOffsets": "first"}, "startingOffsets='first'"),
        ({**T, "endingOffsets": "earliest"}, "would read nothing"),
        ({**T, "endingOffsets": '{"T": {"a": {"0": -2}}}'}, "would read nothing"),
        ({**T, "startingTimestamp": "-1"}, "startingTimestamp='-1': give a whole number from 0"),
        ({**T, "startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp='5': give JSON with millisec"),
        ({**T, "startingOffsetsByTimestampStrategy": "warn"}, "give error or latest"),
        ({**T, "namesrv": "nonsense"}, "'nonsense' is not an address"),
        ({**T, "groupId": "a b"}, "groupId='a b'"),
        ({**T, "tags": "||"}, "names no tag"),
        ({**T, "tags": "a", "sql": "b = 1"}, "one of them"),
        ({**T, "store": "/data", "namesrv": "h:1"}, "set only one of them"),
    ],
)
def test_wrong_ones(given: dict[str, str], says: str):
    with pytest.raises(ConfigError, match=says):
        SourceOptions.parse(given)


def test_options_of_the_other_kind_of_query_are_refused():
    with pytest.raises(ConfigError, match=r"latest \(-1\): a batch query begins at messages that are there"):
        SourceOptions.parse({**T, "startingOffsets": "latest"}).check_batch()
    with pytest.raises(ConfigError, match="batch query begins"):
        SourceOptions.parse({**T, "startingOffsets": '{"T": {"a": {"0": -1}}}'}).check_batch()
    with pytest.raises(ConfigError, match="endingTimestamp is for batch queries"):
        SourceOptions.parse({**T, "endingTimestamp": "5"}).check_stream()


class TestBoundary:
    bounds = {Q0: Bounds(minimum=10, maximum=20), Q1: Bounds(minimum=0, maximum=7)}

    def resolve(self, text: str) -> dict[MessageQueue, int]:
        boundary = SourceOptions.parse({**T, "startingOffsets": text}).starting
        assert isinstance(boundary, Boundary)
        return boundary.resolve(self.bounds, lambda times_ms: {})

    def test_words(self):
        assert self.resolve("earliest") == {Q0: 10, Q1: 0}
        assert self.resolve(" Latest") == {Q0: 20, Q1: 7}

    @pytest.mark.parametrize("text", ['{"T": {"a": {"1": 3}}}', '{"T:a:1": 3}'])
    def test_json_by_queue_and_the_rest_at_the_default(self, text: str):
        """The offsets are nested as in Spark's Kafka source, or flat as in checkpoints."""
        assert self.resolve(text) == {Q0: 10, Q1: 3}

    def test_both_ends(self):
        assert self.resolve('{"T": {"a": {"0": -1, "1": -2}}}') == {Q0: 20, Q1: 0}

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "sometimes",
            "[1]",
            "{",
            '{"T:a:0": 1.5}',
            '{"T:a:0": true}',
            '{"T:a:0": -3}',
            '{"T:a:0": "12"}',
            '{"T": {"a": {"x": 1}}}',
            '{"T": {"a": 1}}',
            "[" * 100_000,
        ],
    )
    def test_any_other_value_is_refused_with_the_allowed_ones(self, text: str):
        with pytest.raises(ConfigError, match=r"startingOffsets=.*earliest, latest, or JSON"):
            self.resolve(text)

    def test_unknown_queue_is_named(self):
        with pytest.raises(ConfigError, match=r"startingOffsets names T:a:9.*there are T:a:0, T:a:1"):
            self.resolve('{"T:a:9": 3}')


class TestAccess:
    """Credentials and TLS are the same for source and sink, and are never shown."""

    def test_the_names_are_those_of_the_access(self):
        assert {name.removeprefix(ACCESS_PREFIX) for name in ACCESS} == set(access.NAMES)

    @pytest.mark.parametrize(
        "parse", [lambda given: SourceOptions.parse({**T, **given}).connection, SinkOptions.parse]
    )
    def test_source_and_sink_take_them_in_any_case(
        self, parse: Callable[[dict[str, str]], Connection | SinkOptions]
    ):
        given = {
            "rocketmq.accesskey": "bob",
            "ROCKETMQ.SECRETKEY": "hunter2",
            "rocketmq.tls.enable": "true",
            "rocketmq.tls.verify": "none",
        }
        parsed = parse(given)
        assert parsed.access == Access(Credentials("bob", "hunter2"), Tls(verify="none"))
        assert "hunter2" not in repr(parsed)
        assert parse({}).access is None

    @pytest.mark.parametrize("parse", [lambda given: SourceOptions.parse({**T, **given}), SinkOptions.parse])
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"rocketmq.accessKey": "bob"}, "rocketmq.accessKey is given and rocketmq.secretKey is not"),
            ({"rocketmq.tls.enable": "on"}, "rocketmq.tls.enable='on': give true or false"),
            ({"rocketmq.tls.client.keyPath": "k"}, "has no effect without rocketmq.tls.enable=true"),
            ({"rocketmq.useTLS": "true"}, "did you mean rocketmq.tls.enable"),
            ({"secretKey": "s"}, "did you mean rocketmq.secretKey"),
        ],
    )
    def test_wrong_ones(self, parse: Callable[[dict[str, str]], object], given: dict[str, str], says: str):
        with pytest.raises(ConfigError, match=says):
            parse(given)

    def test_spark_blots_the_secret_ones_out(self):
        """The pattern is Spark's default for spark.redaction.regex."""
        secret = re.compile("(?i)secret|password|token|access[.]?key")
        assert {name for name in ACCESS if secret.search(name)} == {
            "rocketmq.accessKey",
            "rocketmq.secretKey",
            "rocketmq.securityToken",
            "rocketmq.tls.client.keyPassword",
        }


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "1777629600"},
        {"endingTimestamp": "1777629600"},
        {"startingOffsetsByTimestamp": '{"T": {"a": {"0": 1777629600}}}'},
    ],
)
def test_times_in_seconds_are_refused(given: dict[str, str]):
    """Read as milliseconds they are in January 1970: everything was read, or nothing up to an ending time."""
    with pytest.raises(
        ConfigError, match=r"=1777629600 is before 1974: .*; 1777629600000 if these are seconds"
    ):
        SourceOptions.parse(T | given)


def test_times_may_be_iso_times():
    for text, time_ms in (
        ("2026-05-01T10:00:00Z", 1_777_629_600_000),
        ("2026-05-01T12:00:00.250+02:00", 1_777_629_600_250),
        ("1777629600000", 1_777_629_600_000),
        ("0", 0),
    ):
        starting = SourceOptions.parse({**T, "startingTimestamp": text}).starting
        assert starting is not None
        assert starting.time_ms == time_ms
    for text in ("2026-05-01T10:00:00", "yesterday", "1900-01-01T00:00:00Z"):
        with pytest.raises(ConfigError, match="or a time with its zone like 2026"):
            SourceOptions.parse({**T, "startingTimestamp": text})


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"])
def test_options_of_streams_are_refused_in_a_batch(name: str):
    """They used to be ignored: a batch had ten million rows instead of a thousand."""
    with pytest.raises(ConfigError, match=f"{name} is for streaming queries"):
        SourceOptions.parse({**T, name: "1000"}).check_batch()
