"""Tests of the stores of handled messages; SQLite's and Redis's are shared by processes."""

import itertools
import shutil
import socket
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from libramq.client.idempotence import ClaimResult, MemoryStore, RedisStore, SqliteStore
from libramq.errors import ConfigError

LEASE_MS = 1_000
KEEP_MS = 60_000


class FixedClock:
    def __init__(self):
        self.now_ms = 1_000_000

    def wall_ms(self):
        return self.now_ms

    monotonic_ms = wall_ms


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    """Start a Redis server and return its address."""
    pytest.importorskip("redis", reason="needs the package redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("redis")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert any("Ready to accept connections" in line for line in server.stdout)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.communicate()


@pytest.fixture
def clock():
    return FixedClock()


_prefixes = itertools.count()


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request, tmp_path, clock):
    if request.param == "memory":
        yield MemoryStore()
        return
    if request.param == "sqlite":
        store = SqliteStore(tmp_path / "handled.db", lease_ms=LEASE_MS, keep_ms=KEEP_MS, clock=clock)
    else:
        url = request.getfixturevalue("redis_url")
        store = RedisStore(url, prefix=f"test{next(_prefixes)}:", lease_ms=30_000, keep_ms=KEEP_MS)
    yield store
    store.close()


def test_a_key_is_claimed_once_until_it_is_done(store):
    """Once it is done, no caller can claim it."""
    assert store.claim(["a", "b"], "one") == [ClaimResult.NEW, ClaimResult.NEW]
    assert store.claim(["a", "c"], "two") == [ClaimResult.BUSY, ClaimResult.NEW]
    store.done(["a"], "one")
    assert store.claim(["a", "b", "c"], "three") == [ClaimResult.DONE, ClaimResult.BUSY, ClaimResult.BUSY]


def test_a_released_key_can_be_claimed_again(store):
    """Any caller may claim it; only the owner of a claim can release it."""
    store.claim(["a"], "one")
    store.release(["a"], "two")
    assert store.claim(["a"], "two") == [ClaimResult.BUSY]
    store.release(["a"], "one")
    assert store.claim(["a"], "two") == [ClaimResult.NEW]


def test_a_finished_key_stays_finished(store):
    """A late release changes nothing."""
    store.claim(["a"], "one")
    store.done(["a"], "one")
    store.release(["a"], "one")
    assert store.claim(["a"], "one") == [ClaimResult.DONE]


def test_one_of_many_threads_gets_the_key(store):
    start = threading.Barrier(8)

    def claim(owner):
        start.wait()
        return [store.claim([f"key {number}"], owner)[0] for number in range(30)]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(claim, [f"owner {n}" for n in range(8)]))
    for of_key in zip(*answers, strict=True):
        assert Counter(of_key) == {ClaimResult.NEW: 1, ClaimResult.BUSY: 7}


def test_memory_forgets_the_oldest():
    """It never holds more than its limit."""
    store = MemoryStore(capacity=3)
    for number in range(5):
        store.claim([str(number)], "x")
        store.done([str(number)], "x")
    assert len(store) == 3
    assert store.claim(["1", "2"], "x") == [ClaimResult.NEW, ClaimResult.DONE]
    with pytest.raises(ConfigError, match="at least 1"):
        MemoryStore(capacity=0)


def test_a_claim_in_sqlite_expires_with_its_lease(tmp_path, clock):
    """Finished keys are kept for the configured time, even for another process."""
    path = tmp_path / "handled.db"
    dead = SqliteStore(path, lease_ms=LEASE_MS, keep_ms=KEEP_MS, clock=clock)
    dead.claim(["a", "b"], "dead")
    dead.done(["b"], "dead")
    dead.close()
    store = SqliteStore(path, lease_ms=LEASE_MS, keep_ms=KEEP_MS, clock=clock)
    clock.now_ms += LEASE_MS - 1
    assert store.claim(["a", "b"], "x") == [ClaimResult.BUSY, ClaimResult.DONE]
    clock.now_ms += 1
    assert store.claim(["a", "b"], "x") == [ClaimResult.NEW, ClaimResult.DONE]
    clock.now_ms += KEEP_MS
    assert store.claim(["b"], "x") == [ClaimResult.NEW]
    store.close()


def test_a_clock_that_is_set_back_makes_no_lease_in_sqlite_longer(tmp_path, clock):
    """A dead process's claim blocked its message for as much longer."""
    path = tmp_path / "handled.db"
    dead = SqliteStore(path, lease_ms=LEASE_MS, keep_ms=KEEP_MS, clock=clock)
    dead.claim(["a", "b"], "dead")
    dead.done(["b"], "dead")
    dead.close()
    clock.now_ms -= 900_000
    store = SqliteStore(path, lease_ms=LEASE_MS, keep_ms=KEEP_MS, clock=clock)
    assert store.claim(["a", "b"], "x") == [ClaimResult.BUSY, ClaimResult.DONE]
    clock.now_ms += LEASE_MS - 1
    assert store.claim(["a"], "x") == [ClaimResult.BUSY]
    clock.now_ms += 1
    assert store.claim(["a", "b"], "x") == [ClaimResult.NEW, ClaimResult.DONE]
    store.close()


def test_sqlite_removes_expired_entries(tmp_path, clock):
    """Each thousandth claim removes a few."""
    store = SqliteStore(tmp_path / "handled.db", keep_ms=KEEP_MS, clock=clock)
    old = [f"old {number}" for number in range(1500)]
    store.claim(old, "x")
    store.done(old, "x")
    clock.now_ms += KEEP_MS
    store.claim([f"new {number}" for number in range(1000)], "x")
    assert store._database.execute("SELECT count(*) FROM handled").fetchone() == (1000,)
    store.close()


def test_two_processes_share_a_sqlite_file(tmp_path):
    """Each has its own connection."""
    first, second = (SqliteStore(tmp_path / "handled.db") for _ in range(2))
    assert first.claim(["a"], "one") == [ClaimResult.NEW]
    assert second.claim(["a"], "two") == [ClaimResult.BUSY]
    first.done(["a"], "one")
    assert second.claim(["a"], "two") == [ClaimResult.DONE]
    first.close()
    second.close()


def test_a_file_without_a_database_is_refused(tmp_path):
    """The error is raised before a consumer is started with it."""
    (tmp_path / "text").write_text("not a database, but long enough to be looked at\n" * 20)
    with pytest.raises(ConfigError, match="cannot be used"):
        SqliteStore(tmp_path / "text")


def test_entries_in_redis_expire(redis_url):
    """Claims expire after their lease, entries of finished messages after the time that they are kept."""
    store = RedisStore(redis_url, prefix="expiry:", lease_ms=30_000, keep_ms=KEEP_MS)
    store.claim(["a", "b"], "x")
    store.done(["b"], "x")
    assert 0 < store._client.pttl("expiry:a") <= 30_000
    assert 30_000 < store._client.pttl("expiry:b") <= KEEP_MS
    store.close()


def test_an_invalid_address_is_refused():
    """The Redis package explains what an address looks like."""
    pytest.importorskip("redis", reason="needs the package redis")
    with pytest.raises(ConfigError, match="no address"):
        RedisStore("not a url")
