"""Users: who may sign in, what each may do, and how many there may be.

Every check reads this table, so a change takes effect with the next request, even on an open connection.
Upstream: auth/authentication/manager/AuthenticationMetadataManagerImpl.java,
authorization/manager/AuthorizationMetadataManagerImpl.java.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from libramq.auth.policies import Policies, PolicyType, merged, named, refused, without
from libramq.formats.access import Account, AclInfo, PolicyInfo, UserInfo, UsersFile

#: Ours: operators create users one by one, and the table is one document.
USERS_MAX: Final = 10_000
#: Ours: as for group names.
NAME_CHARACTERS_MAX: Final = 255
PASSWORD_CHARACTERS_MAX: Final = 1_024


class UserType(StrEnum):
    """The type of a user: a super user needs no policies."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """The status of a user: a disabled one is refused."""

    ENABLE = "enable"
    DISABLE = "disable"


class Withdrawn(StrEnum):
    """The choice of which of a user's two passwords to withdraw."""

    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class User:
    """A user, compiled for checks. secrets: one or two passwords with which requests may be signed."""

    name: str
    secrets: tuple[bytes, ...] = field(repr=False)
    is_super: bool
    is_enabled: bool
    policies: Policies


class Users:
    """The table of users. record: journals a change (None: a removal) before it takes effect."""

    def __init__(self, *, record: Callable[[str, Account | None], None]) -> None:
        self._record = record
        self._accounts: dict[str, Account] = {}
        self._users: dict[str, User] = {}
        self._observers: list[Callable[[], None]] = []

    def observe(self, changed: Callable[[], None]) -> None:
        """Register a function to be called after each change."""
        self._observers.append(changed)

    def get(self, name: str) -> User | None:
        """Return a user."""
        return self._users.get(name)

    def account(self, name: str) -> Account | None:
        """Return a user's entry, which contains the password."""
        return self._accounts.get(name)

    def create(self, info: UserInfo) -> None:
        """Create a user; raises NoPermission with Apache's messages."""
        name = _valid_name(info.username)
        if not (info.password or "").strip():
            raise refused("password can not be blank")
        if name in self._accounts:
            raise refused("The user is existed")
        if len(self._accounts) >= USERS_MAX:
            raise refused(f"{USERS_MAX} users are the limit")
        self._change(name, _changed(Account(password="", user_type="Normal", user_status="enable"), info))

    def create_first(self, info: UserInfo) -> None:
        """Create the super user that a configuration names, unless the user exists; raises NoPermission."""
        if (info.username or "") not in self._accounts:
            self.create(msgspec.structs.replace(info, user_type=UserType.SUPER, user_status=None))

    def update(self, info: UserInfo) -> None:
        """Change the fields that are set; raises NoPermission."""
        name = _valid_name(info.username)
        self._change(name, _changed(self._existing(name, "The user is not exist"), info))

    def delete(self, name: str) -> None:
        """Remove a user with its policies; no-op if there is none."""
        if _valid_name(name) in self._accounts:
            self._change(name, None)

    def infos(self, part: str | None) -> list[UserInfo]:
        """Return the users whose name contains a part (None: all), without passwords."""
        return [self._accounts[name].info(name) for name in sorted(self._accounts) if (part or "") in name]

    def set_policies(self, subject: str | None, policies: Sequence[PolicyInfo]) -> None:
        """Add entries to a user's policies, replacing those for the same resources; raises NoPermission."""
        name = user_of(subject)
        account = self._existing(name, f"The subject of User:{name} is not exist.")
        changed = merged(account.policies, policies)
        self._change(name, msgspec.structs.replace(account, policies=changed))

    def delete_policies(self, subject: str | None, kind: PolicyType, resource: str | None) -> None:
        """Remove the entry for a resource, or all entries; raises NoPermission."""
        name = user_of(subject)
        account = self._existing(name, "The subject is not exist.")
        if not account.policies:
            raise refused("The acl is not exist.")
        kept = without(account.policies, kind, resource) if resource else []
        self._change(name, msgspec.structs.replace(account, policies=kept))

    def acl(self, subject: str | None) -> AclInfo | None:
        """Return a user's policies; None if it has none. Raises NoPermission."""
        name = user_of(subject)
        account = self._existing(name, "The subject is not exist.")
        return account.acl(name) if account.policies else None

    def acls(self, part: str | None, resource_part: str | None) -> list[AclInfo]:
        """Return the policies of subjects that contain `part` (None: of all subjects).

        resource_part: keep only entries for resources that contain it; None: all entries.
        """
        found = []
        for name in sorted(self._accounts):
            acl = self._accounts[name].acl(name)
            policies = [kept for each in acl.policies or () if (kept := _naming(each, resource_part)).entries]
            if policies and (part or "") in (acl.subject or ""):
                found.append(msgspec.structs.replace(acl, policies=policies))
        return found

    def copy(self, file: UsersFile) -> None:
        """Replace the table with the master's, at a slave."""
        names = {*self._accounts, *file.users}
        for name in [each for each in sorted(names) if self._accounts.get(each) != file.users.get(each)]:
            self._change(name, file.users.get(name))

    def apply(self, name: str, account: Account | None) -> None:
        """Apply a recorded change."""
        if account is None:
            self._accounts.pop(name, None)
            self._users.pop(name, None)
            return
        self._users[name] = User(
            name,
            tuple(each.encode(errors="surrogatepass") for each in account.passwords),
            is_super=account.user_type == UserType.SUPER,
            is_enabled=account.user_status == UserStatus.ENABLE,
            policies=Policies(account.policies),
        )
        self._accounts[name] = account

    def file(self) -> UsersFile:
        """Return the content of config/users.json."""
        return UsersFile(users=dict(self._accounts))

    def _change(self, name: str, account: Account | None) -> None:
        if account is not None:
            Policies(account.policies)  # Raises before an invalid policy is recorded, even a master's.
        self._record(name, account)
        self.apply(name, account)
        for changed in self._observers:
            changed()

    def _existing(self, name: str, otherwise: str) -> Account:
        account = self._accounts.get(name)
        if account is None:
            raise refused(otherwise)
        return account


