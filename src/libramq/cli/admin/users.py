"""The admin commands about users and their policies, under mqadmin's names.

mqadmin's copyUser is missing, because brokers never return passwords.
"""

import asyncio
import getpass
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

from libramq.cli.admin.frame import Answer, Changed, Operator, Shown, Table, Target, command, plain
from libramq.cli.lazy import audits, calls, documents
from libramq.cli.printable import printable, time_text
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.formats.access import AclInfo
    from libramq.rpc.call import Call

app = Typer()

Username = Annotated[str, Option("-u", "--username", help="The user.")]
Password = Annotated[
    str | None,
    Option(
        "-p",
        "--password",
        help="The password, which is visible in the list of processes; by default the command prompts for it "
        "or reads a line of its input.",
    ),
]
Subject = Annotated[str, Option("-s", "--subject", help="The user, as in User:alice.")]
Resources = Annotated[
    str, Option("-r", "--resources", help="As in Topic:orders,Group:bill*,Cluster:*; separated by commas.")
]
Actions = Annotated[
    str,
    Option(
        "-a", "--actions", help="Pub, Sub, Create, Update, Delete, Get, List or All; separated by commas."
    ),
]
Decided = Annotated[str, Option("-d", "--decision", help="Allow or Deny.")]
Sources = Annotated[
    str | None,
    Option("-i", "--sourceIp", help="Only from these addresses and networks, separated by commas."),
]

POLICIES = "subject, policyType, resource, actions, sourceIps, decision"


@command(app, "createUser")
async def create_user(
    *,
    username: Username,
    password: Password = None,
    user_type: Annotated[str | None, Option("-t", "--userType", help="Super or Normal.")] = None,
    admin: Operator,
    target: Changed,
) -> Answer:
    """Create a user; a normal one may do nothing without policies."""
    info = documents.UserInfo(username=username, password=_password(password), user_type=user_type)
    return await _changed(admin, target, calls.create_user(info), "create user to", username=username)


@command(app, "updateUser")
async def update_user(
    *,
    username: Username,
    password: Annotated[
        str | None,
        Option("-p", "--password", help="A new password, which replaces all others; - prompts for it."),
    ] = None,
    second: Annotated[
        str | None,
        Option("--second", help="A second password, valid beside the first; - prompts for it."),
    ] = None,
    withdraw: Annotated[
        str | None,
        Option("--withdraw", help="Which of two passwords to withdraw: first or second."),
    ] = None,
    user_type: Annotated[str | None, Option("-t", "--userType", help="Super or Normal.")] = None,
    user_status: Annotated[str | None, Option("-s", "--userStatus", help="enable or disable.")] = None,
    admin: Operator,
    target: Changed,
) -> Answer:
    """Change a user, with effect from the user's next request."""
    new, added = (_password(None) if each == "-" else each for each in (password, second))
    info = documents.UserInfo(
        username=username,
        password=new,
        second_password=added,
        withdraw=withdraw,
        user_type=user_type,
        user_status=user_status,
    )
    if info == documents.UserInfo(username=username):
        raise ConfigError("nothing is changed: give -p, -t, -s, --second or --withdraw")
    return await _changed(admin, target, calls.update_user(info), "update user to", username=username)


@command(app, "deleteUser")
async def delete_user(*, username: Username, admin: Operator, target: Changed) -> Answer:
    """Delete a user with its policies."""
    return await _changed(
        admin, target, calls.delete_user(username=username), "delete user to", username=username
    )


@command(app, "getUser")
async def get_user(*, username: Username, admin: Operator, target: Shown) -> Answer:
    """Show a user; passwords are never shown."""
    found = await admin.ask_targets(calls.user(username=username), target)
    return _users([info for info in found.values() if info is not None][:1])


@command(app, "listUser")
async def list_users(
    *,
    part: Annotated[str | None, Option("-f", "--filter", help="Only names that contain this.")] = None,
    admin: Operator,
    target: Shown,
) -> Answer:
    """List users; passwords are never shown."""
    found = await admin.ask_targets(calls.users(filter=part), target)
    return _users(next((infos for infos in found.values() if infos), []))


def _acl_command(verb: str, about: str) -> None:
    async def change(
        *,
        subject: Subject,
        resources: Resources,
        actions: Actions,
        decision: Decided,
        source_ips: Sources = None,
        admin: Operator,
        target: Changed,
    ) -> Answer:
        made = calls.create_policies if verb == "create" else calls.update_policies
        call = made(_policies(subject, resources, actions, source_ips, decision))
        return await _changed(admin, target, call, f"{verb} acl to", subject=subject)

    change.__doc__ = about
    command(app, f"{verb}Acl")(change)


_acl_command("create", "Allow or deny a user actions on resources.")
_acl_command("update", "Change the actions that a user is allowed or denied on resources.")


@command(app, "deleteAcl")
async def delete_acl(
    *,
    subject: Subject,
    resource: Annotated[
        str | None, Option("-r", "--resources", help="Only the entry for this resource.")
    ] = None,
    admin: Operator,
    target: Changed,
) -> Answer:
    """Delete a user's policies, or the entry for a resource."""
    return await _changed(
        admin,
        target,
        calls.delete_policies(subject=subject, resource=resource),
        "delete acl to",
        subject=subject,
    )


