"""The clusters of every interop test: Apache's servers prove that the test is right, then it tests ours."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.interop.apache import SMALL_STORE, ApacheBroker, ApacheNameServer, set_up
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraUp
from tests.interop.process import Process

Process.java_timers_late_ns = 20_000_000


@pytest.fixture(scope="session")
def _programs() -> None:
    set_up()


@pytest.fixture(scope="session", params=["apache", "libra"])
def _cluster(
    request: pytest.FixtureRequest, _programs: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "apache":
            nameserver = ApacheNameServer(home / "namesrv")
            stack.callback(nameserver.stop)
            nameserver.wait_ready()
            broker = ApacheBroker(home / "broker", namesrv=nameserver.address, settings=SMALL_STORE)
            # A clean stop would take 20 s, and this store is not read again.
            stack.callback(broker.process.kill)
            broker.wait_ready()
            namesrv = nameserver.address
        else:
            servers = LibraUp(home / "up")
            stack.callback(servers.stop)
            servers.wait_ready()
            namesrv = servers.namesrv
        cluster = Cluster(request.param, namesrv, home)
        stack.callback(cluster.stop_programs, keep_producers=False)
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """A running cluster; programs that the test starts against it end with the test."""
    try:
        yield _cluster
    finally:
        _cluster.stop_programs()
