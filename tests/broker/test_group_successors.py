"""Groups of Kafka's clients on their way to the brokers that coordinate them next."""

import itertools
from collections.abc import Iterable, Iterator

import pytest

from libramq.broker.cluster.kafka.group_copies import (
    BEAT_MS,
    COST_BYTES_MAX,
    FRESH_MS,
    GROUPS_PER_REQUEST,
    WAIT_MS,
    GroupCopies,
    GroupCopy,
    GroupSuccessors,
)
from libramq.errors import ConnectFailed, RequestTimeout
from libramq.formats.document import decode_body
from libramq.formats.route import BrokerData, TopicRouteData
from libramq.groups.classic.saved_state import SavedClassicGroup, SavedClassicMember, SavedProtocol
from libramq.groups.cluster_view import ClusterView
from libramq.groups.modern.saved_state import SavedEntry, SavedGroup
from libramq.groups.modern.saved_state import SavedMember as SavedModernMember
from libramq.kernel.parts import Kernel
from libramq.remoting.body.kafka_cluster import PeerGroupsBody
from libramq.rpc.question import Question
from tests.fakes import ManualClock

A, B, C = "a", "b", "c"
PORTS = {A: 1, B: 2, C: 3}
#: Bytes that are no text.
METADATA = bytes(range(256))


def route(*names: str) -> TopicRouteData:
    return TopicRouteData(
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs={0: f"127.0.0.1:{PORTS[name]}"}) for name in names
        ]
    )


def classic(generation: int) -> GroupCopy:
    protocols = [SavedProtocol(name="range", metadata=METADATA)]
    member = SavedClassicMember(
        session_ms=10_000, rebalance_ms=60_000, protocols=protocols, assignment=b"\xff\0"
    )
    return GroupCopy(classic=SavedClassicGroup(generation=generation, members={"m": member}))


def modern(name: str, epoch: int, *members: str) -> GroupCopy:
    entries = {f"{name}@{each}": SavedEntry(member=SavedModernMember(epoch=epoch)) for each in members}
    return GroupCopy(modern={name: SavedEntry(group=SavedGroup(epoch=epoch)), **entries})


class Broker:
    """One broker's view, its groups, and its copies of others' groups."""

    def __init__(self, name: str, clock: ManualClock) -> None:
        self.clock = clock
        self.view = ClusterView(name, f"127.0.0.1:{PORTS[name]}")
        self.kernel = Kernel(clock)
        self.asked: list[Question] = []
        self.groups: dict[str, GroupCopy] = {}
        self.copies = GroupCopies(self.view, clock)
        self.successors = GroupSuccessors(name, self.view, self.kernel, self.asked.append)
        self.successors.add(self)

    def names(self) -> Iterable[str]:
        return list(self.groups)

    def copy(self, name: str) -> GroupCopy | None:
        return self.groups.get(name)

    def sees(self, *names: str) -> None:
        self.view.brokers_reported(route(*names), linked=())
        self.view.announce()

    def put(self, name: str, copy: GroupCopy) -> None:
        self.groups[name] = copy
        self.successors.changed(name)

    def held(self, name: str) -> list[bool]:
        """Return a list that has an element once the successor has the group."""
        held: list[bool] = []
        self.successors.when_held(name, lambda: held.append(True))
        return held


class Brokers:
    """Brokers that know each other; requests arrive when a test delivers them."""

    def __init__(self, *names: str) -> None:
        self.clock = ManualClock()
        self.all = {name: Broker(name, self.clock) for name in names}
        for each in self.all.values():
            each.sees(*names)

    def deliver(self) -> int:
        """Deliver requests until there are no more, and return how many there were."""
        count = 0
        for name, question in self._requests():
            self.answer(question, self.all[name].copies.take(body_of(question)))
            count += 1
        return count

    def _requests(self) -> Iterator[tuple[str, Question]]:
        names = {f"127.0.0.1:{port}": name for name, port in PORTS.items()}
        while any(each.asked for each in self.all.values()):
            for each in self.all.values():
                if each.asked:
                    question = each.asked.pop(0)
                    yield names[question.address], question

    def answer(self, question: Question, outcome: object) -> None:
        question.answered(outcome)

    def pass_by(self, milliseconds: int, step_ms: int = BEAT_MS) -> None:
        """Let time pass, without requests being delivered."""
        for _ in range(0, milliseconds, step_ms):
            self.clock.advance(step_ms)
            for each in self.all.values():
                each.kernel.deadlines.run(self.clock.monotonic_ms())

    def group(self, coordinator: str, successor: str) -> str:
        """Return a group that one broker coordinates, and the other one next."""
        view = self.all[coordinator].view
        return next(
            name
            for name in map(str, itertools.count())
            if (view.coordinator_of(name), view.successor_of(name)) == (coordinator, successor)
        )


