"""Which registrations displace a live broker at the name server, and which do not."""

import msgspec
import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.formats.document import encode_body
from libramq.nameserver.displacement import PROBE_MS
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.remoting.command import Command, reply_to
from libramq.remoting.credentials import Credentials, sign_for
from libramq.remoting.headers import (
    BrokerHeader,
    BrokerHeartbeatHeader,
    Header,
    RegisterBrokerHeader,
    encode_header,
)
from libramq.rpc.request_table import REQUESTS
from tests.fakes import FakePeer
from tests.nameserver.tables import header, table
from tests.nameserver.test_processor import Server

NAME_SERVER = "10.0.0.1:9876"
PAIR = Credentials("libra", "only brokers know this")
#: Registrations that displace broker-a at 10.0.0.1:10911.
THEFTS = {
    "its name and address": header(),
    "its name, at another address": header(address="10.6.6.6:10911"),
    "its address, under another name": header("made-up"),
    "its address, in another cluster": header(cluster="made-up"),
}
UNREGISTER = BrokerHeader(
    broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
)
HEARTBEAT = BrokerHeartbeatHeader(
    cluster_name="DefaultCluster", broker_addr="10.0.0.1:10911", broker_name="broker-a"
)


class Registry(Server):
    """A name server at which `owner` has registered broker-a."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        super().__init__(credentials)
        self.owner, self.other = FakePeer("10.0.0.1:40000"), FakePeer("10.6.6.6:40000")
        self.claim(self.owner, header(), by=credentials)
        assert self.answers(self.owner)[0].code == ResponseCode.SUCCESS

    def claim(
        self, peer: FakePeer, what: RegisterBrokerHeader, *topics: str, by: Credentials | None = None
    ) -> None:
        """Send a registration; the response may arrive later."""
        body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=table(*(topics or ("T", "U")))))
        request = Command(code=RequestCode.REGISTER_BROKER, ext=encode_header(what), body=body, opaque=77)
        self.performer.received(peer, [request if by is None else sign_for(request, by, NAME_SERVER)])

    def answers(self, peer: FakePeer) -> list[Command]:
        taken = [command for command in peer.replies if command.is_response]
        peer.replies = [command for command in peer.replies if not command.is_response]
        return taken

    def probe(self, peer: FakePeer) -> Command:
        """Return the probe that checks whether a connection is alive."""
        (probe,) = [command for command in peer.replies if not command.is_response]
        peer.replies.clear()
        return probe

    def answer(self, peer: FakePeer, probe: Command) -> None:
        """Answer like any process that does not know the request."""
        self.performer.received(peer, [reply_to(probe, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)])

    def end(self, peer: FakePeer) -> None:
        peer.is_open = False
        self.performer.closed(peer)

    def pass_by(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.engine.tick()
        self.performer.follow()

    @property
    def master(self) -> tuple[str, str]:
        (broker,) = self.routes.route("T").broker_datas
        return broker.broker_name, broker.master_address


@pytest.mark.parametrize("what", THEFTS.values(), ids=THEFTS)
def test_a_live_brokers_name_cannot_be_taken(what):
    registry = Registry()
    registry.claim(registry.other, what)
    assert registry.answers(registry.other) == []
    registry.answer(registry.owner, registry.probe(registry.owner))
    (answer,) = registry.answers(registry.other)
    assert (answer.code, answer.opaque) == (ResponseCode.NO_PERMISSION, 77)
    assert "a live broker of this name and id is registered from 10.0.0.1:40000" in answer.remark
    assert registry.master == ("broker-a", "10.0.0.1:10911")
    registry.end(registry.other)
    assert registry.master == ("broker-a", "10.0.0.1:10911")


def test_a_deposed_masters_registration_removes_no_other_broker():
    """Its lower state version makes it ignored, but the broker at the address it named used to be removed."""
    registry = Registry()
    victim = FakePeer("10.0.0.2:40000")
    registry.claim(victim, header("broker-b", "10.0.0.2:10911"), "V", "W")
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table("T", "U", state=-1))
    ext = encode_header(header(address="10.0.0.2:10911"))
    request = Command(code=RequestCode.REGISTER_BROKER, ext=ext, body=encode_body(body), opaque=77)
    victim.replies.clear()
    registry.performer.received(registry.other, [request])
    registry.answer(victim, registry.probe(victim))
    assert registry.routes.route("V") is not None


@pytest.mark.parametrize("what", THEFTS.values(), ids=THEFTS)
def test_the_name_of_a_silent_broker_is_free_after_a_second(what):
    """Its machine lost power, and its connection was never closed."""
    registry = Registry()
    registry.claim(registry.other, what)
    registry.pass_by(PROBE_MS - 1)
    assert registry.answers(registry.other) == []
    registry.pass_by(1)
    (answer,) = registry.answers(registry.other)
    assert answer.code == ResponseCode.SUCCESS
    assert registry.master == (what.broker_name, what.broker_addr)
    registry.end(registry.owner)
    assert registry.master == (what.broker_name, what.broker_addr)


def test_the_name_of_a_departed_broker_is_free_at_once():
    """A killed broker that restarts fast may register before or after its old connection ends."""
    registry = Registry()
    registry.claim(registry.other, header())
    registry.end(registry.owner)
    assert registry.answers(registry.other)[0].code == ResponseCode.SUCCESS
    registry.end(registry.other)
    third = FakePeer()
    registry.claim(third, header())
    assert registry.answers(third)[0].code == ResponseCode.SUCCESS


def test_the_first_of_two_claimants_takes_a_dead_brokers_name():
    registry = Registry()
    third = FakePeer("10.7.7.7:40000")
    registry.claim(registry.other, header())
    registry.pass_by(PROBE_MS // 2)
    registry.claim(third, header())
    assert len([command for command in registry.owner.replies if not command.is_response]) == 1
    registry.pass_by(PROBE_MS // 2)
    assert registry.answers(registry.other)[0].code == ResponseCode.SUCCESS
    registry.pass_by(PROBE_MS // 2)
    registry.answer(registry.other, registry.probe(registry.other))
    assert registry.answers(third)[0].code == ResponseCode.NO_PERMISSION


def test_a_departed_claimant_takes_no_name():
    registry = Registry()
    registry.claim(registry.other, header(address="10.6.6.6:10911"))
    registry.end(registry.other)
    registry.pass_by(PROBE_MS)
    assert registry.master == ("broker-a", "10.0.0.1:10911")


def test_unexpected_and_late_answers_are_ignored():
    registry = Registry()
    stray = Command(code=0, opaque=5, flag=1)
    registry.performer.received(registry.owner, [stray])
    registry.claim(registry.other, header())
    probe = registry.probe(registry.owner)
    registry.performer.received(registry.other, [reply_to(probe, 0)])
    registry.performer.received(registry.owner, [Command(code=0, opaque=probe.opaque + 1, flag=1)])
    assert registry.answers(registry.other) == []
    registry.pass_by(PROBE_MS)
    assert registry.answers(registry.other)[0].code == ResponseCode.SUCCESS
    registry.answer(registry.owner, probe)


def test_a_stalled_name_server_waits_for_answers_still_in_sockets():
    registry = Registry()
    registry.claim(registry.other, header())
    probe = registry.probe(registry.owner)
    registry.pass_by(60_000)
    registry.answer(registry.owner, probe if not registry.owner.replies else registry.probe(registry.owner))
    assert registry.answers(registry.other)[0].code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("what", THEFTS.values(), ids=THEFTS)
def test_a_signed_claim_takes_its_name_at_once(what):
    registry = Registry(PAIR)
    registry.claim(registry.other, what, by=PAIR)
    assert registry.answers(registry.other)[0].code == ResponseCode.SUCCESS
    assert registry.master == (what.broker_name, what.broker_addr)
    third = FakePeer()
    registry.claim(third, what, by=Credentials("libra", "a guess"))
    assert registry.answers(third)[0].code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("by", [None, Credentials("libra", "a guess")], ids=["unsigned", "guessed"])
def test_unsigned_brokers_cannot_register_beside_signing_ones(by: Credentials | None):
    """Clients connect to that address, and so does a slave of a dead master, with signed requests."""
    registry = Registry(PAIR)
    registry.end(registry.owner)
    for made_up in (header(address="10.6.6.6:10911"), header("made-up", "10.6.6.6:10911")):
        registry.claim(registry.other, made_up, by=by)
        (answer,) = registry.answers(registry.other)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "not signed with the innerClientAuthenticationCredentials" in answer.remark
    assert registry.routes.clusters().broker_addr_table == {}
    registry.claim(registry.other, header("made-up", "10.6.6.6:10911"), by=PAIR)
    assert registry.answers(registry.other)[0].code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (RequestCode.UNREGISTER_BROKER, UNREGISTER),
        (RequestCode.BROKER_HEARTBEAT, HEARTBEAT),
        (RequestCode.QUERY_DATA_VERSION, UNREGISTER),
    ],
)
def test_others_neither_keep_a_silent_broker_alive_nor_end_it(code: RequestCode, what: Header):
    registry = Registry(PAIR)
    body = b"{}" if code == RequestCode.QUERY_DATA_VERSION else b""
    request = Command(code=code, ext=encode_header(what), body=body, opaque=78)
    registry.performer.received(registry.owner, [request])
    assert registry.answers(registry.owner)[0].code == ResponseCode.NO_PERMISSION
    others = {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.BROKER_HEARTBEAT} - {
        code
    }
    for other in others:  # A replayed heartbeat could end its broker's registration.
        recorded = sign_for(msgspec.structs.replace(request, code=other), PAIR, NAME_SERVER)
        registry.performer.received(registry.owner, [msgspec.structs.replace(recorded, code=code)])
        assert registry.answers(registry.owner)[0].code == ResponseCode.NO_PERMISSION
    registry.performer.received(registry.owner, [sign_for(request, PAIR, NAME_SERVER)])
    assert registry.answers(registry.owner)[0].code == ResponseCode.SUCCESS


def test_the_probe_is_not_in_the_request_table():
    """A broker, including Apache's, answers it by not knowing the request."""
    assert RequestCode.PROBE not in REQUESTS
