"""The network side of clients in virtual time: cases that would take minutes and bad luck over sockets."""

from collections.abc import Callable

from libramq.testing.cluster import Cluster, ClusterPlan, GroupPlan
from libramq.testing.nodes.consumer_node import SimulatedConsumer
from libramq.testing.world import World

GROUP = GroupPlan(name="G", topics=(("T",),))


def cluster(seed: int = 1) -> Cluster:
    """One broker with a topic of two queues, and one name server."""
    made = Cluster(World(seed), ClusterPlan(broker_count=1, is_sync=False))
    made.set_queues("T", 2)
    run(made, 800)
    return made


def run(cluster: Cluster, milliseconds: int) -> None:
    cluster.world.time.run_until(cluster.now_ms + milliseconds)


def until(cluster: Cluster, condition: Callable[[], bool], *, within_ms: int) -> int:
    """Let time pass until a condition holds; return how long that took."""
    began_ms = cluster.now_ms
    while not condition():
        assert cluster.now_ms - began_ms < within_ms
        run(cluster, 10)
    return cluster.now_ms - began_ms


def queues(member: SimulatedConsumer) -> int:
    return len([queue for queue in member.network.core.owned() if queue.topic == "T"])


def test_a_consumer_without_a_name_server_is_restarted_until_it_finds_one():
    made = cluster()
    (name_server,) = made.name_servers
    name_server.kill()
    member = made.join(GROUP)
    run(made, 5_000)
    assert queues(member) == 0
    name_server.start()
    until(made, lambda: queues(member) == 2, within_ms=10_000)


def test_a_stop_ends_in_time_although_the_broker_is_silent():
    """Handlers get 2 s, and closing requests to a hanging broker a little more; then the process ends."""
    made = cluster()
    member = made.join(GROUP)
    until(made, lambda: queues(member) == 2, within_ms=10_000)
    made.brokers["broker-a"].process.pause()
    member.stop(timeout_ms=2_000)
    took_ms = until(made, lambda: not member.process.is_alive, within_ms=20_000)
    assert took_ms <= 2_000 + 5 * 1_000 + 100


def test_a_stop_during_the_start_leaves_nothing():
    made = cluster()
    (name_server,) = made.name_servers
    name_server.process.pause()
    member = made.join(GROUP)
    run(made, 10)
    member.stop()
    until(made, lambda: not member.process.is_alive, within_ms=1_000)


def test_a_send_is_acknowledged_although_its_broker_was_away():
    """Attempts fail and the program retries; each message is stored in the end."""
    made = cluster()
    made.produce("T", interval_ms=50, body_bytes=20)
    (producer,) = made.producers
    run(made, 1_000)
    broker = made.brokers["broker-a"]
    broker.kill()
    run(made, 2_000)
    assert producer.unacknowledged
    broker.start()
    producer.stop()
    until(made, lambda: not producer.unacknowledged, within_ms=30_000)
    assert made.world.history.stored_count > 10
