"""Access control: which signatures are accepted, and how refusals are worded; changes take effect at once."""

import pytest

from libramq.auth.access_control import AccessControl
from libramq.auth.operation import Action, cluster, topic
from libramq.auth.signature import ACCESS_KEY, SIGNATURE, signature
from libramq.auth.users import Users
from libramq.codes import ResponseCode
from libramq.errors import NoPermission
from libramq.formats.access import Account, UserInfo
from libramq.kernel.connection import ANONYMOUS, Principal
from tests.auth.test_policies import custom
from tests.fakes import FakePeer

PUB = (Action.PUB,)


class Server:
    """A table of users, and the access control that uses it."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, Account | None]] = []
        self.users = Users(record=lambda name, account: self.recorded.append((name, account)))
        self.access = AccessControl(self.users, cluster="C", brokers=("brokers", (b"theirs",)))
        self.peer = FakePeer("10.0.0.7:4711")
        self.users.create(UserInfo(username="alice", password="secret"))
        self.users.create(UserInfo(username="root", password="rootsecret", user_type="Super"))

    def sign_in(self, name: str, password: str, fields: dict[str, str] | None = None) -> Principal:
        signed = {"topic": "T", ACCESS_KEY: name}
        signed[SIGNATURE] = signature(signed, b"body", password.encode())
        return self.access.by_signature(self.peer, signed | (fields or {}), b"body")

    def may(self, principal: Principal, name: str = "T") -> str:
        """Return "yes", or the reason for a refusal."""
        try:
            self.access.authorize(principal, topic(name), PUB)
        except NoPermission as error:
            return error.remark
        return "yes"


def refused(sign_in) -> str:
    with pytest.raises(NoPermission) as error:
        sign_in()
    assert error.value.response_code == ResponseCode.NO_PERMISSION
    assert "secret" not in str(error.value)
    return error.value.remark


def test_a_signature_names_its_user_and_the_address():
    server = Server()
    principal = server.sign_in("alice", "secret")
    assert (principal.name, principal.host) == ("alice", "10.0.0.7")
    assert not principal.is_unrestricted


def test_refused_credentials_and_the_reasons():
    server = Server()
    access, peer = server.access, server.peer
    assert refused(lambda: access.by_signature(peer, {}, b"")) == "authentication field is null"
    assert refused(lambda: access.by_signature(peer, {"a": "b"}, b"")) == "username cannot be null."
    unsigned = {ACCESS_KEY: "alice"}
    assert refused(lambda: access.by_signature(peer, unsigned, b"")) == "check signature failed."
    assert refused(lambda: server.sign_in("eve", "secret")) == "User:eve is not found."
    assert refused(lambda: server.sign_in("alice", "guessed")) == "check signature failed."
    assert refused(lambda: server.sign_in("alice", "secret", {"topic": "U"})) == "check signature failed."
    assert refused(lambda: server.sign_in("alice", "secret", {"x": "y"})) == "check signature failed."
    assert (
        refused(lambda: server.sign_in("alice", "secret", {"topic": "\ud800"})) == "check signature failed."
    )


def test_a_certificate_names_a_user_letter_for_letter():
    """A signature takes precedence: a certificate does not rescue a wrong one."""
    server = Server()
    server.peer.certificate_names = ("orders.example", "alice")
    principal = server.access.by_signature(server.peer, {"topic": "T"}, b"")
    assert (principal.name, principal.host) == ("alice", "10.0.0.7")
    assert server.sign_in("root", "rootsecret").name == "root"
    assert refused(lambda: server.sign_in("alice", "guessed")) == "check signature failed."
    server.users.update(UserInfo(username="alice", user_status="disable"))
    assert refused(lambda: server.access.by_signature(server.peer, {}, b"")) == "User:alice is disabled."
    server.peer.certificate_names = ("Alice", "alice.example", "*")
    assert "which has Alice, alice.example, *" in refused(
        lambda: server.access.by_signature(server.peer, {}, b"")
    )


def test_a_disabled_user_is_refused_and_what_it_had_already():
    server = Server()
    server.users.set_policies("User:alice", [custom("ALLOW Topic:T Pub")])
    principal = server.sign_in("alice", "secret")
    assert server.may(principal) == "yes"
    server.users.update(UserInfo(username="alice", user_status="disable"))
    assert refused(lambda: server.sign_in("alice", "secret")) == "User:alice is disabled."
    assert server.may(principal) == "User:alice is disabled."
    server.users.update(UserInfo(username="alice", user_status="enable"))
    assert server.may(principal) == "yes"
    server.users.delete("alice")
    assert server.may(principal) == "User:alice not found."


def test_policies_decide_and_changes_take_effect_at_once():
    server = Server()
    alice = server.sign_in("alice", "secret")
    nothing = "User:alice has no permission to access Topic:T from 10.0.0.7, no matched policies."
    assert server.may(alice) == nothing
    server.users.set_policies("User:alice", [custom("ALLOW Topic:T Pub")])
    assert server.may(alice) == "yes"
    server.users.set_policies("User:alice", [custom("DENY Topic:T Pub")])
    assert server.may(alice).endswith("from 10.0.0.7, the decision is deny.")
    server.users.delete_policies("User:alice", "Custom", None)
    assert server.may(alice) == nothing


def test_super_users_and_brokers_may_do_everything():
    server = Server()
    assert server.may(server.sign_in("root", "rootsecret")) == "yes"
    brokers = server.sign_in("brokers", "theirs")
    assert brokers.is_unrestricted
    assert server.may(brokers) == "yes"
    assert refused(lambda: server.sign_in("brokers", "others")) == "User:brokers is not found."


def test_no_change_of_the_table_parts_the_brokers():
    server = Server()
    server.users.create(UserInfo(username="brokers", password="other"))
    server.users.update(UserInfo(username="brokers", user_status="disable"))
    assert server.sign_in("brokers", "theirs").is_unrestricted
    assert refused(lambda: server.sign_in("brokers", "other")) == "User:brokers is disabled."


def test_an_anonymous_client_is_not_the_user_of_that_name():
    server = Server()
    server.users.create(UserInfo(username=ANONYMOUS.name, password="x", user_type="Super"))
    assert server.may(ANONYMOUS) == "username cannot be null."
    assert not server.access.is_super(ANONYMOUS)
    assert server.access.is_super(server.sign_in(ANONYMOUS.name, "x"))


def test_the_whole_cluster_is_the_one_of_the_server():
    server = Server()
    alice = server.sign_in("alice", "secret")
    server.users.set_policies("User:alice", [custom("ALLOW Cluster:C Get", "ALLOW Cluster:D Update")])
    server.access.authorize(alice, cluster(), (Action.GET,))
    with pytest.raises(NoPermission, match="Cluster:C from"):
        server.access.authorize(alice, cluster(), (Action.UPDATE,))


def test_a_password_signs_a_connection_in():
    server = Server()
    assert server.access.by_password(server.peer, "alice", "secret") == Principal("alice")
    for name, password in (("alice", "guessed"), ("eve", ""), ("eve", "secret")):
        with pytest.raises(NoPermission, match="unknown user or wrong password"):
            server.access.by_password(server.peer, name, password)


def test_users_are_created_and_changed_with_apaches_words():
    server = Server()
    users = server.users
    assert refused(lambda: users.create(UserInfo(username="alice", password="x"))) == "The user is existed"
    assert refused(lambda: users.create(UserInfo(username="bob"))) == "password can not be blank"
    assert refused(lambda: users.create(UserInfo(password="x"))) == "username can not be blank"
    assert refused(lambda: users.update(UserInfo(username="eve"))) == "The user is not exist"
    assert refused(lambda: users.acl("User:eve")) == "The subject is not exist."
    assert refused(lambda: users.set_policies("Robot:eve", [])) == "The subject is null."
    assert refused(lambda: users.delete_policies("User:alice", "Custom", None)) == "The acl is not exist."
    assert "a username has" in refused(lambda: users.create(UserInfo(username="a b", password="x")))
    users.delete("eve")
    users.update(UserInfo(username="alice", password="changed"))
    assert server.sign_in("alice", "changed").name == "alice"
    assert [info.username for info in users.infos(None)] == ["alice", "root"]
    assert [info.username for info in users.infos("oo")] == ["root"]
    assert all(info.password is None for info in users.infos(None))


def test_policies_are_listed_by_subject_and_resource():
    server = Server()
    server.users.set_policies("User:alice", [custom("ALLOW Topic:T Pub", "ALLOW Group:G Sub")])
    assert [acl.subject for acl in server.users.acls(None, None)] == ["User:alice"]
    (acl,) = server.users.acls("ali", "Group")
    assert acl.policies == [custom("Allow Group:G Sub")]
    assert server.users.acls("root", None) == []


def test_a_change_is_recorded_before_it_takes_effect():
    server = Server()

    def fails(name: str, account: Account | None) -> None:
        raise OSError("disk")

    server.users._record = fails
    with pytest.raises(OSError, match="disk"):
        server.users.update(UserInfo(username="alice", password="changed"))
    assert server.sign_in("alice", "secret").name == "alice"


def test_a_table_is_copied_from_a_master():
    master, slave = Server(), Server()
    master.users.create(UserInfo(username="bob", password="b"))
    master.users.set_policies("User:bob", [custom("ALLOW Topic:T Pub")])
    slave.users.create(UserInfo(username="carol", password="c"))
    slave.users.copy(master.users.file())
    assert slave.users.file() == master.users.file()
    assert slave.may(slave.sign_in("bob", "b")) == "yes"
    assert refused(lambda: slave.sign_in("carol", "c")) == "User:carol is not found."
    again = Users(record=lambda *_: None)
    for name, account in slave.recorded:
        again.apply(name, account)
    assert again.file() == master.users.file()


def test_no_text_of_a_user_shows_its_password():
    server = Server()
    shown = (
        f"{server.users.file()!r} {server.users.get('alice')!r} {UserInfo(username='a', password='secret')}"
    )
    assert "secret" not in shown


class TestTwoPasswords:
    """A user temporarily has a second password, so that its clients can switch one by one."""

    def test_both_are_valid_until_one_is_withdrawn(self):
        server = Server()
        server.users.update(UserInfo(username="alice", second_password="new"))
        for password in ("secret", "new"):
            assert server.sign_in("alice", password).name == "alice"
            assert server.access.by_password(server.peer, "alice", password).name == "alice"
        assert refused(lambda: server.sign_in("alice", "guessed")) == "check signature failed."
        signed_in = [server.access.by_password(server.peer, "alice", each) for each in ("secret", "new")]
        server.users.update(UserInfo(username="alice", withdraw="first"))
        assert [server.access.may_go_on(each) for each in signed_in] == [False, True]
        assert refused(lambda: server.sign_in("alice", "secret")) == "check signature failed."
        assert server.sign_in("alice", "new").name == "alice"

    def test_the_second_can_be_withdrawn_too(self):
        server = Server()
        server.users.update(UserInfo(username="alice", second_password="new"))
        server.users.update(UserInfo(username="alice", withdraw="Second"))
        assert server.sign_in("alice", "secret").name == "alice"
        assert refused(lambda: server.sign_in("alice", "new")) == "check signature failed."

    def test_a_new_password_takes_the_place_of_both(self):
        """Tools that know only one password expect this."""
        server = Server()
        server.users.update(UserInfo(username="alice", second_password="new"))
        server.users.update(UserInfo(username="alice", password="third"))
        for password in ("secret", "new"):
            refused(lambda password=password: server.sign_in("alice", password))
        assert server.sign_in("alice", "third").name == "alice"

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ([{"withdraw": "first"}], "the user has one password only"),
            ([{"withdraw": "both"}], "withdraw: first or second"),
            ([{"second_password": "secret"}], "this is the user's password already"),
            ([{"second_password": "new"}] * 2, ""),
            ([{"second_password": "new"}, {"second_password": "newer"}], "withdraw one first"),
            ([{"second_password": "x" * 1025}], "1024 characters at most"),
        ],
    )
    def test_what_cannot_be(self, changes: list[dict[str, str]], reason: str):
        server = Server()
        *before, last = (UserInfo(username="alice", **each) for each in changes)
        for change in before:
            server.users.update(change)
        if reason:
            assert reason in refused(lambda: server.users.update(last))
        else:
            server.users.update(last)  # The command was repeated, as one of the brokers had failed.
        assert server.sign_in("alice", "secret").name == "alice"

    def test_how_many_there_are_is_shown(self):
        server = Server()
        server.users.update(UserInfo(username="alice", second_password="new"))
        assert [each.passwords for each in server.users.infos(None)] == [2, None]
        for kept in (server.users.account("alice"), server.users.get("alice")):
            assert "new" not in repr(kept)
