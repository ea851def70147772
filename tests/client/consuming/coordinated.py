"""A push consumer's core as a member of a coordinated group; the test plays the coordinator and the
fences.
"""

from libramq.errors import LibraError, broker_error
from libramq.fencing import MODE_CLIENT, Claim, OpenedQueue
from libramq.remoting.body.coordination import GroupAssignment, QueueGrant, QueueOpened
from libramq.rpc.group_calls import Joined
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, q
from tests.client.consuming.examples import route

TOPIC_NOT_EXIST = 17
FENCED, UNKNOWN_MEMBER, NOT_COORDINATOR, NOT_YET_GRANTED = 3100, 3101, 3102, 3103


def assigned(*queues, epoch=1, revoke=(), warning="", opened=()):
    """Return an assignment of queues under its epoch; pairs have an epoch of their own."""
    return GroupAssignment(
        epoch=epoch,
        warning=warning,
        queues=[_grant(each, epoch) for each in queues],
        revoke=[_grant(each, epoch) for each in revoke],
        opened=[QueueOpened.of(queue, OpenedQueue(offset, 0)) for queue, offset in opened],
    )


def client_mode(epoch=1):
    return GroupAssignment(epoch=epoch, mode=MODE_CLIENT)


def refusal(code, remark=""):
    return broker_error(code, remark)


def _grant(each, epoch):
    queue, epoch = each if isinstance(each[1], int) else (each, epoch)
    return QueueGrant.of(queue, epoch)


class Member(Conversation):
    """A conversation with a member of a coordinated group, whose requests the test answers."""

    def __init__(self, **settings):
        settings = {"route_refresh_ms": 600_000, "heartbeat_ms": 60_000} | settings
        super().__init__(**settings)
        self.question = None

    def note(self, effects):
        super().note(effects)
        for effect in self.effects:
            if isinstance(effect, rq.FindGroup | rq.JoinGroup | rq.PollGroup):
                self.question = effect
        return self.effects

    def found_group(self, outcome="a:1"):
        return self._(self.question.ask.done(outcome, self.now_ms))

    def group_joined(self, outcome=None, member="m1"):
        if outcome is None:
            outcome = assigned()
        if isinstance(outcome, GroupAssignment):
            outcome = Joined(member, outcome)
        return self._(self.question.ask.done(outcome, self.now_ms))

    def polled(self, outcome):
        assert isinstance(self.question, rq.PollGroup), self.question
        return self._(self.question.ask.done(outcome, self.now_ms))

    def opened(self, request, outcome=0, former_epoch=None, recovered_end=None, topic_start=0):
        """Answer as the fence: with an offset, or a refusal."""
        if not isinstance(outcome, LibraError):
            outcome = OpenedQueue(outcome, former_epoch, recovered_end, topic_start)
        return self._(request.ask.done(outcome, self.now_ms))

    def pull_failed(self, pull, code):
        return self._(pull.ask.done(refusal(code), self.now_ms))

    def commit_refused(self, commit, code):
        return self._(commit.ask.done(refusal(code), self.now_ms))

    def looking(self, queues=4, *, brokers=("a",)):
        """Return a member whose brokers have answered, and that looks for its coordinator."""
        self.start()
        self.routes(T=route(queues, brokers=brokers))
        for name in brokers:
            self.heartbeat(f"{name}:1", offers=True)
        return self

    def member(self, queues=4):
        """Return a member that has joined and polls."""
        self.looking(queues)
        self.found_group()
        self.group_joined()
        return self

    def holding(self, *queues, offset=0, count=4):
        """Return a member that pulls queues under epoch 1."""
        self.member(count)
        self.polled(assigned(*queues))
        for request in self.of(rq.OpenQueue):
            self.opened(request, offset)
        return self

    def busy(self, queue, *offsets, started=1):
        """Deliver messages and begin this many handlers; return their deliveries."""
        self.pulled(queue, found(*offsets))
        deliveries = self.deliveries()
        for delivery in deliveries[:started]:
            assert delivery.begin()
        return deliveries

    def deliveries_begin(self):
        """Return whether a handler may begin with the pulled messages."""
        return all(each.begin() for each in self.core.table.get(q(0)).work.deliveries)

    def held(self):
        """Return the queues that the waiting poll reports as held."""
        return {grant.queue: grant.epoch for grant in self.question.body.held}

    def claim(self, epoch=1, member="m1"):
        return Claim(member, epoch)
