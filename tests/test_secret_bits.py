"""Ids that must be unguessable do not come from a seeded random generator."""

import random
from pathlib import Path

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.remoting import headers as h
from libramq.remoting.body.coordination import GroupJoinBody
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

JOIN = h.GroupJoinHeader(consumer_group="G", client_id="alice", lb_session_ms=10_000)


def join(talk: Conversation) -> str:
    talk.create_topic("T", 4)
    peer = FakePeer()
    talk.beat(peer, "alice", stock=False)
    reply = talk.ask(peer, R.GROUP_JOIN, JOIN, GroupJoinBody(subscriptions={"T": "*"}))
    assert reply.code == C.SUCCESS, reply.remark
    return reply.ext["lbMember"]


def test_member_ids_differ_although_the_random_seed_is_the_same(tmp_path: Path):
    """Both brokers draw from the same `random.Random`; member ids have 128 bits from the operating system."""
    members = []
    for name in ("one", "two"):
        talk = Conversation(tmp_path / name)
        members.append(join(talk))
        talk.close()
    assert len(set(members)) == 2
    assert all(len(bytes.fromhex(member)) == 16 for member in members)


def test_a_seeded_random_is_refused_where_secrets_are_drawn():
    """Code that draws secrets calls a method that other random generators lack."""
    assert not hasattr(random.Random, "token_hex")
    assert not hasattr(random.SystemRandom, "token_hex")
