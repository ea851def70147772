"""The group history: a group's rebalances as a timeline and as JSON, with short names of members."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from libramq.cli.output import camel
from libramq.cli.printable import time_text
from libramq.errors import counted
from libramq.groups.rebalance_event import QueueMove
from libramq.groups.rebalance_history import Rebalance, RebalanceState

#: The time that unnamed clients (Java's and LibraMQ's) append to address and process.
_TIME: Final = re.compile(r"(?<=@)(\d+)#\d+$")
#: The 16 random bytes that LibraMQ's broker appends to the name of a Kafka client.
_RANDOM: Final = re.compile(r"(?<=-[0-9a-f]{4})[0-9a-f]{28}$")
_CLIENT_ID: Final = re.compile(r"[^\s,]+")
_NONE: Final[Mapping[str, str]] = {}


class MemberNames:
    """Short names of the clients in some texts. static: names of static members, by client id.

    127.0.0.1@26622#16918612000  →  127.0.0.1@26622   if no other member belongs to that process
    127.0.0.1@host-7             →  worker-1          the name of a static member
    rdkafka-3f9a…32 digits       →  rdkafka-3f9a      a member id of Kafka's protocol
    """

    def __init__(self, texts: Iterable[str], *, static: Mapping[str, str] = _NONE) -> None:
        client_ids = {client_id for text in texts for client_id in _CLIENT_ID.findall(text)}
        candidates = {
            client_id: static.get(client_id) or _RANDOM.sub("", _TIME.sub(r"\1", client_id))
            for client_id in client_ids | set(static)
        }
        uses = Counter(candidates.values())
        self._names = {client_id: name for client_id, name in candidates.items() if uses[name] == 1}

    def short(self, text: str) -> str:
        """Return a text with all client ids in it shortened."""
        return _CLIENT_ID.sub(lambda client_id: self._names.get(client_id[0], client_id[0]), text)


#: Members, or pairs of members, that a line of the timeline names.
NAMED_MAX: Final = 8


def timeline(rebalance: Rebalance) -> list[str]:
    """Return a rebalance as lines of text; the first begins with its time."""
    names = member_names(rebalance)
    lines = [f"{time_text(rebalance.at_ms)}  {causes(rebalance, names)}  ({', '.join(rebalance.brokers)})"]
    if rebalance.moved is None:
        lines.append(
            "still moving"
            if rebalance.state is RebalanceState.MOVING
            else "interrupted: its broker never recorded the end"
        )
    else:
        unowned = f", {counted(rebalance.unowned, 'queue')} without an owner" if rebalance.unowned else ""
        rate = rebalance.peak_catch_up_rate
        also = "" if rebalance.state is RebalanceState.SETTLED else f"; {rebalance.state} at some brokers"
        lines += [
            f"{rebalance.moved}/{rebalance.minimum} queues moved (actual/minimum), stable after "
            f"{duration(rebalance.time_to_stable_ms)}, worst pause {duration(rebalance.worst_pause_ms)}, "
            f"{redelivery(rebalance)}{unowned}{also}",
            *([f"new owners read up to {counted(rate, 'message')} a second to catch up"] if rate else []),
            *_moves(rebalance.moves, names),
            _loads(rebalance.member_count, rebalance.loads, names),
        ]
    return [lines[0], *(f"    {line}" for line in lines[1:])]


def member_names(rebalance: Rebalance, *, static: Mapping[str, str] = MappingProxyType({})) -> MemberNames:
    """Return short names for all clients in a rebalance."""
    texts = [*(cause.who for cause in rebalance.causes if cause.who), *rebalance.loads]
    moves = [name for move in rebalance.moves for name in (move.from_, move.to) if name]
    return MemberNames([*texts, *moves], static=static)


def causes(rebalance: Rebalance, names: MemberNames) -> str:
    """Return the reasons with the members that caused them: `member_joined a, b; connection_closed c`."""
    return "; ".join(
        " ".join([reason, _named([names.short(cause.who) for cause in lot if cause.who])]).rstrip()
        for reason, lot in groupby(rebalance.causes, key=lambda cause: cause.reason)
    )


def redelivery(rebalance: Rebalance) -> str:
    """Return the upper bound of redelivered messages as text; 0: owners had committed all handled ones.

    The bound is None if no member was left to continue, if a broker was restarted and does not know which
    messages it had delivered, or if members are Kafka's, whose fetches do not name their group.
    """
    bound = rebalance.redelivered_upper_bound
    if bound is None and not rebalance.member_count:
        return "unknown how many messages will be redelivered: no member was left"
    if bound is None:
        return "unknown how many messages were redelivered"
    return f"at most {counted(bound, 'message')} redelivered" if bound else "no message was redelivered"


def duration(milliseconds: int | None) -> str:
    """Return a time span as text."""
    if milliseconds is None:
        return "–"
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def as_json(rebalance: Rebalance) -> dict[str, Any]:
    """Return a rebalance as JSON: the fields of the events, in camelCase."""
    values = {each.name: getattr(rebalance, each.name) for each in fields(rebalance) if each.name != "moves"}
    return {
        **{camel(name): value for name, value in values.items()},
        "state": rebalance.state.value,
        "causes": [cause._asdict() for cause in rebalance.causes],
        "brokers": list(rebalance.brokers),
        "moves": [
            {
                "topic": move.topic,
                "broker": move.broker,
                "queueId": move.queue,
                "from": move.from_,
                "to": move.to,
                "pauseMs": move.pause_ms,
                "redelivered": move.redelivered_bound,
                "doubleOwnerMs": move.double_owner_ms,
            }
            for move in rebalance.moves
        ],
    }


def _moves(moves: Sequence[QueueMove], names: MemberNames) -> list[str]:
    """Return a line for each pair of members."""
    pairs: dict[tuple[str, str], list[QueueMove]] = {}
    for move in moves:
        pairs.setdefault(
            (names.short(move.from_) if move.from_ else "nobody", names.short(move.to)), []
        ).append(move)
    lines = [
        f"{giver} → {taker}: {counted(len(lot), 'queue')}"
        + ("" if giver == "nobody" else f", paused for {_range([move.pause_ms for move in lot])} ms")
        + (f", read by both for up to {both} ms" if (both := max(m.double_owner_ms for m in lot)) else "")
        for (giver, taker), lot in list(pairs.items())[:NAMED_MAX]
    ]
    return lines + ([f"and {len(pairs) - NAMED_MAX} more pairs"] if len(pairs) > NAMED_MAX else [])


def _loads(member_count: int, loads: dict[str, int], names: MemberNames) -> str:
    if not loads:
        return "no members"
    if len(loads) > NAMED_MAX:
        return f"{member_count} members with {_range(list(loads.values()))} queues each"
    return "loads: " + ", ".join(f"{names.short(member)} {load}" for member, load in loads.items())


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"