def body_of(question: Question) -> PeerGroupsBody:
    return decode_body(question.call.body, PeerGroupsBody)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers(A, B, C)


def test_the_successor_has_a_group_before_anybody_hears_of_it(brokers: Brokers):
    a, b = brokers.all[A], brokers.all[B]
    name = brokers.group(A, B)
    a.put(name, classic(7))
    held = a.held(name)
    assert not held
    brokers.deliver()
    assert held
    assert a.held(name), "there is nothing to wait for"
    assert not b.copies.claim_classic(), "another one coordinates it"
    b.sees(B, C)
    assert b.copies.claim_classic() == {name: classic(7).classic}
    assert not b.copies.claim_classic()


def test_only_what_has_changed_of_a_large_group_is_passed_on(brokers: Brokers):
    a, b = brokers.all[A], brokers.all[B]
    name = brokers.group(A, B)
    a.put(name, modern(name, 1, "m", "n"))
    brokers.deliver()
    now = modern(name, 2, "n")
    a.groups[name] = now
    a.successors.changed(name, {**now.modern, f"{name}@m": None})
    (question,) = a.asked
    assert sorted(body_of(question).modern) == [name, f"{name}@n"]
    assert body_of(question).gone == [f"{name}@m"]
    brokers.deliver()
    b.sees(B, C)
    assert b.copies.claim_modern() == {name: now.modern}


def test_changes_while_a_request_is_under_way_are_one_request(brokers: Brokers):
    a = brokers.all[A]
    name = brokers.group(A, B)
    for generation in range(1, 50):
        a.put(name, classic(generation))
    assert brokers.deliver() == 2, "the first one has nothing"


def test_a_group_that_is_gone_is_forgotten(brokers: Brokers):
    a, b = brokers.all[A], brokers.all[B]
    name = brokers.group(A, B)
    a.put(name, classic(7))
    brokers.deliver()
    del a.groups[name]
    a.successors.changed(name)
    brokers.deliver()
    b.sees(B, C)
    assert not b.copies.claim_classic()
    brokers.pass_by(BEAT_MS)
    brokers.deliver()
    brokers.pass_by(2 * BEAT_MS)
    assert not a.asked, "a broker without groups is quiet"


def test_after_a_failure_the_successor_gets_everything_again(brokers: Brokers):
    a, b = brokers.all[A], brokers.all[B]
    name = brokers.group(A, B)
    a.put(name, modern(name, 1, "m"))
    brokers.deliver()
    later = modern(name, 2, "m", "n")
    a.groups[name] = later
    a.successors.changed(name, {f"{name}@n": later.modern[f"{name}@n"]})
    held = a.held(name)
    brokers.answer(a.asked.pop(), ConnectFailed("it is away"))
    brokers.pass_by(BEAT_MS)
    assert not held
    brokers.deliver()
    assert held
    b.sees(B, C)
    assert b.copies.claim_modern() == {name: later.modern}


def test_a_successor_that_lost_a_request_asks_for_everything(brokers: Brokers):
    """It may have stopped for so long that it believes nothing, or have been restarted."""
    a = brokers.all[A]
    name = brokers.group(A, B)
    a.put(name, classic(7))
    brokers.deliver()
    b = brokers.all[B] = Broker(B, brokers.clock)
    b.sees(A, B, C)
    brokers.pass_by(BEAT_MS)
    brokers.deliver()
    b.sees(B, C)
    assert b.copies.claim_classic() == {name: classic(7).classic}


