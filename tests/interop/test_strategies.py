"""Our strategies compared with those of Apache's jars: RocketMQ's six, Kafka's four.

One JVM computes all cases of a test, one per line.
"""

import json
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from libramq.balance import Group, Member, Strategy, TopicRule, strategy_named
from libramq.message.queue import MessageQueue
from tests.balance.examples import check_partition, loads, moves
from tests.interop.apache import java

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

#: Up to this many members and queues each; what they do with 40 they do with 16, in a tenth of the time.
sizes_max = pytest.mark.parametrize("size_max", [16, pytest.param(40, marks=pytest.mark.thorough)])
counts = pytest.mark.parametrize("count", [150, pytest.param(600, marks=pytest.mark.thorough)])
ANSWER_TIMEOUT_S = 240.0

Question = dict[str, Any]


def ask(main: str, questions: Sequence[Question], home: Path) -> list[Any]:
    """Return a Java program's answers."""
    done = subprocess.run(
        java(main, home=home),
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions)
    return answers


# RocketMQ


def room_of_client(client_id: str) -> str:
    return client_id.split("@")[0]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def allocation(queue_count: int, client_count: int, seed: int) -> Question:
    """Return queues and clients in machine rooms; some rooms have only queues or only clients."""
    rng = random.Random(seed)
    rooms = [f"room{number}" for number in range(rng.randint(1, 6))]
    queues = {
        MessageQueue("T", f"{rng.choice(rooms)}@b{number % 7}", number) for number in range(queue_count)
    }
    clients = sorted(f"{rng.choice(rooms[1:] or rooms)}@{number:03}" for number in range(client_count))
    return {
        "queues": sorted(queues),
        "clients": clients,
        "rooms": rng.sample(rooms, rng.randint(1, len(rooms))),
        "configured": rng.sample(range(queue_count), rng.randint(1, queue_count)),
    }


def rocketmq_strategies(question: Question) -> Mapping[str, Strategy]:
    rooms = {"room_of_queue": room_of_queue, "room_of_client": room_of_client}
    return {
        "AVG": strategy_named("AVG"),
        "AVG_BY_CIRCLE": strategy_named("AVG_BY_CIRCLE"),
        "CONSISTENT_HASH": strategy_named("CONSISTENT_HASH"),
        "CONFIG": strategy_named("CONFIG", queues=[question["queues"][n] for n in question["configured"]]),
        "MACHINE_ROOM": strategy_named("MACHINE_ROOM", rooms=question["rooms"]),
        "MACHINE_ROOM_NEARBY-AVG": strategy_named("MACHINE_ROOM_NEARBY-AVG", **rooms),
        "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": strategy_named("MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE", **rooms),
    }


def places(rule: TopicRule, client_id: str, question: Question) -> list[int]:
    place = {queue: number for number, queue in enumerate(question["queues"])}
    return [place[queue] for queue in rule(client_id, question["queues"], question["clients"])]


def check_allocations(questions: Sequence[Question], home: Path) -> None:
    for question, answer in zip(questions, ask("Allocate", questions, home), strict=True):
        strategies = rocketmq_strategies(question)
        assert answer.keys() == strategies.keys()
        for name, strategy in strategies.items():
            ours = [places(strategy, client_id, question) for client_id in question["clients"]]
            assert ours == answer[name], (name, question)


@sizes_max
def test_rocketmqs_six_strategies_agree_for_all_small_sizes(tmp_path: Path, size_max: int) -> None:
    """Each client gets the same queues as in Java, in the same order."""
    sizes = range(1, size_max + 1)
    check_allocations([allocation(n, m, 100 * n + m) for n in sizes for m in sizes], tmp_path)


