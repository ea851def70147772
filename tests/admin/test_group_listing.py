"""Listed groups include those with a retry topic and those without."""

from libramq import Message, sync
from libramq.admin.groups import GroupWatch
from libramq.testing import Broker


async def test_groups_that_pop_or_assign_are_listed_while_they_run_and_after():
    """`%RETRY%pops_T` is no group: its topic may even be gone."""
    with Broker() as broker:
        namesrv = broker.namesrv
        with sync.Producer(namesrv=namesrv) as producer:
            for _ in range(4):
                producer.send(Message("T", b"x"))
        with sync.SimpleConsumer(group="pops", namesrv=namesrv) as simple:
            simple.subscribe("T")
            simple.nack(simple.receive()[0])
        with sync.Consumer(group="assigns", namesrv=namesrv, consume_from="earliest") as consumer:
            consumer.assign(consumer.queues("T"))
            consumer.getmany(timeout_ms=5_000)
            consumer.commit()
            async with GroupWatch(namesrv) as watch:
                running = await watch.look()
        with sync.Admin(namesrv=namesrv) as admin:
            assert admin.groups() == ["assigns", "pops"]
            assert sum(offset.behind for offset in admin.consume_stats("assigns").values()) <= 4
            admin.delete_topic("T")
            assert admin.groups() == ["assigns", "pops"]
        async with GroupWatch(namesrv) as watch:
            stopped = await watch.look()
    assert not [diagnosis for state in running for diagnosis in state.diagnoses], "no group had members"
    assert [state.group for state in running] == [state.group for state in stopped] == ["assigns", "pops"]
