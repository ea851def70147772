"""Users and policies as documents: the bodies of Apache's requests for them, and the broker's file
(config/users.json).

    UserInfo    username, password, userType (Super, Normal), userStatus (enable, disable);
                ours: secondPassword, withdraw (first, second), passwords (how many)
    AclInfo     subject ("User:alice"), policies ─► entries: resource, actions, sourceIps, decision
    Account     one user with both, in config/users.json

No repr contains a password. Upstream: remoting/protocol/body/UserInfo.java, AclInfo.java.
"""

import msgspec

from libramq.formats.document import Document


class UserInfo(Document, frozen=True, kw_only=True, omit_defaults=True):
    """A user; an update leaves absent fields unchanged. passwords: the number of passwords, if not one."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None
    second_password: str | None = None
    withdraw: str | None = None
    passwords: int | None = None

    def __repr__(self) -> str:
        """Return a representation without passwords."""
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntryInfo(Document, frozen=True, kw_only=True):
    """A decision about one resource or all that match its pattern."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Document, frozen=True, kw_only=True):
    """A policy: Custom, whose entries take precedence, or Default."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Document, frozen=True, kw_only=True):
    """The policies of a subject."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


class Account(Document, frozen=True, kw_only=True, omit_defaults=True):
    """A user with its policies in one table entry, so that neither outlives the other.

    second_password: also valid; empty if there is none.
    """

    password: str
    user_type: str
    user_status: str
    second_password: str = ""
    policies: list[PolicyInfo] = []

    def __repr__(self) -> str:
        """Return a representation without passwords."""
        return f"Account({self.user_type!r}, {self.user_status!r}, {self.policies!r})"

    def info(self, name: str) -> UserInfo:
        """Return the user as in responses, without its passwords."""
        count = len(self.passwords)
        return UserInfo(
            username=name,
            user_type=self.user_type,
            user_status=self.user_status,
            passwords=count if count > 1 else None,
        )

    @property
    def passwords(self) -> tuple[str, ...]:
        """Return the passwords, each of which authenticates the user."""
        return (self.password, self.second_password) if self.second_password else (self.password,)

    def acl(self, name: str) -> AclInfo:
        """Return the user's policies."""
        return AclInfo(subject=f"User:{name}", policies=self.policies)


class UsersFile(Document, frozen=True, kw_only=True):
    """The content of config/users.json."""

    users: dict[str, Account] = {}


def initial_user(text: str) -> UserInfo:
    """Read Apache's initAuthenticationUser; raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=UserInfo)