@counts
def test_rocketmqs_six_strategies_agree_for_larger_groups(tmp_path: Path, count: int) -> None:
    """Groups have up to 400 queues and 200 clients."""
    rng = random.Random(7)
    check_allocations(
        [allocation(rng.randint(41, 400), rng.randint(41, 200), n) for n in range(count // 30)], tmp_path
    )


# Kafka


def assignment(rng: random.Random, sizes: Mapping[str, int], member_count: int, *, alike: bool) -> Question:
    """Return members whose ids a Java hash table keeps in order, so that Kafka breaks ties as we do."""
    names = [chr(0x100 + number) for number in range(member_count)]
    topics = sorted(sizes)
    question: Question = {
        "topics": dict(sizes),
        "members": [
            {
                "id": name,
                "topics": topics if alike else sorted(rng.sample(topics, rng.randint(1, len(topics)))),
                "owned": [],
                "generation": 3,
                "instance": rng.choice([None, None, f"static{rng.randint(0, 9)}-{name}"]),
            }
            for name in names
        ],
    }
    return question


def hold(question: Question, rng: random.Random) -> Question:
    """Give the members previous assignments: none, even shares, or random ones."""
    how = rng.choice(["nothing", "even", "anything", "anything"])
    members = question["members"]
    if how == "nothing":
        return question
    everything = [(topic, number) for topic, size in question["topics"].items() for number in range(size)]
    rng.shuffle(everything)
    for number, (topic, partition) in enumerate(everything):
        may = [member for member in members if topic in member["topics"]]
        if may and (how == "even" or rng.random() < 0.8):
            owner = may[number % len(may)] if how == "even" else rng.choice(may)
            owner["owned"].append([topic, partition])
    return question


def dispute(question: Question, rng: random.Random) -> Question:
    """Let two members claim the same partitions, in the same generation or in an older one."""
    claimed = [each for each in question["members"] if each["owned"]]
    if len(question["members"]) > 1 and claimed:
        one = rng.choice(claimed)
        other = rng.choice([each for each in question["members"] if each is not one])
        for partition in one["owned"][:2]:
            if partition[0] in other["topics"] and partition not in other["owned"]:
                other["owned"].append(partition)
        other["generation"] = rng.choice([2, 3])
    return question


def group_of(question: Question) -> Group:
    return Group.of(
        [
            Member(
                client_id=member["id"],
                topics=frozenset(member["topics"]),
                owned=tuple(MessageQueue(topic, "", number) for topic, number in member["owned"]),
                epoch=member["generation"],
                instance_id=member["instance"],
            )
            for member in question["members"]
        ],
        [MessageQueue(topic, "", n) for topic, size in question["topics"].items() for n in range(size)],
    )


def shares_of(answer: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, set[MessageQueue]]:
    return {
        name: {MessageQueue(topic, "", number) for topic, number in some} for name, some in answer.items()
    }


def questions(count: int, *, alike: bool, size_max: int = 30, members_max: int = 40) -> Iterator[Question]:
    rng = random.Random(11 if alike else 12)
    for _ in range(count):
        sizes = {f"t{number}": rng.randint(1, size_max) for number in range(rng.randint(1, 8))}
        question = assignment(rng, sizes, rng.randint(1, members_max), alike=alike)
        yield hold(question, rng)


def ours(name: str, question: Question) -> dict[str, set[MessageQueue]]:
    return {
        client_id: set(share) for client_id, share in strategy_named(name).assign(group_of(question)).items()
    }


@sizes_max
def test_kafkas_assignors_agree_for_all_small_sizes(tmp_path: Path, size_max: int) -> None:
    """All four agree for all members and partitions of one or two topics, without owners."""
    rng = random.Random(1)
    asked = []
    for member_count in range(1, size_max + 1):
        for size in range(1, size_max + 1):
            sizes = {"t": size} if size % 2 else {"t": size // 2, "u": size // 2}
            asked.append(assignment(rng, sizes, member_count, alike=True))
    for question, answer in zip(asked, ask("Assign", asked, tmp_path), strict=True):
        for name, theirs in answer.items():
            assert ours(name, question) == shares_of(theirs), (name, question)


@counts
def test_kafkas_assignors_agree_with_previous_assignments(tmp_path: Path, count: int) -> None:
    """All four agree for equal subscriptions and any previous owners, even two of one partition."""
    rng = random.Random(2)
    asked = [dispute(q, rng) if n % 3 == 0 else q for n, q in enumerate(questions(count, alike=True))]
    asked += questions(count // 30, alike=True, size_max=200, members_max=200)
    for question, answer in zip(asked, ask("Assign", asked, tmp_path), strict=True):
        for name, theirs in answer.items():
            assert ours(name, question) == shares_of(theirs), (name, question)


@counts
def test_kafkas_assignors_agree_under_different_subscriptions(tmp_path: Path, count: int) -> None:
    """Range and round robin agree; our sticky is at least as even as Kafka's, and if equal, as sticky."""
    asked = list(questions(count, alike=False))
    better = 0
    for question, answer in zip(asked, ask("Assign", asked, tmp_path), strict=True):
        for name in ("range", "roundrobin"):
            assert ours(name, question) == shares_of(answer[name]), (name, question)
        of, theirs, mine = group_of(question), shares_of(answer["sticky"]), ours("sticky", question)
        check_partition(of, mine)
        assert (loads(mine), moves(of, mine)) <= (loads(theirs), moves(of, theirs)), question
        better += (loads(mine), moves(of, mine)) < (loads(theirs), moves(of, theirs))
        now = ours("cooperative-sticky", question)
        holder = {queue: member.client_id for member in of.members for queue in member.owned}
        assert now == {
            name: {queue for queue in share if holder.get(queue, name) == name}
            for name, share in mine.items()
        }
    assert better < len(asked), "Kafka's own answer is often the best as well"
