"""Policies: which actions on which resources a user is allowed or denied, from which addresses, and which
entry decides if several match.

    Custom policy ─► its most specific matching entry   ─┐
    else Default policy ─► likewise                      ├─► ALLOW or DENY
    else no match ─► refused                             ┘

    Topic:orders   before   Topic:ord*   before   Topic:o*   before   Topic:*   before   *

An entry matches if its resource, one of its actions and one of its addresses do. A policy has one entry for
each resource, so two are never equally specific.
Upstream: auth/authorization/chain/AclAuthorizationHandler.java, model/Resource.java, PolicyEntry.java,
Environment.java; AuthorizationMetadataManagerImpl.validate.
"""

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeVar

from libramq.auth.operation import Action, Actions, Resource, ResourceKind
from libramq.codes import ResponseCode
from libramq.errors import NoPermission
from libramq.formats.access import PolicyEntryInfo, PolicyInfo

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
E = TypeVar("E", bound=StrEnum)

#: Every action, in a policy.
ALL_ACTIONS: Final = "All"
#: Every resource, in a policy.
ANY_RESOURCE: Final = "*"
#: Ours: entries of one user, of 100 bytes; each is an operator's decision.
ENTRIES_MAX: Final = 1_000
#: Ours: a pattern need not be longer than the names of topics and groups.
RESOURCE_CHARACTERS_MAX: Final = 300
#: Ours: addresses of one entry; a network is one.
SOURCES_MAX: Final = 100


def refused(remark: str) -> NoPermission:
    """Return the error for a request that is not permitted, or an invalid change of users."""
    return NoPermission(ResponseCode.NO_PERMISSION, remark)


class Decision(StrEnum):
    """The decision of an entry."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    """The two policies of a user, in the order in which they are evaluated."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


@dataclass(frozen=True, slots=True)
class Pattern:
    """The resources that an entry covers. kind: None is every kind. name: a prefix, if is_prefix."""

    kind: ResourceKind | None
    name: str
    is_prefix: bool

    def fits(self, resource: Resource) -> bool:
        """Return whether a resource matches the pattern."""
        if self.kind is not None and self.kind is not resource.kind:
            return False
        return resource.name.startswith(self.name) if self.is_prefix else resource.name == self.name

    @property
    def specificity(self) -> tuple[bool, int]:
        """Return the sort key of entries with patterns; the highest matching one decides."""
        return self.kind is not None, len(self.name)


@dataclass(frozen=True, slots=True)
class Entry:
    """A decision on resources and actions. networks: the client addresses that it covers; empty: all."""

    pattern: Pattern
    actions: frozenset[Action]
    networks: tuple[Network, ...]
    decision: Decision

    def fits(self, resource: Resource, actions: Actions, host: str) -> bool:
        """Return whether the entry covers one of these actions on a resource, from a host."""
        return (
            not self.actions.isdisjoint(actions)
            and self.pattern.fits(resource)
            and (not self.networks or _is_within(host, self.networks))
        )


class _Policy:
    """The entries of one type: names are looked up, patterns are tried in the order of specificity."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        patterns = [entry for entry in entries if entry.pattern.is_prefix]
        self._named = {
            (entry.pattern.kind, entry.pattern.name): entry
            for entry in entries
            if not entry.pattern.is_prefix
        }
        self._patterns = sorted(patterns, key=lambda entry: entry.pattern.specificity, reverse=True)

    def entry(self, resource: Resource, actions: Actions, host: str) -> Entry | None:
        """Return the most specific matching entry."""
        named = self._named.get(resource)
        if named is not None and named.fits(resource, actions, host):
            return named
        return next((each for each in self._patterns if each.fits(resource, actions, host)), None)


class Policies:
    """A user's policies, compiled for evaluation. Raises NoPermission for invalid ones."""

    def __init__(self, policies: Sequence[PolicyInfo]) -> None:
        entries = [[parsed(each) for each in _of_type(policies, kind)] for kind in PolicyType]
        self._by_type = [_Policy(each) for each in entries if each]

    def decide(self, resource: Resource, actions: Actions, host: str) -> Decision | None:
        """Return the decision on alternative actions on a resource; None if no entry matches."""
        for policy in self._by_type:
            entry = policy.entry(resource, actions, host)
            if entry is not None:
                return entry.decision
        return None


def merged(current: Sequence[PolicyInfo], changes: Sequence[PolicyInfo]) -> list[PolicyInfo]:
    """Return policies after a change: a new entry replaces one for the same resource. Raises NoPermission."""
    if not changes:
        raise refused("The policies is empty.")
    result = {kind: _keyed(_of_type(current, kind)) for kind in PolicyType}
    for policy in changes:
        if not policy.entries:
            raise refused("The policy entries is empty.")
        result[parse_policy_type(policy.policy_type)] |= _keyed(_normal(entry) for entry in policy.entries)
    if sum(map(len, result.values())) > ENTRIES_MAX:
        raise refused(f"{ENTRIES_MAX} entries of one user are the limit; use prefixes")
    return _listed(result)


