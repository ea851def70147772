"""broker.conf: Apache's names, accepted and refused values."""

import pytest

from libramq.broker.broker_conf import advice, broker_config, load_broker_config
from libramq.broker.config import BrokerConfig
from libramq.errors import ConfigError
from libramq.formats.properties_file import parse_properties, property_line, read_properties
from libramq.message.delay_level import DELAY_LEVELS_MS


def test_apaches_own_file_is_read(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text(
        """
        # Licensed to the Apache Software Foundation
        ! and another comment
        brokerClusterName = Test-Cluster
        brokerName=broker-x
        brokerId=0
        deleteWhen = 04
        fileReservedTime: 48
        flushDiskType = SYNC_FLUSH
        listenPort=20911
        autoCreateTopicEnable=FALSE
        namesrvAddr = 10.0.0.1:9876;10.0.0.2:9876
        """
    )
    config, unknown = load_broker_config(file)
    assert (config.cluster_name, config.broker_name, config.listen_port) == (
        "Test-Cluster",
        "broker-x",
        20_911,
    )
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.auto_create_topic_enable is False
    assert config.namesrv_addr == "10.0.0.1:9876;10.0.0.2:9876"
    assert config.address == "127.0.0.1:20911"
    assert (config.delete_hours, config.file_reserved_hours) == ({4}, 48)
    assert unknown == []


def test_several_files_are_one_and_single_options_win(tmp_path):
    (tmp_path / "broker.conf").write_text("brokerName=a\nbrokerIP1=127.0.0.2\nlistenPort=20911\n")
    (tmp_path / "secret.conf").write_text(
        'brokerName=b\ninnerClientAuthenticationCredentials={"accessKey":"k","secretKey":"s"}\n'
    )
    files = (tmp_path / "broker.conf", tmp_path / "secret.conf")
    config, unknown = load_broker_config(*files, settings=["brokerIP1=127.0.0.3"])
    assert (config.broker_name, config.broker_ip, config.listen_port) == ("b", "127.0.0.3", 20_911)
    assert config.credentials is not None
    assert unknown == []
    with pytest.raises(ConfigError, match=r"broker\.conf, .*secret\.conf: listenPort 0"):
        load_broker_config(*files, settings=["listenPort=0"])


def test_arguments_outrank_the_file():
    config, _ = broker_config(
        {"listenPort": "20911", "brokerName": "b"}, listen_port=20_912, broker_name=None
    )
    assert (config.listen_port, config.broker_name) == (20_912, "b")


def test_defaults_are_apaches_and_bind_to_this_machine():
    config = BrokerConfig()
    assert (config.listen_port, config.default_topic_queue_nums, config.max_message_size) == (
        10_911,
        8,
        4 << 20,
    )
    assert config.bind_address == "127.0.0.1"
    assert len(config.delay_levels_ms) == 18
    assert config.delay_levels_ms[:3] + config.delay_levels_ms[-1:] == [1_000, 5_000, 10_000, 7_200_000]
    assert tuple(config.delay_levels_ms) == DELAY_LEVELS_MS  # Values that clients rely on.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listenPort", "port"), ("listenPort", "0"), ("listenPort", "65536"), ("listenPort", "10911 # here"),
        ("brokerId", "1"), ("brokerId", "-1"), ("brokerName", "a/b"), ("brokerName", ""),
        ("brokerClusterName", "../x"), ("flushDiskType", "SOMETIMES"), ("autoCreateTopicEnable", "yes"),
        ("messageDelayLevel", "1x"), ("messageDelayLevel", "s"), ("messageDelayLevel", ""),
        ("messageDelayLevel", f"{'9' * 5_000}s"),
        ("maxMessageSize", "0"), ("maxMessageSize", str(16 << 20)), ("defaultTopicQueueNums", "0"),
        ("defaultTopicQueueNums", "100000"), ("flushConsumerOffsetInterval", "0"), ("brokerIP1", "localhost"),
        ("brokerPermission", "9"), ("shortPollingTimeMills", "-5"), ("haListenPort", "65536"),
        ("haListenPort", "10911"), ("haListenPort", "10909"), ("haAllowedAddresses", "10.0.0.300"),
        ("storePathRootDir", ""),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=r".") as refused:
        broker_config({name: value})
    if name not in ("brokerName", "brokerClusterName"):
        assert name in str(refused.value)


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no-such"):
        load_broker_config(tmp_path / "no-such")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary"):
        load_broker_config(tmp_path / "binary")