def test_a_silent_successor_is_waited_for_until_its_copies_are_too_old(brokers: Brokers):
    """Otherwise it might continue with shares that were reassigned since."""
    a, b = brokers.all[A], brokers.all[B]
    name = brokers.group(A, B)
    a.put(name, classic(7))
    brokers.deliver()
    a.put(name, classic(8))
    held = a.held(name)
    brokers.answer(a.asked.pop(), RequestTimeout("it is silent"))
    brokers.pass_by(FRESH_MS)
    assert not held
    brokers.pass_by(WAIT_MS - FRESH_MS)
    assert held
    a.put(name, classic(9))
    assert a.held(name), "nobody waits again"
    b.sees(B, C)
    assert not b.copies.claim_classic()


def test_another_successor_gets_the_group_and_the_former_one_forgets_it():
    brokers = Brokers(A, B, C)
    for each in brokers.all.values():
        each.sees(A, C)
    a, b, c = brokers.all.values()
    name = next(
        each
        for each in map(str, itertools.count())
        if a.view.coordinator_of(each) == A and brokers_order(each) == [A, B, C]
    )
    a.put(name, classic(7))
    brokers.deliver()
    for each in (c, a):
        each.sees(A, B, C)
    brokers.deliver()
    c.sees(C)
    assert not c.copies.claim_classic()
    b.sees(A, B, C)
    b.sees(B)
    assert b.copies.claim_classic() == {name: classic(7).classic}


def brokers_order(name: str) -> list[str]:
    """Return who coordinates a group, and who does next, of three brokers."""
    view = ClusterView(A, "127.0.0.1:1")
    view.brokers_reported(route(A, B, C), linked=())
    first, second = view.coordinator_of(name), view.successor_of(name)
    return [first or "", second or "", *({A, B, C} - {first, second})]


def test_who_waits_for_a_successor_that_leaves_waits_for_the_next_one(brokers: Brokers):
    a = brokers.all[A]
    name = brokers.group(A, B)
    a.put(name, classic(7))
    held = a.held(name)
    a.asked.clear()
    a.sees(A, C)
    assert not held
    brokers.deliver()
    assert held
    a.put(name, classic(8))
    held = a.held(name)
    a.sees(A)
    assert held, "there is no other"


def test_a_broker_that_is_back_gets_the_groups_that_it_coordinates():
    brokers = Brokers(A, B, C)
    a, b, c = brokers.all.values()
    name = brokers.group(A, B)
    for each in (b, c):
        each.sees(B, C)
    b.put(name, classic(7))
    brokers.deliver()
    claimed: list[dict[str, SavedClassicGroup]] = []
    a.copies.observe(lambda: claimed.append(a.copies.claim_classic()))
    b.sees(A, B, C)
    del b.groups[name]
    b.successors.changed(name)
    question = b.asked.pop()
    brokers.answer(question, ConnectFailed("it has just started"))
    brokers.pass_by(BEAT_MS)
    brokers.deliver()
    assert claimed == [{name: classic(7).classic}]
    c.sees(A, B, C)
    c.sees(C)
    assert not c.copies.claim_classic(), "another broker has had the group since"


def test_a_group_that_is_too_large_is_not_passed_on(brokers: Brokers):
    """A request that is never accepted would be repeated for ever."""
    a, b = brokers.all[A], brokers.all[B]
    name = brokers.group(A, B)
    a.put(name, classic(1))
    brokers.deliver()
    a.put(name, classic(2)._replace(cost_bytes=COST_BYTES_MAX + 1))
    brokers.deliver()
    assert a.held(name)
    b.sees(B, C)
    assert not b.copies.claim_classic()


def test_many_groups_are_several_requests(brokers: Brokers):
    a, b = brokers.all[A], brokers.all[B]
    order = [A, B, C]
    names = list(
        itertools.islice((each for each in map(str, itertools.count()) if brokers_order(each) == order), 150)
    )
    assert len(names) > GROUPS_PER_REQUEST
    for name in names:
        a.put(name, classic(1))
    assert brokers.deliver() == 3
    b.sees(B, C)
    assert sorted(b.copies.claim_classic()) == sorted(names)
