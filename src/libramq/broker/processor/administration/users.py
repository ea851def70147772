"""AUTH_CREATE_USER and similar requests: who may create and change users and policies, what is never returned
(passwords), and the table for slaves.

No answer contains a password, so mqadmin's copyUser finds none to copy; Apache's broker returns it to all who
may inspect the cluster. Upstream: AdminBrokerProcessor.java, broker/auth/converter/*.java.
"""

from typing import Any, Final

import msgspec

from libramq.auth.access_control import AccessControl
from libramq.auth.policies import parse_policy_type
from libramq.auth.users import Users, UserType
from libramq.broker.config import BrokerConfig
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.formats import fastjson
from libramq.formats.access import AclInfo, UserInfo
from libramq.formats.document import encode_body
from libramq.kernel.connection import Principal
from libramq.logs import get_logger
from libramq.remoting import headers as h
from libramq.remoting.credentials import is_signed_for
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, reply_encoded
from libramq.rpc.request import Request, serves

log = get_logger(__name__)

#: Apache's texts for requests by other users.
_SUPER_CREATED: Final = "The super user can only be create by super user"
_SUPER_CHANGED: Final = "The super user can only be update by super user"


class UserAdministration:
    """The processor of these requests.

    access: None while clients are not authenticated. Changes are then refused, because anybody could create a
    super user for later.
    """

    def __init__(self, users: Users, access: AccessControl | None, config: BrokerConfig) -> None:
        self._users = users
        self._access = access
        self._config = config

    @serves(R.AUTH_CREATE_USER)
    def create_user(self, request: Request) -> Outcome:
        """3001: create a user."""
        info, is_super = self._info(request), self._is_super(request.principal)
        if _asks_for_super(info) and not is_super:
            raise broker_error(ResponseCode.SYSTEM_ERROR, _SUPER_CREATED)
        if (
            self._config.is_slave
            and info.username is not None
            and self._users.account(info.username) is not None
        ):
            return self.update_user(request)  # It has been copied from the master meanwhile.
        self._users.create(info)
        return _changed("user created", request, user=info.username)

    @serves(R.AUTH_UPDATE_USER)
    def update_user(self, request: Request) -> Outcome:
        """3002: change a user's password, type or status."""
        info = self._info(request)
        self._require_may_change(info.username, request.principal)
        if _asks_for_super(info) and not self._is_super(request.principal):
            raise broker_error(ResponseCode.SYSTEM_ERROR, _SUPER_CHANGED)
        self._users.update(info)
        return _changed("user changed", request, user=info.username)

    @serves(R.AUTH_DELETE_USER)
    def delete_user(self, request: Request) -> Outcome:
        """3003: remove a user with its policies."""
        header: h.UserHeader = request.header
        self._require_may_change(header.username, request.principal)
        self._users.delete(header.username)
        return _changed("user deleted", request, user=header.username)

    @serves(R.AUTH_GET_USER)
    def user(self, request: Request) -> Outcome:
        """3004: return a user without its password; empty if there is none."""
        header: h.UserHeader = request.header
        if not header.username.strip():
            return Reply(ResponseCode.INVALID_PARAMETER, "The username is blank")
        account = self._users.account(header.username)
        return _answer(account.info(header.username) if account is not None else None)

    @serves(R.AUTH_LIST_USER)
    def list_users(self, request: Request) -> Outcome:
        """3005: return users without their passwords."""
        header: h.UserFilterHeader = request.header
        return _answer(self._users.infos(header.filter) or None)

    @serves(R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL)
    def set_policies(self, request: Request) -> Outcome:
        """3006, 3007: add entries to a user's policies; as in Apache's broker, the body names the user."""
        self._is_super(request.principal)
        header: h.SubjectHeader = request.header
        info: AclInfo = request.body
        subject = info.subject or header.subject
        self._users.set_policies(subject, info.policies or [])
        return _changed("policies changed", request, subject=subject)

    @serves(R.AUTH_DELETE_ACL)
    def delete_policies(self, request: Request) -> Outcome:
        """3008: remove a user's entry for a resource, or all of the user's entries."""
        self._is_super(request.principal)
        header: h.DeletePoliciesHeader = request.header
        kind = parse_policy_type(header.policy_type)
        self._users.delete_policies(header.subject, kind, header.resource)
        return _changed("policies deleted", request, subject=header.subject, resource=header.resource)

    @serves(R.AUTH_GET_ACL)
    def policies(self, request: Request) -> Outcome:
        """3009: return a user's policies; empty if it has none."""
        header: h.SubjectHeader = request.header
        return _answer(self._users.acl(header.subject))

    @serves(R.AUTH_LIST_ACL)
    def list_policies(self, request: Request) -> Outcome:
        """3010: return the policies of all users, or of some."""
        header: h.PolicyFilterHeader = request.header
        return _answer(self._users.acls(header.subject_filter, header.resource_filter) or None)

    @serves(R.SLAVE_USERS)
    def table(self, request: Request) -> Outcome:
        """31026: return the whole table with passwords, to a slave that signs like the cluster's brokers."""
        credentials = self._config.credentials
        if credentials is None or not is_signed_for(request.command, credentials, self._config.address):
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                "the request is not signed with the innerClientAuthenticationCredentials of this cluster",
            )
        file = self._users.file()
        return reply_encoded(lambda: encode_body(file))

    def _info(self, request: Request) -> UserInfo:
        header: h.UserHeader = request.header
        if not header.username.strip():
            raise broker_error(ResponseCode.INVALID_PARAMETER, "The username is blank")
        info: UserInfo = request.body
        return msgspec.structs.replace(info, username=header.username)

    def _require_may_change(self, name: str | None, principal: Principal) -> None:
        user = self._users.get(name or "")
        if not self._is_super(principal) and user is not None and user.is_super:
            raise broker_error(ResponseCode.NO_PERMISSION, _SUPER_CHANGED)

    def _is_super(self, principal: Principal) -> bool:
        """Return whether the sender is a super user; raises BrokerError if clients are not authenticated."""
        if self._access is None:
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                "users are changed only while clients are authenticated: set authenticationEnabled=true, and "
                "initAuthenticationUser for the first one",
            )
        return self._access.is_super(principal)


def _asks_for_super(info: UserInfo) -> bool:
    return (info.user_type or "").lower() == UserType.SUPER.lower()


def _answer(value: Any) -> Reply:
    """Return a document; no body for None, as mqadmin expects."""
    return Reply(body=fastjson.dumps_standard(value) if value is not None else b"")


def _changed(event: str, request: Request, **named: str | None) -> Outcome:
    log.info(event, by=request.principal.name, peer=request.peer.address, **named)
    return SUCCESS