def test_properties_are_read_as_java_reads_them():
    text = "a=1\n b : 2\nc=x=y\nd=http://h:1/\n#e=5\n!f=6\n\ng\nh="
    assert parse_properties(text) == {
        "a": "1", "b": "2", "c": "x=y", "d": "http://h:1/", "g": "", "h": "",
    }  # fmt: skip


#: OpenJDK 17's reading of such files, by Properties.load and String.trim().
AS_JAVA: dict[str, dict[str, str]] = {
    "brokerName my-broker": {"brokerName": "my-broker"},
    "brokerName\t=\tb\n a\fb": {"brokerName": "b", "a": "b"},
    "x = = y\n=z": {"x": "= y", "": "z"},
    "a=b,\\\n   c,\\\r\n#d\n\n#e": {"a": "b,c,#d"},
    "# a=b \\\nc=d\n\\\n #e": {"c": "d"},
    "a=b\\\\\nc=d\\": {"a": "b\\", "c": "d"},
    "a\\ b\\=c\\:d=\\ttab ": {"a b=c:d": "tab"},
    'a=\\u0078\\u00E9\\ud83d\\ude00\\q\\"\\#': {"a": 'xé\U0001f600q"#'},
    "a=caf\xe9\x85": {"a": "caf\xe9\x85"},
}


@pytest.mark.parametrize("text", AS_JAVA)
def test_a_file_is_read_as_java_reads_it(text, tmp_path):
    (tmp_path / "broker.conf").write_bytes(text.encode("latin-1"))
    assert read_properties(tmp_path / "broker.conf") == AS_JAVA[text]
    written = "".join(property_line(name, value) for name, value in AS_JAVA[text].items() if name.isalnum())
    assert parse_properties(written).items() <= AS_JAVA[text].items()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xef\xbb\xbfbrokerName=b", "line 1: the file begins with a byte order mark"),
        ("brokerName=b".encode("utf-16"), "line 1: the file begins with a byte order mark"),
        ("# größe\na=\\\n  b\nstorePathRootDir=/größe".encode(), "line 4: UTF-8, .* as .uXXXX"),
        (b"\n\na=C:\\users", "line 3: .u needs the four hexadecimal digits"),
        (b"a=\\ud83d", "line 1: half a character: "),
        (b"brokerName my broker", "the brokerName 'my broker' has characters other than"),
        (b"listenPort=many", "listenPort=many; a whole number"),
    ],
)
def test_a_file_that_cannot_be_read_as_java_does_is_refused_with_its_line(data, why, tmp_path):
    (tmp_path / "broker.conf").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"{tmp_path}/broker\.conf: {why}"):
        load_broker_config(tmp_path / "broker.conf")


def test_a_line_of_properties_ends_as_in_java():
    text = "brokerName=a\r\nregionId=b\u2028c\rclusterName=d\x85e\n"
    assert parse_properties(text) == {"brokerName": "a", "regionId": "b\u2028c", "clusterName": "d\x85e"}


def test_the_treatment_of_damage_is_an_argument_and_not_an_option_of_the_file():
    assert broker_config({}, damaged="cut")[0].damaged == "cut"
    config, unknown = broker_config({"damaged": "cut"})
    assert (config.damaged, unknown) == (None, ["damaged"])
    with pytest.raises(ConfigError, match="skip or cut"):
        broker_config({}, damaged="maybe")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("aclEnable", "true"), ("aclEnable", ""), ("migrateAuthFromV1Enabled", "true"),
        ("authenticationProvider", "org.example.Ldap"),
        ("allAckInSyncStateSet", "true"),
        ("enableDLegerCommitLog", "true"), ("enableControllerMode", "true"),
    ],
)  # fmt: skip
def test_options_that_would_weaken_security_or_durability_are_refused(name, value):
    """The error names the option, the missing behaviour, and the value to write instead."""
    with pytest.raises(ConfigError, match="would not do what the line promises") as refused:
        broker_config({name: value})
    assert str(refused.value).startswith(f"{name}={value}: ")


