"""Apache RocketMQ from Maven: its name server, broker and admin tool, and our programs on top of its client.

`tests/interop/setup` has fetched the jars and compiled the programs. Files that Apache's classes write to the
home directory go to the directory of the test.
"""

import re
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop import wire
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import Process, Program

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "interop"
VERSION = "5.3.3"

START_TIMEOUT_S = 90.0
POLL_S = 0.05
SETUP_TIMEOUT_S = 900.0
ADMIN_TIMEOUT_S = 60.0
STACK_TRACE = re.compile(r"^\tat [\w.$]+[(/]", re.MULTILINE)
# mqadmin waits 5 s for an answer, and no option changes that. A busy machine can take longer: this was seen
# with a member's running info, which the broker has to request from the member.
ADMIN_ATTEMPTS = 5

# Quick to start and small: these programs live for seconds. A benchmark passes its own options.
SMALL_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
BROKER_JVM = (*SMALL_JVM[:-1], "-Xmx512m", "-XX:-AlwaysPreTouch", "-XX:MaxDirectMemorySize=512m")
# The classes of Apache's jars, loaded and linked by `setup`: halves what a start costs.
ARCHIVE = CACHE / "archive.jsa"
BINARY_HEADERS = {"rocketmq.serialize.type": "ROCKETMQ"}
VIP_CHANNEL = {"com.rocketmq.sendMessageWithVIPChannel": "true"}


