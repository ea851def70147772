"""Apache's broker opens our store, and finds messages by key in the index that our broker wrote."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.apache import SMALL_STORE, ApacheBroker, MqAdmin
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

OURS = "indexed"
COUNT = 5


def test_apaches_broker_finds_messages_in_our_index(tmp_path: Path) -> None:
    names = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
    sizes = {name: SMALL_STORE[name] for name in names}
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, OURS, settings=sizes)
        stack.callback(servers.stop)
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic = cluster.fresh_name("Indexed")
        cluster.create_topic(topic, 2)
        sent = {
            str(cluster.send(topic=topic, body=str(number), keys="the-key")["msgId"])
            for number in range(COUNT)
        }
        cluster.wait_until(
            lambda: found(cluster.admin, topic) >= sent, "the messages at ours", within_s=PATIENCE_S
        )
        servers.stop_broker(OURS)
        store = tmp_path / OURS / "store"
        made = {path.name: path.stat().st_mtime_ns for path in (store / "index").iterdir()}
        assert made
        settings = {**SMALL_STORE, "storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        apache = ApacheBroker(tmp_path / "apache", namesrv=servers.namesrv, name=OURS, settings=settings)
        stack.callback(apache.process.kill)
        apache.process.wait_line("boot success", within_s=PATIENCE_S)
        cluster.wait_until(
            lambda: found(cluster.admin, topic) >= sent,
            "the messages at Apache's broker",
            within_s=PATIENCE_S,
        )
        assert set(made) <= {path.name for path in (store / "index").iterdir()}


def found(admin: MqAdmin, topic: str) -> set[str]:
    """Return the ids of the messages with the key, as mqadmin prints them."""
    try:
        printed = admin("queryMsgByKey", "-t", topic, "-k", "the-key")
    except AssertionError:  # No broker is registered yet.
        return set()
    return set(printed.split())
