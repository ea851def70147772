"""The admin commands about name servers and brokers, against a `libra up`."""

import json

from tests.cli.commands import libra, one_line


def ask(up, *arguments: str):
    done = libra("admin", *arguments, "-n", up.namesrv, "--json")
    assert done.code == 0, done
    return json.loads(done.out)


def test_a_brokers_state_and_options(up):
    broker = f"127.0.0.1:{up.broker_port}"
    assert ask(up, "brokerStatus", "-b", broker)["brokerActive"] == "true"
    options = ask(up, "getBrokerConfig", "-b", broker)
    assert (options["brokerName"], options["recallMessageEnable"]) == ("broker-a", "true")
    ask(up, "updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "71")
    assert ask(up, "getBrokerConfig", "-b", broker)["fileReservedTime"] == "71"
    arguments = ("updateBrokerConfig", "-n", up.namesrv, "-b", broker, "-k", "listenPort", "-v", "1")
    assert "listenPort cannot be changed while the broker runs" in one_line(libra("admin", *arguments))


def test_a_name_servers_values_and_options(up):
    ask(up, "updateKvConfig", "-s", "libra-cli", "-k", "colour", "-v", "red")
    ask(up, "deleteKvConfig", "-s", "libra-cli", "-k", "colour")
    options = ask(up, "getNamesrvConfig")[up.namesrv]
    assert options["orderMessageEnable"] == "false"
    assert options["kvConfigPath"].endswith("kvConfig.json")
    try:
        ask(up, "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        assert ask(up, "getNamesrvConfig")[up.namesrv]["orderMessageEnable"] == "true"
    finally:
        ask(up, "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")


def test_an_unknown_broker_is_an_error(up):
    """A broker's address used to be taken for its name: nothing changed, and the answer was OK."""
    for command in ("wipeWritePerm", "addWritePerm"):
        failed = libra("admin", command, "-n", up.namesrv, "-b", "127.0.0.1:10911")
        assert failed.code == 2
        assert "knows a topic of the broker 127.0.0.1:10911" in failed.err


def test_a_broker_that_producers_avoid(up):
    try:
        assert ask(up, "wipeWritePerm", "-b", "broker-a")["topics"][up.namesrv] > 0
        perms = {queues["perm"] for queues in ask(up, "topicRoute", "-t", "TBW102")["queueDatas"]}
        assert perms == {5}
    finally:
        printed = libra("admin", "addWritePerm", "-n", up.namesrv, "-b", "broker-a").out
    assert printed.startswith(f"add write perm of broker[broker-a] in name server[{up.namesrv}] OK, ")
