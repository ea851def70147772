"""The resources that an operation touches, in any protocol."""

import pytest

from libramq.auth.authorizer import ALLOW_ALL, require_permission
from libramq.auth.operation import (
    Action,
    Consume,
    Locate,
    Manage,
    Membership,
    Send,
    cluster,
    group,
    resources,
    topic,
)
from libramq.errors import NoPermission
from libramq.kernel.connection import ANONYMOUS, Principal
from tests.auth.guards import Guard

ALICE = Principal("alice")
PUB, SUB, GET = (Action.PUB,), (Action.SUB,), (Action.GET,)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Send(ALICE, "T"), [(topic("T"), PUB)]),
        (Send(ALICE, "T", ["%LMQ%a"]), [(topic("T"), PUB), (topic("%LMQ%a"), PUB)]),
        (Send(ALICE, "%RETRY%G"), [(group("G"), SUB)]),
        (Send(ALICE, "%DLQ%G"), [(topic("%DLQ%G"), PUB)]),
        (Consume(ALICE, "G"), [(group("G"), SUB)]),
        (Consume(ALICE, "G", ("T", "U")), [(group("G"), SUB), (topic("T"), SUB), (topic("U"), SUB)]),
        (Consume(ALICE, "G", ("%RETRY%H",)), [(group("G"), SUB), (group("H"), SUB)]),
        (Consume(ALICE, "G_T", ("%RETRY%G+T",)), [(group("G_T"), SUB), (group("G"), SUB)]),
        (Consume(ALICE, "G", ("T",)), [(group("G"), SUB), (topic("T"), SUB)]),
        (Membership(ALICE), []),
        (
            Membership(ALICE, {"G": ("T",), "H": ()}),
            [(group("G"), SUB), (topic("T"), SUB), (group("H"), SUB)],
        ),
        (Locate(ALICE, "T"), [(topic("T"), (Action.PUB, Action.SUB, Action.GET))]),
        (Manage(ALICE, Action.LIST, (cluster(),)), [(cluster("*"), (Action.LIST,))]),
        (Manage(ALICE, Action.GET, (group("G"), topic("%RETRY%G"))), [(group("G"), GET), (group("G"), GET)]),
        (Consume(ALICE, "G", ("T",), Action.GET), [(group("G"), (*SUB, *GET)), (topic("T"), (*SUB, *GET))]),
    ],
)
def test_an_operation_names_its_resources(operation, expected):
    assert list(resources(operation)) == expected


def test_every_resource_of_an_operation_must_be_permitted():
    guard = Guard({"Topic:U"})
    require_permission(guard, Consume(ALICE, "G", ("T",)))
    with pytest.raises(NoPermission, match="alice may not Sub Topic:U"):
        require_permission(guard, Consume(ALICE, "G", ("T", "U")))
    assert guard.principals == {ALICE}


def test_the_default_permits_everything():
    require_permission(ALLOW_ALL, Consume(ANONYMOUS, "G", ("T",)))
    ALLOW_ALL.authorize(ANONYMOUS, cluster(), (Action.DELETE,))
