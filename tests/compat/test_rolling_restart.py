"""The earlier LibraMQ and this tree in one cluster: processes are replaced one by one while messages flow."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.soaking.program import KAFKA

from libramq.codes import ResponseCode
from tests.compat.cluster import PATIENCE_S, Cluster, wait_until
from tests.interop.process import Program

TOPIC, GROUP, QUEUES = "Upgraded", "upgraded", 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


class Group:
    """The members of a group, and the numbers acknowledged to its producers."""

    def __init__(self, cluster: Cluster, queues: int) -> None:
        self._cluster = cluster
        self._queues = queues
        self.producers: list[Program] = []
        self.members: list[Program] = []

    def start_producer(self, site: Path) -> None:
        first = max(self.acknowledged(), default=-1) + 100_000  # No other producer uses these numbers.
        self.producers.append(self._cluster.start("producer", site, topic=TOPIC, first=first))

    def start_member(self, site: Path) -> Program:
        self.members.append(self._cluster.start("member", site, group=GROUP, topic=TOPIC))
        return self.members[-1]

    def acknowledged(self) -> dict[int, str]:
        return {event["number"]: event["queue"] for one in self.producers for event in one.of("acknowledged")}

    def handled(self) -> Counter[int]:
        return Counter(event["number"] for one in self.members for event in one.of("message"))

    def owned(self, member: Program) -> set[str]:
        queues: set[str] = set()
        for event in list(member.events):
            if event["event"] == "assigned":
                queues |= set(event["queues"])
            elif event["event"] in {"revoked", "lost"}:
                queues -= set(event["queues"])
        return queues

    def wait_flow(self) -> None:
        """Wait until a message sent from now on has been handled from every queue."""
        last = max(self.acknowledged(), default=-1)
        missing: set[str] = set()

        def flows() -> bool:
            nonlocal missing
            handled = self.handled()
            sent = {queue: n for n, queue in sorted(self.acknowledged().items(), reverse=True) if n > last}
            done = {queue for n, queue in self.acknowledged().items() if n > last and handled[n]}
            missing = set(sent) - done
            return len(sent) == self._queues and not missing

        wait_until(flows, lambda: f"no new message of {missing or 'some queues'} was sent and handled")

    def wait_settled(self) -> None:
        """Wait until each queue has one running owner, and the owners' shares differ by at most one."""
        running = [member for member in self.members if member.returncode is None]

        def settled() -> bool:
            owners = Counter(queue for member in running for queue in self.owned(member))
            loads = [len(self.owned(member)) for member in running]
            is_even = max(loads) - min(loads) <= 1
            return is_even and len(owners) == self._queues and set(owners.values()) == {1}

        wait_until(settled, lambda: f"owners: {[sorted(self.owned(member)) for member in running]}")

    def finish(self) -> None:
        """End the producers, wait until every acknowledged message is handled, and end the members."""
        for producer in self.producers:
            if producer.returncode is None:
                producer.finish(within_s=PATIENCE_S)
        acknowledged = set(self.acknowledged())
        assert acknowledged
        wait_until(
            lambda: acknowledged <= self.handled().keys(),
            lambda: f"not handled: {sorted(acknowledged - self.handled().keys())[:10]}",
        )
        for member in self.members:
            if member.returncode is None:
                member.finish(within_s=PATIENCE_S)


