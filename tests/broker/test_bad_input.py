"""Every request code with fields that are missing, empty, oversized, of the wrong type, or negative.

Each gets one answer that names the error, and the next request is served as if nothing had happened.
"""

from collections.abc import Iterator

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import encode_body
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.rpc.call import VERSION, VERSION_FIELD
from libramq.rpc.request import REMARK_CHARACTERS_MAX
from libramq.rpc.request_table import REQUESTS
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.nameserver.test_processor import Server
from tests.rpc.test_authorization import REQUESTS_MADE

#: Odd values that a text field may have; the answer may be an error, but there must be one.
ODD_TEXTS = ("", " ", "x" * 100_000, "\x00", "../../etc/passwd", "%RETRY%", "null", "💥" * 100)
ODD_NUMBERS = ("-1", "-2147483648", "2147483647", "0")
#: Values that are not valid numbers.
NO_NUMBERS = ("", "x", "1.5", "0x10", "9" * 30, "-9223372036854775809")
ODD_BODIES = (b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"a":' * 1_000, b"x=y\n")

#: Refused before their fields are checked: PEER_… by a single broker, recalls unless they are allowed.
REFUSED_FIRST = (C.REQUEST_CODE_NOT_SUPPORTED, C.NO_PERMISSION)

CODES = sorted(REQUESTS_MADE)
#: Turns that a request may take; a heartbeat with a thousand groups would take 250.
ROUNDS_MAX = 50


def ext_of(code: R) -> dict[str, str]:
    header = REQUESTS_MADE[code][0]
    ext = h.encode_header(header) if header is not None else {}
    return ext | ({VERSION_FIELD: str(VERSION)} if REQUESTS[code].has_version else {})


def body_of(code: R) -> bytes:
    body = REQUESTS_MADE[code][1]
    return b"" if body is None else encode_body(body)


def numbers_of(code: R) -> list[str]:
    """Return those fields of a code's header that are numbers, by their names on the wire."""
    kind = REQUESTS[code].header
    annotations: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        annotations |= getattr(base, "__annotations__", {})
    named = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return [wire for wire, field in named if "int" in str(annotations[field])]


def required_of(code: R) -> list[str]:
    kind = REQUESTS[code].header
    count = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    made = ext_of(code)
    return [name for name in kind.__struct_encode_fields__[:count] if name in made]


class Asked:
    """A broker or a name server that receives one request after another."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.server = Server()
        self.by_broker = {*talk.broker.processors.singly, *talk.broker.processors.in_batches}

    def ask(self, code: R, ext: dict[str, str], body: bytes) -> Command | None:
        """Return the answer, or None if the request is held."""
        if code not in self.by_broker:
            return self._of_name_server(code, ext, body)
        peer, talk = FakePeer(), self.talk
        talk.give(peer, Command(code=code, ext=ext, body=body, opaque=77))
        for _ in range(ROUNDS_MAX):
            talk.threads.run_all()
            turn = talk.performer.turns.timer
            if turn is None:
                break
            turn.cancel()
            turn.action()  # type: ignore[attr-defined]
        answers = [reply for reply in peer.replies if reply.is_response]
        assert len(answers) <= 1
        talk.performer.closed(peer)
        return answers[0] if answers else None

    def _of_name_server(self, code: R, ext: dict[str, str], body: bytes) -> Command | None:
        peer = FakePeer()
        self.server.performer.received(peer, [Command(code=code, ext=ext, body=body, opaque=77)])
        self.server.threads.run_all()
        return next((reply for reply in peer.replies if reply.is_response), None)

    def check(self) -> None:
        """Check that messages can still be sent and read."""
        peer = FakePeer()
        sent = self.talk.send(peer, "Still")
        assert sent.code == C.SUCCESS, sent
        pulled = self.talk.pull(peer, "still", "Still", queue_offset=int(sent.ext["queueOffset"]))
        assert pulled is not None
        assert pulled.code == C.SUCCESS
        assert self.server.ask(R.GET_BROKER_CLUSTER_INFO).code == C.SUCCESS


@pytest.fixture(scope="module", params=CODES, ids=lambda code: code.name)
def code(request: pytest.FixtureRequest) -> R:
    return R(request.param)


@pytest.fixture(scope="module")
def servers(code: R, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Return the servers that receive all bad requests of a code."""
    talk = Conversation(tmp_path_factory.mktemp(code.name) / "data")
    talk.create_topic("Still", 1)
    yield Asked(talk)
    talk.close()


@pytest.fixture
def asked(servers: Asked) -> Iterator[Asked]:
    yield servers
    servers.check()


def test_a_missing_field_is_named(asked, code):
    for name in required_of(code):
        ext = {key: value for key, value in ext_of(code).items() if key != name}
        reply = asked.ask(code, ext, body_of(code))
        assert reply is not None
        if reply.code not in REFUSED_FIRST:
            assert reply.code == C.SYSTEM_ERROR, (name, reply)
            assert name in (reply.remark or ""), (name, reply)


def test_a_number_that_is_none_is_named(asked, code):
    for name in numbers_of(code):
        for text in NO_NUMBERS:
            reply = asked.ask(code, ext_of(code) | {name: text}, body_of(code))
            assert reply is not None
            if reply.code not in REFUSED_FIRST:
                assert reply.code == C.SYSTEM_ERROR, (name, text, reply)
                assert name in (reply.remark or ""), (name, text, reply)


def test_an_odd_value_gets_an_answer(asked, code):
    """The request may be held, like a pull beyond the end, but must not raise or affect other clients."""
    ext, numbers = ext_of(code), numbers_of(code)
    for name in ext:
        if name == VERSION_FIELD:
            continue
        for text in ODD_NUMBERS if name in numbers else ODD_TEXTS:
            reply = asked.ask(code, ext | {name: text}, body_of(code))
            assert reply is None or len(reply.remark or "") <= REMARK_CHARACTERS_MAX, (name, text[:20])


def test_an_odd_body_gets_an_answer(asked, code):
    for body in ODD_BODIES:
        asked.ask(code, ext_of(code), body)
    spec = REQUESTS[code]
    reply = asked.ask(code, ext_of(code), b" " * (spec.body_bytes_max + 1))
    assert reply is not None
    assert reply.code in (C.INVALID_PARAMETER, C.REQUEST_CODE_NOT_SUPPORTED)
