"""The endpoint: which requests are served, in which order, and how each outcome affects the connection."""

from collections.abc import Sequence

import pytest

from libramq.auth.authorizer import ALLOW_ALL
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError, RemoteProtocolError, broker_error
from libramq.kernel.effect import Thread
from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Gated, Missing
from libramq.kernel.work import InThread
from libramq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, Serialization
from libramq.remoting.frame import FRAME_BYTES_MAX
from libramq.remoting.headers import encode_header
from libramq.rpc.endpoint import BATCH_MAX, Endpoint
from libramq.rpc.outcome import HOLD, SUCCESS, Close, Outcome, Reply, ReplyWhenDurable
from libramq.rpc.request import REMARK_CHARACTERS_MAX, Processors, Request
from libramq.rpc.request_table import REQUESTS
from libramq.rpc.responder import Responder
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from tests.broker.brokers import send_header
from tests.fakes import FakePeer, ManualClock, ManualThreads, ManualTimers, raise_it

EXT = {
    R.SEND_MESSAGE_V2: encode_header(send_header("T")),
    R.UPDATE_CONSUMER_OFFSET: {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"},
    R.GET_MAX_OFFSET: {"topic": "T", "queueId": "0"},
}


class Served:
    """An endpoint whose single processors return preset answers, and whose batches are recorded."""

    def __init__(self, outcome: Outcome | Exception = SUCCESS, **options: object) -> None:
        self.outcome = outcome
        self.log: list[object] = []
        self.durable: list[tuple[int, Gated]] = []
        clock = ManualClock()
        kernel = Kernel(clock)
        defaults: dict[str, object] = {
            "authorizer": ALLOW_ALL,
            "processors": Processors(
                {R.GET_MAX_OFFSET: self.single, R.UPDATE_BROKER_CONFIG: self.single},
                {R.SEND_MESSAGE_V2: self.send, R.UPDATE_CONSUMER_OFFSET: self.commit},
            ),
        }
        ended = options.pop("ended", lambda _: None)
        self.responder = Responder(kernel.effects, durability=self)
        endpoint = Endpoint(clock=clock, responder=self.responder, **(defaults | options))  # type: ignore[arg-type]
        hooks = Hooks(connection_ended=(ended,), settle=(lambda: self.log.append("settled"),))  # type: ignore[arg-type]
        engine = Engine(kernel, endpoint, hooks)
        self.threads, self.timers = ManualThreads(), ManualTimers()
        self.performer = Performer(
            engine,
            Seams(remotes=None, timers=self.timers, threads=self.threads),
            monotonic_ms=clock.monotonic_ms,
            listen=lambda listening: listening(),
            failed=raise_it,
        )
        self.peer = FakePeer()

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        self.durable.append((physical_offset, parked))

    def single(self, request: Request) -> Outcome:
        self.log.append(("single", request.command.opaque))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def send(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        self.log.append(("send", [request.command.opaque for request in requests]))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [self.outcome] * len(requests)

    def commit(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        self.log.append(("commit", [request.command.opaque for request in requests]))
        return [SUCCESS] * len(requests)

    def give(self, *codes: int, **fields: object) -> list[tuple[int, int]]:
        """Deliver requests numbered from 1 in one read; return the responses as (number, code)."""
        self.peer.replies.clear()
        commands = [
            Command(**{"code": code, "opaque": n, "ext": EXT.get(code, {}), **fields})  # type: ignore[arg-type]
            for n, code in enumerate(codes, 1)
        ]
        self.performer.received(self.peer, commands)
        return [(reply.opaque, reply.code) for reply in self.peer.replies]


S, U, M = R.SEND_MESSAGE_V2, R.UPDATE_CONSUMER_OFFSET, R.GET_MAX_OFFSET


def test_neighbouring_requests_are_handled_together_and_in_order():
    served = Served()
    assert served.give(S, S, M, S, U, U, S) == [(n, 0) for n in range(1, 8)]
    assert served.log == [
        ("send", [1, 2]), ("single", 3), ("send", [4]), ("commit", [5, 6]), ("send", [7]), "settled",
    ]  # fmt: skip


def test_many_neighbours_are_handled_in_several_batches():
    """256 timer messages took 10 ms; beside twenty connections that sent them, a ping took 0.2 s."""
    served = Served()
    served.give(*[S] * (2 * BATCH_MAX + 1))
    sizes = [len(numbers) for kind, numbers in (each for each in served.log if each != "settled")]
    assert sizes == [BATCH_MAX, BATCH_MAX, 1]
    assert BATCH_MAX <= 64


def test_an_unknown_request_is_answered_in_order():
    served = Served()
    assert served.give(S, 9_999, S) == [(1, 0), (2, C.REQUEST_CODE_NOT_SUPPORTED), (3, 0)]
    assert served.peer.replies[1].remark == " request type 9999 not supported"


def test_a_refusal_that_users_of_mqadmin_meet_names_its_reason():
    """UPDATE_AND_CREATE_STATIC_TOPIC, of updateStaticTopic and remappingStaticTopic."""
    served = Served()
    assert served.give(513) == [(1, C.REQUEST_CODE_NOT_SUPPORTED)]
    assert "static topics are not made here" in (served.peer.replies[0].remark or "")


def test_a_known_request_that_this_server_does_not_serve_is_refused():
    assert Served().give(R.REGISTER_BROKER) == [(1, C.REQUEST_CODE_NOT_SUPPORTED)]


def test_responses_are_not_taken_for_requests():
    served = Served()
    assert served.give(M, flag=FLAG_RESPONSE) == []
    assert served.log == ["settled"]


def test_an_outgoing_request_gets_a_number_and_its_answer_is_handed_on():
    heard: list[tuple[object, int, int]] = []
    served = Served(answered=lambda peer, answer, now_ms: heard.append((peer, answer.opaque, now_ms)))
    ext = {"consumerGroup": "G"}
    for number in (7, 8):
        question = Command(code=R.GET_CONSUMER_RUNNING_INFO, opaque=number, ext=ext)
        served.responder.ask(served.peer, question)  # type: ignore[arg-type]
    served.performer.follow()
    assert [(sent.opaque, sent.is_oneway, sent.ext) for sent in served.peer.replies] == [
        (7, False, ext),
        (8, False, ext),
    ]
    served.performer.received(served.peer, [Command(code=C.SUCCESS, opaque=8, flag=FLAG_RESPONSE)])
    assert heard == [(served.peer, 8, 1_000)]


def test_oneway_requests_never_get_an_answer():
    served = Served(RuntimeError("a bug"))
    assert served.give(M, S, 9_999, flag=FLAG_ONEWAY) == []
    assert len(served.log) == 3


def test_an_answer_has_its_requests_number_and_serialisation():
    served = Served(Reply(ext={"offset": "5"}, body=b"body", remark="fine"))
    served.give(M, serialization=Serialization.ROCKETMQ)
    (reply,) = served.peer.replies
    assert (reply.serialization, reply.ext, reply.body, reply.remark) == (
        Serialization.ROCKETMQ, {"offset": "5"}, b"body", "fine",
    )  # fmt: skip


@pytest.mark.parametrize("code", [M, S])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (broker_error(C.TOPIC_NOT_EXIST, "no T"), (C.TOPIC_NOT_EXIST, "no T")),
        (ConfigError("bad name"), (C.INVALID_PARAMETER, "bad name")),
        (RemoteProtocolError("no field"), (C.SYSTEM_ERROR, "no field")),
        (ValueError("a bug"), (C.SYSTEM_ERROR, "ValueError: a bug")),
        (OSError(5, "no disk"), (C.SYSTEM_ERROR, "OSError: [Errno 5] no disk")),
        (
            OSError(28, "no space"),
            (C.SERVICE_NOT_AVAILABLE, "the disk has no room for it: [Errno 28] no space"),
        ),
    ],
)
def test_an_exception_of_a_processor_becomes_an_answer(code, error, expected):
    served = Served(error)
    served.give(code)
    (reply,) = served.peer.replies
    assert (reply.code, reply.remark) == expected
    assert served.log[-1] == "settled"


def test_remarks_are_short_and_printable():
    served = Served(ValueError("x" * 100_000))
    served.give(M)
    assert len(served.peer.replies[0].remark) < REMARK_CHARACTERS_MAX + 50


def test_a_body_over_the_tables_bound_reaches_no_processor():
    served = Served()
    limit = REQUESTS[R.UPDATE_BROKER_CONFIG].body_bytes_max
    assert served.give(R.UPDATE_BROKER_CONFIG, body=bytes(limit + 1)) == [(1, C.INVALID_PARAMETER)]
    assert served.give(M, body=b"x") == [(1, C.INVALID_PARAMETER)]
    assert served.log == ["settled"] * 2
    assert served.give(R.UPDATE_BROKER_CONFIG, body=bytes(limit)) == [(1, 0)]


def test_an_answer_too_large_for_a_frame_becomes_an_error_answer():
    served = Served(Reply(body=bytes(FRAME_BYTES_MAX)))
    assert served.give(M, M) == [(1, C.SYSTEM_ERROR), (2, C.SYSTEM_ERROR)]


# Outcomes.


@pytest.mark.parametrize(("is_durable", "code"), [(True, C.SUCCESS), (False, C.FLUSH_DISK_TIMEOUT)])
def test_the_replies_of_a_batch_wait_for_the_disk_together(is_durable, code):
    served = Served(ReplyWhenDurable(77, Reply(ext={"msgId": "A"}), is_send=True))
    assert served.give(S, S) == []
    ((offset, parked),) = served.durable
    assert offset == 77
    if is_durable:
        parked.succeed()
    else:
        parked.fail(Missing.ANSWER)
    served.performer.follow()
    assert [(reply.opaque, reply.code, reply.ext) for reply in served.peer.replies] == [
        (1, code, {"msgId": "A"}),
        (2, code, {"msgId": "A"}),
    ]


def test_a_decision_that_waited_for_the_disk_is_repeated():
    def read_twice():
        for _ in range(2):
            yield InThread(Thread.READ, lambda: None)
        return Reply(remark="read")

    served = Served(read_twice())
    assert served.give(M) == []
    served.threads.finish(served.threads.work.pop())
    assert served.peer.replies == []
    served.threads.finish(served.threads.work.pop())
    assert served.peer.replies[0].remark == "read"


def test_a_repeated_decision_that_fails_becomes_an_answer():
    def read():
        yield InThread(Thread.READ, lambda: None)
        raise OSError(5, "the disk is broken")

    served = Served(read())
    served.give(M)
    served.threads.run_all()
    assert served.peer.replies[0].code == C.SYSTEM_ERROR


def test_a_held_request_ends_with_its_connection():
    served = Served(HOLD)
    assert served.give(M) == []
    served.outcome = Close("enough")
    assert served.give(M) == []
    assert served.peer.close_reason == "enough"


def test_services_are_notified_of_ended_connections_until_the_server_stops():
    ended: list[object] = []
    other = FakePeer()
    served = Served(ended=ended.append)
    served.performer.closed(served.peer)
    assert ended == [served.peer]
    assert served.log == ["settled"]
    served.performer.stop()
    served.performer.closed(other)
    assert ended == [served.peer]


def test_an_unsupported_version_of_the_group_protocol_reaches_no_processor():
    """Absent is version 1, as 0.1.0 writes; the refusal names the highest that is read."""
    served = Served(processors=Processors({R.GROUP_FIND: lambda _: SUCCESS, M: lambda _: SUCCESS}))
    assert served.give(R.GROUP_FIND, ext={"consumerGroup": "g"}) == [(1, 0)]
    assert served.give(R.GROUP_FIND, ext={"consumerGroup": "g", "lbVersion": "1"}) == [(1, 0)]
    assert served.give(R.GROUP_FIND, ext={"consumerGroup": "g", "lbVersion": "2"}) == [
        (1, C.VERSION_NOT_SUPPORTED)
    ]
    (refusal,) = served.peer.replies
    assert refusal.ext == {"lbVersion": "1"}
    assert refusal.remark is not None
    assert refusal.remark.startswith("GROUP_FIND is written in version 2")
    assert served.give(M, ext={**EXT[M], "lbVersion": "2"}) == [
        (1, 0)
    ]  # Other requests do not check the version.