def user_of(subject: str | None) -> str:
    """Return the user name in a subject, "User:alice"; raises NoPermission."""
    kind, _, name = (subject or "").partition(":")
    if kind.lower() != "user":
        raise refused("The subject is null.")
    return _valid_name(name)


def _changed(account: Account, info: UserInfo) -> Account:
    password, second = _changed_passwords(account, info)
    if max(len(password), len(second)) > PASSWORD_CHARACTERS_MAX:
        raise refused(f"a password has {PASSWORD_CHARACTERS_MAX} characters at most")
    return msgspec.structs.replace(
        account,
        password=password,
        second_password=second,
        user_type=named(UserType, info.user_type) or account.user_type,
        user_status=named(UserStatus, info.user_status) or account.user_status,
    )


def _changed_passwords(account: Account, info: UserInfo) -> tuple[str, str]:
    """Return a user's password and second password; empty if there is none.

    Setting a password replaces both, as tools that know only one password expect.
    """
    password, second = account.password, account.second_password
    if info.password is not None and info.password.strip():
        password, second = info.password, ""
    added = info.second_password or ""
    if added.strip() and added != second:
        if second:
            raise refused("the user has two passwords already: withdraw one first")
        if added == password:
            raise refused("this is the user's password already")
        second = added
    withdrawn = named(Withdrawn, info.withdraw)
    if info.withdraw and withdrawn is None:
        raise refused("withdraw: first or second")
    if withdrawn is not None and not second:
        raise refused("the user has one password only")
    if withdrawn is Withdrawn.FIRST:
        password = second
    return password, second if withdrawn is None else ""


def _naming(policy: PolicyInfo, part: str | None) -> PolicyInfo:
    entries = [entry for entry in policy.entries or () if (part or "") in (entry.resource or "")]
    return msgspec.structs.replace(policy, entries=entries)


def _valid_name(name: str | None) -> str:
    if not (name or "").strip():
        raise refused("username can not be blank")
    assert name is not None
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or any(map(str.isspace, name)):
        raise refused(f"a username has {NAME_CHARACTERS_MAX} characters at most, none of them blank")
    return name
