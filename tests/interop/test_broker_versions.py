"""Our client at Apache's brokers and name servers of other versions: from 4.9 to the newest.

Maven Central has the client of 4.9.8, but no broker of 4.9 after 4.9.7. 5.0.0 is the first with POP, without
some of its requests.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from libramq.errors import ConfigError, FeatureNotSupported, LibraError, RequestCodeNotSupported
from tests.interop import client_features
from tests.interop.apache import (
    CACHE,
    HERE,
    SETUP_TIMEOUT_S,
    SMALL_JVM,
    SMALL_STORE,
    ApacheBroker,
    ApacheNameServer,
)  # fmt: skip

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

SETTINGS = {
    **SMALL_STORE,
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
    "recallMessageEnable": "true",
}
#: 4.9 was written for Java 8, and uses these packages.
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
JVM = (
    *SMALL_JVM, "-Xmx512m", "-XX:MaxDirectMemorySize=512m",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
)  # fmt: skip

Refusals = dict[str, tuple[type[LibraError], str]]
NO_RECALL: Refusals = {"recalls": (ConfigError, r"recall_handle is empty: .* before 5\.3")}
NO_POP: Refusals = dict.fromkeys(
    ("pops", "simple", "priorities"), (RequestCodeNotSupported, "POP_MESSAGE with 3 .*200050 not supported")
)
NO_TIMERS: Refusals = dict.fromkeys(
    ("timers", "recalls"), (FeatureNotSupported, r"answers as RocketMQ 4\.9\.7, .*delay_ms")
)
#: The error with which each version reports a missing feature.
LACKS: dict[str, Refusals] = {
    "4.9.7": NO_POP | NO_TIMERS,
    "5.0.0": NO_RECALL,
    "5.1.4": NO_RECALL,
    "5.5.0": {},
}
#: Priorities are properties like any others before 5.4, and messages come in any order.
WITHOUT_ORDER_OF_PRIORITIES = ("5.0.0", "5.1.4")


# 5.1.4 lacks what 5.0.0 lacks.
@pytest.fixture(
    params=[pytest.param(each, marks=pytest.mark.thorough if each == "5.1.4" else ()) for each in LACKS]
)
def version(request: pytest.FixtureRequest) -> str:
    """A version whose name server and broker have been fetched."""
    chosen: str = request.param
    command = [HERE / "servers" / "setup", chosen]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False)
    assert not done.returncode, done.stdout + done.stderr
    return chosen


@pytest.fixture
def namesrv(version: str, tmp_path: Path) -> Iterator[str]:
    """The address of a name server of that version, with one broker."""
    jars = CACHE / "servers" / version / "lib"
    for name in ("namesrv", "broker"):  # 4.9 refuses to start without.
        (tmp_path / name / "conf").mkdir(parents=True)
        (tmp_path / name / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
    with ExitStack() as stack:
        nameserver = ApacheNameServer(tmp_path / "namesrv", jars=jars)
        stack.callback(nameserver.process.kill)
        nameserver.wait_ready()
        broker = ApacheBroker(
            tmp_path / "broker", namesrv=nameserver.address, jvm=JVM, settings=SETTINGS, jars=jars
        )
        # A clean stop would take 20 s, and this store is not read again.
        stack.callback(broker.process.kill)
        broker.wait_ready()
        yield nameserver.address


def test_our_client_uses_what_a_version_has_and_names_what_it_lacks(
    version: str, namesrv: str, tmp_path: Path
) -> None:
    """A missing feature ends with an error that names the request, or the option and the version."""
    ends = asyncio.run(client_features.use(namesrv, tmp_path))
    refused = {name: ends.pop(name) for name in LACKS[version]}
    if version in WITHOUT_ORDER_OF_PRIORITIES:
        assert isinstance(ends.pop("priorities"), AssertionError | None)
    failures = [error for error in ends.values() if error is not None]
    if failures:
        raise BaseExceptionGroup(f"at RocketMQ {version}", failures)
    for name, (kind, words) in LACKS[version].items():
        with pytest.raises(kind, match=words):
            raise refused[name] or AssertionError(f"{name} works at {version}")