def test_extension_files_of_queues_are_an_unused_option():
    """Existing ones are read, and none are written: a warning says so, as of other unused options."""
    assert broker_config({"enableConsumeQueueExt": "true"})[1] == ["enableConsumeQueueExt"]


def test_options_without_effect_are_accepted_silently():
    _, unknown = broker_config(
        {
            "authenticationEnabled": "false", "aclEnable": "FALSE", "brokerRole": "ASYNC_MASTER",
            "inSyncReplicas": "1", "tls.server.mode": "disabled",
        }
    )  # fmt: skip
    assert unknown == []


def test_light_queues_need_both_options():
    """With only one of them Apache's broker silently puts no message into a light queue either."""
    both = {"enableLmq": "true", "enableMultiDispatch": "true"}
    assert broker_config(both)[0].has_light_queues
    for name in both:
        with pytest.raises(ConfigError, match="light queues need both"):
            broker_config({name: "true"})
    with pytest.raises(ConfigError, match="maxLmqConsumeQueueNum 0"):
        broker_config({**both, "maxLmqConsumeQueueNum": "0"})
    with pytest.raises(ConfigError, match="did you mean enableLmq"):
        broker_config({"enableLmqs": "true"})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("autenticationEnabled", "authenticationEnabled"), ("AclEnable", "aclEnable"),
        ("authenticationenabled", "authenticationEnabled"), ("flushDiskTyp", "flushDiskType"),
        ("inSyncReplica", "inSyncReplicas"), ("brokerrole", "brokerRole"),
    ],
)  # fmt: skip
def test_a_misspelt_durability_option_is_refused_with_the_right_name(wrong, right):
    with pytest.raises(ConfigError, match=f"did you mean {right}"):
        broker_config({wrong: "true"})


@pytest.mark.parametrize(
    "name",
    [
        "authConfigPath", "authenticationStrategy", "brokerIP2", "flushConsumeQueueThoroughInterval",
        "flushIntervalConsumeQueue", "transientStorePoolEnable",
        "controllerAddr", "dLegerGroup", "replicasPerDiskPartition",
    ],
)  # fmt: skip
def test_apaches_other_names_start_with_a_notice(name):
    _, unknown = broker_config({name: "1"})
    assert unknown == [name]


def test_an_unknown_name_is_reported_with_the_nearest_known_one():
    assert advice("autoCreateTopicsEnable") == "; did you mean autoCreateTopicEnable?"
    assert advice("listenport") == "; did you mean listenPort?"
    assert advice("metricsPort") == "; did you mean metricsPromExporterPort?"  # After --metrics-port.
    assert advice("kafkaPort") == "; did you mean kafkaListenPort?"
    assert advice("noSuchName") == ""


def test_broker_credentials_are_read_and_never_shown():
    name = "innerClientAuthenticationCredentials"
    config, unknown = broker_config({name: '{"accessKey":"libra","secretKey":"hush"}'})
    assert unknown == []
    assert config.credentials.secret_key == "hush"
    assert "hush" not in repr(config) + str(config)
    for properties in ({name: "{hush}"}, {name[:-1]: "hush"}, {name: '{"accessKey":"","secretKey":"hush"}'}):
        with pytest.raises(ConfigError, match=name) as raised:
            broker_config(properties)
        assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"brokerRole": "SLAVE"}, "brokerId 0 with brokerRole=SLAVE"),
        ({"brokerId": "1"}, "brokerId 1 with brokerRole=ASYNC_MASTER"),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, "finds its master through name servers"),
        ({"haMasterAddress": "127.0.0.1:10912"}, "haMasterAddress is an option of slaves"),
        ({"brokerRole": "BOSS"}, "ASYNC_MASTER, SYNC_MASTER or SLAVE is allowed"),
        (
            {
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "namesrvAddr": "127.0.0.1:9876",
                "haMasterAddress": "somewhere",
            },
            "is not an address",
        ),
        (
            {
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "namesrvAddr": "127.0.0.1:9876",
                "inSyncReplicas": "2",
            },
            "inSyncReplicas=2",
        ),
    ],
)
def test_a_role_that_contradicts_other_options_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        broker_config(options)