@command(app, "getAcl")
async def get_acl(*, subject: Subject, admin: Operator, target: Shown) -> Answer:
    """Show a user's policies."""
    found = await admin.ask_targets(calls.policies(subject=subject), target)
    return _acls([acl for acl in found.values() if acl is not None][:1])


@command(app, "listAcl")
async def list_acls(
    *,
    subject: Annotated[str | None, Option("-s", "--subject", help="Only subjects that contain this.")] = None,
    resource: Annotated[
        str | None, Option("-r", "--resource", help="Only resources that contain this.")
    ] = None,
    admin: Operator,
    target: Shown,
) -> Answer:
    """List the policies of all users."""
    call = calls.all_policies(subject_filter=subject, resource_filter=resource)
    found = await admin.ask_targets(call, target)
    return _acls(next((acls for acls in found.values() if acls), []))


@command(app, "copyAcl")
async def copy_acl(
    *,
    source: Annotated[str, Option("-f", "--fromBroker", help="The broker that has the policies.")],
    destination: Annotated[str, Option("-t", "--toBroker", help="The broker that gets them.")],
    subjects: Annotated[
        str | None, Option("-s", "--subjects", help="Only these users, separated by commas.")
    ] = None,
    admin: Operator,
) -> Answer:
    """Copy policies from one broker to another, where the users must exist."""
    call = calls.all_policies(subject_filter=None, resource_filter=None)
    wanted = None if subjects is None else set(subjects.split(","))
    copied = []
    for acl in await admin.ask(source, call):
        if wanted is None or acl.subject in wanted:
            await admin.ask(destination, calls.update_policies(acl))
            copied.append(acl.subject or "")
    shown = (f"copy acl of {each} from {source} to {destination} success." for each in copied)
    return Answer({"subjects": copied, "from": source, "to": destination}, *shown)


@command(app, "audit", no_args_is_help=False)
async def audit(
    *,
    kind: Annotated[
        str | None,
        Option("-k", "--kind", help="Only created, changed, deleted, reset, signedIn or refused."),
    ] = None,
    user: Annotated[str | None, Option("-u", "--username", help="Only of this user.")] = None,
    last: Annotated[int, Option("-m", "--maxNum", min=1, help="The newest events, at most this many.")] = 50,
    file: Annotated[
        Path | None, Option("--file", help="Read the file of a name server's auditPath, on its machine.")
    ] = None,
    admin: Operator,
) -> Answer:
    """Show changes, sign-ins and refusals, as recorded by brokers with users."""
    if file is not None:
        events = partial(audits.file_events, file)
    else:
        events = partial(audits.audit_events, admin.namesrv)
    found = await asyncio.to_thread(events, last=last, kind=kind, user=user)
    shown = [
        {
            "time": time_text(event.at_ms),
            "broker": event.broker,
            "kind": event.kind,
            "user": printable(event.user or "–"),
            "host": event.host,
            "request": event.request,
            "about": printable(event.reason or ", ".join(event.resources)),
            "count": event.count,
        }
        for event in found
    ]
    columns = "time, broker, kind, user, host: from, request, about, count: times"
    return Answer([plain(event) for event in found], Table(shown, columns))


def _password(typed: str | None) -> str:
    """Return a password: from the command line, a prompt, or a line of the input."""
    if typed is not None:
        return typed
    if sys.stdin.isatty():
        return getpass.getpass("Password: ")
    return sys.stdin.readline().rstrip("\n")


def _policies(subject: str, resources: str, actions: str, source_ips: str | None, decision: str) -> "AclInfo":
    entries = [
        documents.PolicyEntryInfo(
            resource=resource.strip(),
            actions=[action.strip() for action in actions.split(",")],
            source_ips=[ip.strip() for ip in source_ips.split(",")] if source_ips else None,
            decision=decision,
        )
        for resource in resources.split(",")
    ]
    return documents.AclInfo(subject=subject, policies=[documents.PolicyInfo(entries=entries)])


async def _changed(admin: Operator, target: Target, call: "Call[None]", text: str, **named: str) -> Answer:
    """Change users at the target's brokers, and return the answer that lists them."""
    brokers = await admin.ask_targets(call, target)
    return Answer({**named, "brokers": list(brokers)}, *(f"{text} {each} success." for each in brokers))


def _users(infos: list[Any]) -> Answer:
    found = [plain(info) for info in infos]
    return Answer(
        found,
        Table([{"passwords": 1, **each} for each in found], "username, userType, userStatus, passwords"),
    )


def _acls(acls: list[Any]) -> Answer:
    shown = [
        {
            "subject": acl.subject,
            "policyType": policy.policy_type,
            "resource": entry.resource,
            "actions": ", ".join(entry.actions or ()),
            "sourceIps": ", ".join(entry.source_ips or ()),
            "decision": entry.decision,
        }
        for acl in acls
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]
    return Answer([plain(acl) for acl in acls], Table(shown, POLICIES))