def without(current: Sequence[PolicyInfo], kind: PolicyType, resource: str) -> list[PolicyInfo]:
    """Return policies without the entry for a resource."""
    result = {each: _keyed(_of_type(current, each)) for each in PolicyType}
    result[kind].pop(parse_pattern(resource), None)
    return _listed(result)


def parse_policy_type(text: str | None) -> PolicyType:
    """Return the type of a policy from the text that Apache's tools send; Custom by default."""
    return named(PolicyType, text) or PolicyType.CUSTOM


def parse_pattern(text: str | None) -> Pattern:
    """Parse a resource of a policy: "Topic:orders", "Topic:ord*", "Topic:*" or "*"; raises NoPermission."""
    if not text:
        raise refused("The resource is null.")
    if text == ANY_RESOURCE:
        return Pattern(None, "", is_prefix=True)
    kind_text, _, name = text.partition(":")
    kind = named(ResourceKind, kind_text)
    if kind is None:
        raise refused("The resource type is null.")
    is_prefix = name.endswith("*")
    stem = name.removesuffix("*")
    if not name or "*" in stem or len(name) > RESOURCE_CHARACTERS_MAX or not name.isprintable():
        raise refused("The resource pattern is null: write Topic:name, Topic:prefix* or Topic:*")
    return Pattern(kind, stem, is_prefix=is_prefix)


def parsed(info: PolicyEntryInfo) -> Entry:
    """Parse one entry; raises NoPermission with Apache's message if it is invalid."""
    pattern = parse_pattern(info.resource)
    actions = _actions(info.actions or ())
    sources = info.source_ips or ()
    if len(sources) > SOURCES_MAX:
        raise refused(f"{SOURCES_MAX} source ips of one entry are the limit; use networks")
    decision = named(Decision, info.decision)
    if decision is None:
        raise refused("The decision is null or illegal.")
    return Entry(pattern, actions, tuple(_network(text) for text in sources), decision)


def named(kind: type[E], text: str | None) -> E | None:
    """Return the member with this value, ignoring case; None if there is none."""
    return next((each for each in kind if each.value.lower() == (text or "").lower()), None)


def _actions(texts: Iterable[str]) -> frozenset[Action]:
    if any(text.lower() == "any" for text in texts):
        raise refused("The actions can not be Any.")
    if any(text.lower() == ALL_ACTIONS.lower() for text in texts):
        return frozenset(Action)
    found = frozenset(action for text in texts if (action := named(Action, text)) is not None)
    if not found:
        raise refused("The actions is empty.")
    return found


def _action_name(text: str) -> str | None:
    return ALL_ACTIONS if text.lower() == ALL_ACTIONS.lower() else named(Action, text)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise refused("The source ip is invalid." if text.strip() else "The source ip is empty.") from None


def _is_within(host: str, networks: Collection[Network]) -> bool:
    address = _address(host)
    return address is not None and any(address in network for network in networks)


@lru_cache(maxsize=10_000)  # As many hosts as connections; parsing takes 1 µs.
def _address(host: str) -> Address | None:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _of_type(policies: Iterable[PolicyInfo], kind: PolicyType) -> list[PolicyEntryInfo]:
    return [
        entry
        for each in policies
        if parse_policy_type(each.policy_type) is kind
        for entry in each.entries or ()
    ]


def _normal(info: PolicyEntryInfo) -> PolicyEntryInfo:
    """Return a validated entry, with names spelled as Apache's broker lists them."""
    entry = parsed(info)
    kind, name = entry.pattern.kind, entry.pattern.name + "*" * entry.pattern.is_prefix
    return PolicyEntryInfo(
        resource=ANY_RESOURCE if kind is None else f"{kind}:{name}",
        actions=list(dict.fromkeys(filter(None, map(_action_name, info.actions or ())))),
        source_ips=list(info.source_ips) if info.source_ips else None,
        decision=entry.decision,
    )


def _keyed(entries: Iterable[PolicyEntryInfo]) -> dict[Pattern, PolicyEntryInfo]:
    return {parse_pattern(entry.resource): entry for entry in entries}


def _listed(entries: dict[PolicyType, dict[Pattern, PolicyEntryInfo]]) -> list[PolicyInfo]:
    return [
        PolicyInfo(policy_type=kind, entries=list(of_kind.values()))
        for kind, of_kind in entries.items()
        if of_kind
    ]
