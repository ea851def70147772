"""Every request code from every kind of sender: access control follows the table of requests.

                    signed as  may                                   is served
    nobody          –          –                                     nothing
    stranger        stranger   nothing                               nothing
    exact           exact      just what the request touches         all but what brokers say to each other
    without         without    everything but one thing it touches   nothing; once for each such thing
    super           root       everything                            all but what brokers say to each other
    peer            brokers    everything                            everything

What a request touches is written down once more in `test_authorization.py`.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from libramq.auth.access_control import AccessControl
from libramq.auth.users import Users
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.access import PolicyEntryInfo, PolicyInfo, UserInfo
from libramq.kernel.effect import Proceed
from libramq.kernel.parts import Kernel
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, is_signed_for, sign, sign_for
from libramq.rpc.endpoint import Endpoint, PeerChecks, Signatures
from libramq.rpc.outcome import SUCCESS, Outcome
from libramq.rpc.request import Processors, Request
from libramq.rpc.request_table import BROKER_REQUESTS, REQUESTS
from libramq.rpc.responder import Responder
from tests.fakes import FakePeer, ManualClock, done
from tests.rpc.test_authorization import request, touched

ADDRESS, CLUSTER = "127.0.0.1:10911", "C"
BROKERS = Credentials("brokers", "theirs")


class Server:
    """An endpoint with access control that serves every code; `served` lists the served requests."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self.users = Users(record=lambda *_: None)
        access = AccessControl(self.users, cluster=CLUSTER, brokers=(BROKERS.access_key, BROKERS.secrets))
        self.kernel, self.peer, self.opaque = Kernel(ManualClock()), FakePeer(), 0
        is_of_cluster = partial(is_signed_for, credentials=BROKERS, address=ADDRESS)
        self._endpoint = Endpoint(
            clock=self.kernel.clock,
            authorizer=access,
            responder=Responder(self.kernel.effects),
            processors=Processors(dict.fromkeys(REQUESTS, self._serve)),
            signatures=Signatures(access),
            peers=PeerChecks(is_of_cluster, lambda _: None),
        )

    def _serve(self, request: Request) -> Outcome:
        self.served.append(request.command.code)
        return SUCCESS

    def user(self, name: str, *entries: tuple[str, str, str], user_type: str = "Normal") -> Credentials:
        """Recreate a user, with entries of decision, resource and action."""
        self.users.delete(name)
        self.users.create(UserInfo(username=name, password=f"{name}-secret", user_type=user_type))
        infos = [
            PolicyEntryInfo(resource=resource, actions=[action], decision=decision)
            for decision, resource, action in entries
        ]
        if infos:
            self.users.set_policies(f"User:{name}", [PolicyInfo(entries=infos)])
        return Credentials(name, f"{name}-secret")

    def answers(self, command: Command) -> C:
        """Pass it a request; return the response code, which is SUCCESS only if the request was served."""
        self.opaque += 1
        command.opaque = self.opaque
        self.served.clear()
        self._endpoint.receive(self.peer, [command], 0)
        self._follow()
        reply = self.peer.replies.pop()
        assert reply.opaque == self.opaque
        assert bool(self.served) == (reply.code == C.SUCCESS)
        return C(reply.code)

    def _follow(self) -> None:
        effects = self.kernel.effects.pending.copy()
        self.kernel.effects.pending.clear()
        for effect in effects:
            if isinstance(effect, Proceed):
                done(effect.steps)
                self._follow()
            else:
                effect.connection.write(effect.data)  # type: ignore[union-attr]


class Touched(NamedTuple):
    """A resource, and the actions any of which is enough."""

    resource: str
    actions: list[str]


def what(code: R) -> list[Touched]:
    """Return the resources and actions of a request, as policies name them."""
    found = []
    for line in touched(code):
        resource, actions = line.split()
        if resource == "Cluster:*":
            resource = f"Cluster:{CLUSTER}"
        found.append(Touched(resource, actions.split("|")))
    return found


def cases(server: Server, code: R) -> Iterator[tuple[str, Command, bool]]:
    """Yield the sender, the request, and whether it is served."""
    is_of_brokers = REQUESTS[code].from_broker
    root = server.user("root", user_type="Super")
    yield "nobody", request(code), False
    yield "stranger", sign(request(code), server.user("stranger")), False
    needed = [("Allow", each.resource, each.actions[0]) for each in what(code)]
    yield "exact", sign(request(code), server.user("exact", *needed)), not is_of_brokers
    for each in what(code):
        denied = [("Deny", each.resource, "All")]
        others = [("Allow", "*", "All"), *denied]
        yield f"without {each.resource}", sign(request(code), server.user("without", *others)), False
    for each in what(code):  # Each of its actions is enough; actions that it does not need are not.
        for action in each.actions[1:]:
            entries = [(*entry[:2], action) if entry[1] == each.resource else entry for entry in needed]
            yield f"exact {action}", sign(request(code), server.user("exact", *entries)), not is_of_brokers
        unneeded = next(one for one in ("Delete", "List", "Pub") if one not in each.actions)
        entries = [(*entry[:2], unneeded) if entry[1] == each.resource else entry for entry in needed]
        yield f"other than {each.resource}", sign(request(code), server.user("exact", *entries)), False
    yield "super", sign(request(code), root), not is_of_brokers
    yield "mistyped", sign(request(code), Credentials("root", "guess")), False
    yield "peer", sign_for(request(code), BROKERS, ADDRESS), True


def test_every_request_of_everybody_is_answered_as_the_table_says():
    server, count, wrong = Server(), 0, []
    for code in map(R, REQUESTS):
        for who, command, is_served in cases(server, code):
            count += 1
            answer = server.answers(command)
            if answer != (C.SUCCESS if is_served else C.NO_PERMISSION):
                wrong.append(f"{code.name} of {who}: {answer.name}")
    print(f"{count} cases of {len(REQUESTS)} request codes")
    assert not wrong
    assert count > 6 * len(REQUESTS)


def test_a_code_without_a_row_is_refused_for_every_sender():
    server = Server()
    for command in (Command(code=29_999), sign_for(Command(code=29_999), BROKERS, ADDRESS)):
        assert server.answers(command) == C.REQUEST_CODE_NOT_SUPPORTED


#: Not an operator's: requests of members, between brokers, of name servers; or an ordinary commit.
NOT_AUDITED = {
    R.UPDATE_CONSUMER_OFFSET, R.RESET_MASTER_FLUSH_OFFSET, R.NOTIFY_MIN_BROKER_ID_CHANGE,
    R.EXCHANGE_BROKER_HA_INFO,
}  # fmt: skip


def test_every_change_of_an_operator_is_audited():
    """Each row whose request needs Create, Update or Delete has a kind of event, or is one of these."""
    for code in map(R, BROKER_REQUESTS):
        row = REQUESTS[code]
        actions = {action for each in what(code) for action in each.actions}
        is_change = bool(actions & {"Create", "Update", "Delete"})
        is_audited = is_change and not row.from_broker and code not in NOT_AUDITED
        assert (row.changes is not None) == is_audited, code.name
