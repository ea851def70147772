"""Policies: which actions on which resources a user is allowed or denied, from which addresses, and which
entry counts where several fit.

    Custom policy ─► its most specific entry that fits ─┐
    else Default policy ─► likewise                     ├─► ALLOW or DENY
    else nothing fits ─► refused                        ┘

    Topic:orders   before   Topic:ord*   before   Topic:o*   before   Topic:*   before   *

An entry fits if its resource, one of its actions and one of its addresses do. A policy has one entry for each
resource, so two are never equally specific. Upstream: auth/authorization/chain/AclAuthorizationHandler.java,
model/Resource.java, PolicyEntry.java, Environment.java; AuthorizationMetadataManagerImpl.validate.
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

#: In a policy: every action, as "*" is every resource.
ALL_ACTIONS: Final = "All"
ANY_RESOURCE: Final = "*"
#: Ours: entries of one user, of 100 bytes; each was an operator's decision.
ENTRIES_MAX: Final = 1_000
#: Ours: as for topics and groups; a pattern is no longer than what it fits.
RESOURCE_CHARACTERS_MAX: Final = 300
SOURCES_MAX: Final = 100


def refused(remark: str) -> NoPermission:
    """Return the error for a request that is not permitted, or a change of users that is not valid."""
    return NoPermission(ResponseCode.NO_PERMISSION, remark)


class Decision(StrEnum):
    """The decision of an entry."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    """The two policies of a user, in the order in which they are asked."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


@dataclass(frozen=True, slots=True)
class Pattern:
    """The resources that an entry is about. kind: None is every kind. name: a prefix, if is_prefix."""

    kind: ResourceKind | None
    name: str
    is_prefix: bool

    def fits(self, resource: Resource) -> bool:
        """Return whether a resource is one of them."""
        if self.kind is not None and self.kind is not resource.kind:
            return False
        return resource.name.startswith(self.name) if self.is_prefix else resource.name == self.name

    @property
    def specificity(self) -> tuple[bool, int]:
        """Return what orders the entries with patterns; the highest one decides."""
        return self.kind is not None, len(self.name)


@dataclass(frozen=True, slots=True)
class Entry:
    """A decision. networks: the addresses that it is about; none: all."""

    pattern: Pattern
    actions: frozenset[Action]
    networks: tuple[Network, ...]
    decision: Decision

    def fits(self, resource: Resource, actions: Actions, host: str) -> bool:
        """Return whether the entry is about one of these actions on a resource, from a host."""
        return (
            not self.actions.isdisjoint(actions)
            and self.pattern.fits(resource)
            and (not self.networks or _is_within(host, self.networks))
        )


class _Policy:
    """The entries of one type: those for a name are looked up, those with patterns tried in their order."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        patterns = [entry for entry in entries if entry.pattern.is_prefix]
        self._named = {
            (entry.pattern.kind, entry.pattern.name): entry
            for entry in entries
            if not entry.pattern.is_prefix
        }
        self._patterns = sorted(patterns, key=lambda entry: entry.pattern.specificity, reverse=True)

    def entry(self, resource: Resource, actions: Actions, host: str) -> Entry | None:
        """Return the most specific entry that fits."""
        named = self._named.get(resource)
        if named is not None and named.fits(resource, actions, host):
            return named
        return next((each for each in self._patterns if each.fits(resource, actions, host)), None)


class Policies:
    """A user's policies, ready to be asked. Raises NoPermission for invalid ones."""

    def __init__(self, policies: Sequence[PolicyInfo]) -> None:
        entries = [[parsed(each) for each in _of_type(policies, kind)] for kind in PolicyType]
        self._by_type = [_Policy(each) for each in entries if each]

    def decide(self, resource: Resource, actions: Actions, host: str) -> Decision | None:
        """Return the decision about an operation for which any of these actions is enough; None: no entry."""
        for policy in self._by_type:
            entry = policy.entry(resource, actions, host)
            if entry is not None:
                return entry.decision
        return None


def merged(current: Sequence[PolicyInfo], changes: Sequence[PolicyInfo]) -> list[PolicyInfo]:
    """Return policies after a change: an entry replaces that for the same resource. Raises NoPermission."""
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
    """Return the type of a policy, as Apache's tools write it; Custom if they name none."""
    return named(PolicyType, text) or PolicyType.CUSTOM


def parse_pattern(text: str | None) -> Pattern:
    """Read a resource of a policy: "Topic:orders", "Topic:ord*", "Topic:*" or "*"; raises NoPermission."""
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
    """Read one entry; raises NoPermission, with Apache's words, if it is not valid."""
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
    """Return the member with this value, in whatever case; None: there is none."""
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


@lru_cache(maxsize=10_000)  # The hosts of as many connections; 1 µs each.
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
    """Return an entry that is valid, with the words as Apache's broker lists them."""
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
