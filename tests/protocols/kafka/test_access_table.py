"""Every Kafka API, requested by every kind of user: the responses match the table.

                    signed in as   may                                   is served
    nobody          –              –                                     ApiVersions and signing in
    stranger        stranger       nothing                               what touches nothing
    exact           exact          just what the request touches         everything
    without         without        everything but one thing it touches   not that thing; once for each
    other           exact          another action on it instead          not that thing
    super           root           everything                            everything
    peer            –              brokers speak another protocol, and   as nobody
                                   their secret is not valid here

RocketMQ's requests have a table of their own, `tests/rpc/test_access_table.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from libramq.auth.users import Users
from libramq.errors import NoPermission
from libramq.formats.access import PolicyEntryInfo, PolicyInfo, UserInfo
from libramq.kernel.connection import ANONYMOUS
from libramq.remoting.credentials import Credentials
from libramq.wire.kafka.api import APIS
from libramq.wire.kafka.apis import fetch, groups, offsets, topics
from libramq.wire.kafka.apis.handshake import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from libramq.wire.kafka.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from libramq.wire.kafka.apis.produce import (
    InitProducerIdRequest,
)
from libramq.wire.kafka.error_code import ErrorCode as E
from libramq.wire.kafka.schema import Request, Topic
from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, batch, record

CLUSTER = "DefaultCluster"
BROKERS = Credentials("brokers", "theirs")
REFUSED = {E.TOPIC_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED}
TOPIC_, BROKER_ = 2, 4
#: Requests that delete or change data that the next request needs.
CONSUMING = {11, 20, 37, 42, 47, 68}


class Line(NamedTuple):
    """A request, and what it touches: "Topic:t Pub|Sub" for a resource with actions any of which is enough.

    version: of the request, by default the last. hides: it leaves out what may not be seen, without an error.
    before: it is served to who has not signed in.
    """

    request: Request
    touches: tuple[str, ...] = ()
    version: int | None = None
    hides: bool = False
    before: bool = False


def lines(peer: KafkaPeer) -> dict[int, list[Line]]:
    """Return the table, by API key."""
    group, topic = "Group:g Sub", "Topic:t Sub"
    commit = Topic(name="t", partitions=(offsets.CommittedPartition(partition_index=0, committed_offset=0),))
    wanted = offsets.WantedGroup(group_id="g", topics=(offsets.Topic(name="t", partitions=(0,)),))
    deleted = Topic(name="t", partitions=(0,))
    protocol = groups.JoinGroupProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\1t\0\0\0\0")
    at = Topic(name="t", partitions=(fetch.ListOffsetsPartition(partition_index=0, timestamp=-1),))
    low = Topic(name="t", partitions=(topics.DeleteRecordsPartition(partition_index=0, offset=0),))
    beat = groups.ConsumerGroupHeartbeatRequest(
        group_id="g2",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    return {
        0: [Line(peer.produce_request(batch(record()), "t"), ("Topic:t Pub",))],
        1: [Line(peer.fetch_request(topic="t"), ("Topic:t Sub",))],
        2: [Line(fetch.ListOffsetsRequest(topics=(at,)), ("Topic:t Get|Sub",))],
        3: [
            Line(MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), ("Topic:t Pub|Sub|Get",), 9),
            Line(MetadataRequest(topics=None), ("Topic:t Pub|Sub|Get",), 9, hides=True),
        ],
        8: [Line(offsets.OffsetCommitRequest(group_id="g", topics=(commit,)), (group, topic))],
        9: [Line(offsets.OffsetFetchRequest(groups=(wanted,)), (group, topic))],
        10: [Line(groups.FindCoordinatorRequest(coordinator_keys=("g",)), (group,))],
        11: [
            Line(
                groups.JoinGroupRequest(
                    group_id="g",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=(protocol,),
                ),
                (group,),
            )
        ],
        12: [Line(groups.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), (group,))],
        13: [
            Line(
                groups.LeaveGroupRequest(group_id="g", members=(groups.LeavingMember(member_id="m"),)),
                (group,),
            )
        ],
        14: [Line(groups.SyncGroupRequest(group_id="g", generation_id=1, member_id="m"), (group,))],
        15: [Line(groups.DescribeGroupsRequest(groups=("g",)), (group,))],
        16: [Line(groups.ListGroupsRequest(), (group,), hides=True)],
        17: [Line(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), before=True)],
        18: [Line(ApiVersionsRequest(client_software_name="x", client_software_version="1"), before=True)],
        19: [
            Line(
                topics.CreateTopicsRequest(
                    topics=(topics.CreatableTopic(name="new", num_partitions=1, replication_factor=1),),
                    validate_only=True,
                ),
                ("Topic:new Create",),
            )
        ],
        20: [Line(topics.DeleteTopicsRequest(topic_names=("t",), timeout_ms=1), ("Topic:t Delete",))],
        21: [Line(topics.DeleteRecordsRequest(topics=(low,), timeout_ms=1), ("Topic:t Delete",))],
        22: [Line(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000))],
        32: [
            Line(
                topics.DescribeConfigsRequest(
                    resources=(topics.DescribedResource(resource_type=TOPIC_, resource_name="t"),)
                ),
                ("Topic:t Get",),
            ),
            Line(
                topics.DescribeConfigsRequest(
                    resources=(topics.DescribedResource(resource_type=BROKER_, resource_name=""),)
                ),
                (f"Cluster:{CLUSTER} Get",),
            ),
        ],
        33: [
            Line(
                topics.AlterConfigsRequest(
                    resources=(topics.AlteredResource(resource_type=kind, resource_name=name, configs=()),)
                ),
                (touched,),
            )
            for kind, name, touched in (
                (TOPIC_, "t", "Topic:t Update"),
                (BROKER_, "", f"Cluster:{CLUSTER} Update"),
            )
        ],
        36: [Line(SaslAuthenticateRequest(auth_bytes=b"n,,n=stranger,r=x"), before=True)],
        37: [
            Line(
                topics.CreatePartitionsRequest(
                    topics=(topics.CreatePartitionsTopic(name="t", count=3),),
                    timeout_ms=1,
                    validate_only=True,
                ),
                ("Topic:t Update",),
            )
        ],
        42: [Line(groups.DeleteGroupsRequest(groups_names=("g",)), (group, "Group:g Delete"))],
        44: [
            Line(
                topics.IncrementalAlterConfigsRequest(
                    resources=(topics.AlteredResource(resource_type=kind, resource_name=name, configs=()),)
                ),
                (touched,),
            )
            for kind, name, touched in (
                (TOPIC_, "t", "Topic:t Update"),
                (BROKER_, "", f"Cluster:{CLUSTER} Update"),
            )
        ],
        47: [
            Line(
                offsets.OffsetDeleteRequest(group_id="g", topics=(deleted,)), (group, "Group:g Delete", topic)
            )
        ],
        68: [Line(beat, ("Group:g2 Sub", "Topic:t Sub"))],
        69: [Line(groups.ConsumerGroupDescribeRequest(group_ids=("g",)), (group,))],
    }


class Server:
    """A broker with a topic and a group, and users recreated for each case."""

    def __init__(self, directory: Path) -> None:
        self.talk = Conversation(
            directory,
            authentication_enabled=True,
            authorization_enabled=True,
            audit_enabled=False,
            credentials=BROKERS,
        )
        self.kafka = KafkaEndpoint(self.talk)
        self.users: Users = self.talk.broker.tables.users
        self.users.create(UserInfo(username="root", password="r00t-secret", user_type="Super"))
        maker = self.peer("root")
        maker.create("t", 2)
        commit = Topic(
            name="t", partitions=(offsets.CommittedPartition(partition_index=0, committed_offset=0),)
        )
        maker.ask(offsets.OffsetCommitRequest(group_id="g", topics=(commit,)))

    def peer(self, name: str | None) -> KafkaPeer:
        """Return a client that has signed in; None: it has not."""
        peer = self.kafka.peer()
        if name is not None:
            secret = "r00t-secret" if name == "root" else f"{name}-secret"
            peer.principal = self.talk.broker.access.by_password(peer, name, secret)  # type: ignore[union-attr]
        return peer

    def user(self, name: str, *entries: tuple[str, str, str]) -> KafkaPeer:
        """Return a client of a user with these entries of decision, resource and action."""
        self.users.delete(name)
        self.users.create(UserInfo(username=name, password=f"{name}-secret"))
        together: dict[tuple[str, str], list[str]] = {}
        for decision, resource, action in entries:  # A later entry takes the place of one for its resource.
            together.setdefault((decision, resource), []).append(action)
        infos = [
            PolicyEntryInfo(resource=resource, actions=actions, decision=decision)
            for (decision, resource), actions in together.items()
        ]
        if infos:
            self.users.set_policies(f"User:{name}", [PolicyInfo(entries=infos)])
        return self.peer(name)

    def is_served(self, peer: KafkaPeer, line: Line) -> bool:
        """Return whether a request is answered without a refusal, and shows what it was to show."""
        peer.tell(line.request, line.version)
        self.talk.advance(2)
        self.talk.tick()
        peer.compute()
        answers = peer.answers()
        is_open = peer.is_open
        peer.end()
        if not is_open:
            return False
        found = [msgspec.to_builtins(each) for each in answers]
        if line.hides:
            return any(name in str(found) for name in ("'name': 't'", "'group_id': 'g'"))
        return not REFUSED & set(codes(found))


def codes(value: Any) -> Iterator[int]:
    """Yield all error codes in an answer."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "error_code":
                yield each
            else:
                yield from codes(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from codes(each)


def cases(server: Server, line: Line) -> Iterator[tuple[str, KafkaPeer, bool]]:
    """Yield who asks, and whether it is served."""
    touched = [(each.split()[0], each.split()[1].split("|")) for each in line.touches]
    needed = [("Allow", resource, actions[0]) for resource, actions in touched]
    yield "nobody", server.peer(None), line.before
    yield "stranger", server.user("stranger"), not touched
    yield "exact", server.user("exact", *needed), True
    for number, (resource, actions) in enumerate(touched):
        is_same = [other for other, _ in touched].count(resource) > 1  # Two actions on one resource.
        for action in actions[1:]:
            entries = [*needed[:number], ("Allow", resource, action), *needed[number + 1 :]]
            yield f"exact {action}", server.user("exact", *entries), True
        denied = "All" if len(actions) > 1 or not is_same else actions[0]
        others = [("Allow", "*", "All"), ("Deny", resource, denied)]
        yield f"without {resource} {denied}", server.user("without", *others), False
        unneeded = next(one for one in ("List", "Delete", "Create") if one not in actions)
        entries = [*needed[:number], ("Allow", resource, unneeded), *needed[number + 1 :]]
        yield f"other than {resource}", server.user("exact", *entries), False
    yield "super", server.peer("root"), True


def test_every_api_of_everybody_is_answered_as_the_table_says(tmp_path: Path) -> None:
    count, wrong = 0, []
    keys: set[int] = set()
    server = Server(tmp_path / "0")
    for key, table in lines(server.peer("root")).items():
        keys.add(key)
        for number, line in enumerate(table):
            for who, peer, is_served in cases(server, line):
                count += 1
                if server.is_served(peer, line) != is_served:
                    wrong.append(f"{key} {type(line.request).__name__} {number} of {who}: not {is_served}")
            if key in CONSUMING:  # The topic or the group is gone.
                server.talk.close()
                server = Server(tmp_path / f"{count}")
    server.talk.close()
    print(f"{count} cases of {len(keys)} Kafka APIs")
    assert not wrong, "\n".join(wrong)
    assert keys == set(APIS)


def test_the_brokers_secret_does_not_authenticate_clients(tmp_path: Path) -> None:
    """Brokers are no users: their credentials are for requests between them, in RocketMQ's protocol."""
    server = Server(tmp_path)
    peer = server.peer(None)
    with pytest.raises(NoPermission):
        server.talk.broker.access.by_password(peer, BROKERS.access_key, BROKERS.secret_key)  # type: ignore[union-attr]
    assert peer.principal is ANONYMOUS
    peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
    first = peer.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=brokers,r=x"), 2)
    peer.tell(
        SaslAuthenticateRequest(auth_bytes=b"c=biws," + first.auth_bytes.split(b",")[0] + b",p=AAAA"), 2
    )
    assert peer.principal is ANONYMOUS
    server.talk.close()