@pytest.mark.parametrize("server", ["old", "new"])
def test_members_of_both_versions_share_a_group(
    cluster: Cluster, old: Path, new: Path, server: str, request: pytest.FixtureRequest
):
    """At a broker of either version the group is coordinated; without failures no message is redelivered."""
    site: Path = request.getfixturevalue(server)
    cluster.start_name_servers(site)
    cluster.start_broker("broker-a", site)
    cluster.create_topic(TOPIC, QUEUES, new if site is old else old)
    group = Group(cluster, QUEUES)
    group.start_producer(old)
    first = group.start_member(old)
    group.wait_flow()
    group.start_member(new)
    group.wait_settled()
    group.start_producer(new)
    group.wait_flow()
    assert cluster.commit_without_claim("broker-a", GROUP, TOPIC) == ResponseCode.FENCED
    first.finish(within_s=PATIENCE_S)
    group.wait_settled()
    group.finish()
    assert {event["site"] for one in group.members for event in one.of("started")} == {str(old), str(new)}
    assert max(group.handled().values()) == 1


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(("broker-a", "broker-b"), marks=pytest.mark.thorough),
        ("broker-b", "broker-a"),
    ],
    ids=" then ".join,
)
def test_a_cluster_is_upgraded_process_by_process(
    cluster: Cluster, old: Path, new: Path, order: tuple[str, str]
):
    """Processes are replaced in turn, in both orders of the brokers: only one is the group's coordinator."""
    cluster.start_name_servers(old)
    for name in order:
        cluster.start_broker(name, old)
    cluster.create_topic(TOPIC, QUEUES // 2, old)
    group = Group(cluster, QUEUES)
    group.start_producer(old)
    first = group.start_member(old)
    group.start_member(new)
    group.wait_settled()
    for name in order:
        cluster.restart_broker(name, new)
        group.wait_flow()
        assert cluster.commit_without_claim(name, GROUP, TOPIC) == ResponseCode.FENCED
    cluster.restart_name_servers(new, group.wait_flow)
    first.finish(within_s=PATIENCE_S)
    group.start_member(new)
    group.wait_settled()
    group.start_producer(new)
    group.producers[0].finish(within_s=PATIENCE_S)
    group.wait_flow()
    group.finish()


def test_groups_that_pop_and_kafka_s_groups_are_upgraded_too(cluster: Cluster, old: Path, new: Path):
    """Brokers are replaced, one of them after a kill, then name servers, then the member that pops."""
    cluster.start_name_servers(old)
    for name in ("broker-a", "broker-b"):
        cluster.start_broker(name, old)
    cluster.create_topic(TOPIC, QUEUES // 2, old)
    cluster.create_topic(KAFKA, QUEUES // 2, old)
    group = Group(cluster, QUEUES)
    group.start_producer(old)
    first = cluster.start("popper", old, group=GROUP, topic=TOPIC)
    group.members.append(first)
    sender = cluster.start_kafka("kafka_sender", rate=300)
    reader = cluster.start_kafka("kafka_member")

    def numbers(program: Program, event: str) -> set[int]:
        return {number for each in program.of(event) for number in each["numbers"]}

    def wait_kafka() -> None:
        """Wait until a record has been handled that was sent from now on."""
        last = max(numbers(sender, "acknowledged"), default=-1)
        wait_until(
            lambda: max(numbers(reader, "handled"), default=-1) > last, lambda: "no new record was handled"
        )

    def wait_both() -> None:
        group.wait_flow()
        wait_kafka()

    wait_both()
    cluster.restart_broker("broker-a", new)
    wait_both()
    cluster.restart_broker("broker-b", new, kills=True)
    wait_both()
    cluster.restart_name_servers(new, wait_both)
    group.members.append(cluster.start("popper", new, group=GROUP, topic=TOPIC))
    first.finish(within_s=PATIENCE_S)
    wait_both()
    group.finish()
    sender.finish(within_s=PATIENCE_S)
    acknowledged = numbers(sender, "acknowledged")
    assert acknowledged
    wait_until(
        lambda: acknowledged <= numbers(reader, "handled"),
        lambda: f"not handled: {sorted(acknowledged - numbers(reader, 'handled'))[:10]}",
    )
    reader.finish(within_s=PATIENCE_S)


def test_a_killed_broker_of_the_earlier_version_continues_as_this_version(
    cluster: Cluster, old: Path, new: Path
):
    """The members keep their queues: the broker recovers the assignment from its files."""
    cluster.start_name_servers(old)
    cluster.start_broker("broker-a", old)
    cluster.create_topic(TOPIC, QUEUES, old)
    group = Group(cluster, QUEUES)
    group.start_producer(old)
    members = [group.start_member(old), group.start_member(new)]
    group.wait_settled()
    group.wait_flow()
    before = [group.owned(member) for member in members]
    cluster.restart_broker("broker-a", new, kills=True)
    group.wait_flow()
    assert [group.owned(member) for member in members] == before
    assert not any(member.of("revoked") or member.of("lost") for member in members[1:])
    group.finish()