def set_up() -> None:
    """Fetch and compile the missing parts."""
    command = [HERE / "setup"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def java(
    main: str,
    *arguments: str,
    home: Path,
    jvm: Sequence[str] = SMALL_JVM,
    properties: Mapping[str, object] | None = None,
    jars: Path = CACHE / "lib",
) -> list[str]:
    """Return the command line that starts one of Apache's or our Java programs.

    `jars` is the directory of Apache's jars, 5.3.3's by default.
    """
    settings = {
        "user.home": home,
        "java.io.tmpdir": home,
        "rocketmq.log.root": home / "logs",
        "rocketmq.log.level": "warn",
        # By default each server generates a certificate, which takes seconds.
        "tls.server.mode": "disabled",
        **(properties or {}),
    }
    shared = [f"-XX:SharedArchiveFile={ARCHIVE}"] if jars == CACHE / "lib" and ARCHIVE.exists() else []
    return [
        "java",
        *jvm,
        *shared,
        *(f"-D{name}={_text(value)}" for name, value in settings.items()),
        "-cp",
        f"{CACHE}/classes/programs.jar:{jars}/*",
        main,
        *arguments,
    ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ApacheNameServer:
    def __init__(
        self,
        home: Path,
        *,
        jvm: Sequence[str] = SMALL_JVM,
        properties: Mapping[str, object] | None = None,
        jars: Path = CACHE / "lib",
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        configuration = home / "namesrv.conf"
        configuration.write_text(f"listenPort={self.port}\nbindAddress=127.0.0.1\n")
        self.process = Process(
            "namesrv",
            java(
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                "-c",
                str(configuration),
                home=home,
                jvm=jvm,
                properties=properties,
                jars=jars,
            ),
            directory=home,
            env={"ROCKETMQ_HOME": str(home)},
        )

    def wait_ready(self) -> None:
        self.process.wait_line("boot success", within_s=START_TIMEOUT_S)

    def stop(self) -> None:
        """Kill the name server: it has no state, and a clean stop would take 3 s."""
        self.process.kill()


class ApacheBroker:
    def __init__(
        self,
        home: Path,
        *,
        namesrv: str,
        name: str = "apache-a",
        jvm: Sequence[str] = BROKER_JVM,
        properties: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
        port: int | None = None,
        jars: Path = CACHE / "lib",
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.cluster = "DefaultCluster"
        self.port = port or free_broker_port()
        self.address = f"127.0.0.1:{self.port}"
        self.namesrv = namesrv
        configuration = home / "broker.conf"
        lines = {
            "brokerClusterName": self.cluster,
            "brokerName": name,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": self.port,
            "bindAddress": "127.0.0.1",
            "haListenPort": self.port + 1,
            "namesrvAddr": namesrv,
            "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog",
            "autoCreateTopicEnable": "true",
            # The disk of a test machine may be fuller than Apache's default allows.
            "diskMaxUsedSpaceRatio": 95,
            # Defaults: a send is refused after 0.2 s in the queue, or if a write took 1 s; too strict here.
            "waitTimeMillsInSendQueue": 30_000,
            "osPageCacheBusyTimeOutMills": 30_000,
            # Each flush takes 0.2 s of processor time, with or without timers.
            "timerFlushIntervalMs": 600_000,
            # Each of its threads polls ten times a second for timers.
            "timerPutMessageThreadNum": 1,
            **(settings or {}),
        }
        configuration.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.process = Process(
            name,
            java(
                "org.apache.rocketmq.broker.BrokerStartup",
                "-c",
                str(configuration),
                home=home,
                jvm=jvm,
                properties={
                    "rocketmq.broker.diskSpaceWarningLevelRatio": "0.98",
                    "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.97",
                    **(properties or {}),
                },
                jars=jars,
            ),
            directory=home,
            env={"ROCKETMQ_HOME": str(home)},
        )

    def wait_ready(self) -> None:
        """Wait until the broker is registered: at once if its first attempt succeeds, else 10 s later."""
        self.process.wait_line("boot success", within_s=START_TIMEOUT_S)
        wait_broker(self.process, self.namesrv)

    def stop(self) -> None:
        """Stop the broker cleanly, which takes 20 s: it waits for thread after thread."""
        self.process.stop()


# Enough for tests of a few thousand messages, and quick to create and to delete.
SMALL_STORE: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 30_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "mappedFileSizeTimerLog": 10 * 1024 * 1024,
    "enablePropertyFilter": "true",
}


# For tests that wait for the writes of a timer's flush; Apache's default is 1 s.
TIMERS_FLUSHED: Mapping[str, object] = {"timerFlushIntervalMs": 4_000}


def wait_broker(process: Process, namesrv: str, count: int = 1, tls: ssl.SSLContext | None = None) -> None:
    """Wait until the name server knows this many brokers; fail if the process that registers them ends."""
    for _ in range(int(START_TIMEOUT_S / POLL_S)):
        try:
            if len(wire.brokers_of(namesrv, tls)) >= count:
                return
        except OSError:
            pass
        if process.ended_within(POLL_S):
            break
    raise AssertionError(f"{process.name} registered no broker at {namesrv}\n{process.complaint()}")


class MqAdmin:
    """Apache's mqadmin: all commands in one process, which the first one starts."""

    def __init__(
        self,
        home: Path,
        namesrv: str,
        *,
        properties: Mapping[str, object] | None = None,
        jars: Path = CACHE / "lib",
    ) -> None:
        self.home = home
        self.jars = jars
        self.properties = properties
        self.namesrv = namesrv
        self._program: Program | None = None

    def __call__(self, subcommand: str, *options: str) -> str:
        """Run a subcommand against the name server; return its output."""
        arguments = [subcommand, "-n", self.namesrv, *options]
        for _ in range(ADMIN_ATTEMPTS):
            ran = self._running().ask("ran", {"arguments": arguments}, within_s=ADMIN_TIMEOUT_S)
            if "RemotingTimeoutException" not in ran["out"] + ran["err"]:
                break
        # A failed command prints a stack trace. "Exception" alone also occurs in names of settings.
        if STACK_TRACE.search(ran["out"] + ran["err"]):
            raise AssertionError(f"mqadmin {' '.join(arguments)}\n{ran['out']}\n{ran['err']}")
        printed: str = ran["out"]
        return printed

    def may_read(self, broker: str, group: str, topic: str, *, readable: bool | None = None) -> bool:
        """Return whether a group may read a topic, after a change; mqadmin has no command for it."""
        asked: dict[str, object] = {
            "namesrv": self.namesrv, "broker": broker, "group": group, "topic": topic,
        }  # fmt: skip
        if readable is not None:
            asked["readable"] = readable
        answer: bool = self._running().ask("ran", {"forbid": asked}, within_s=ADMIN_TIMEOUT_S)["readable"]
        return answer

    def stop(self) -> None:
        if self._program is not None:
            self._program.stop()
            self._program = None

    def _running(self) -> Program:
        if self._program is None or self._program.returncode is not None:
            self.stop()
            self._program = start_program("Admin", self.properties or {}, home=self.home, jars=self.jars)
            self._program.wait_event("started")
        return self._program


def start_program(
    main: str,
    properties: Mapping[str, object],
    *,
    home: Path,
    name: str = "",
    jvm: Sequence[str] = SMALL_JVM,
    jars: Path = CACHE / "lib",
) -> Program:
    """Start one of the programs in tests/interop/java with its settings as system properties."""
    command = java(main, home=home, jvm=jvm, properties=properties, jars=jars)
    return Program(name or main.lower(), command, directory=home)
