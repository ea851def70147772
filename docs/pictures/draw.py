"""Draws the pictures of the guides: a run's rebalances, a handover, two strategies, and a rolling deploy.

    python docs/pictures/draw.py

rebalance.json is from what `libra groups history --json` printed of a run, with names instead of client ids.
rolling_deploy.json is what `bench/rolling_deploy --json` wrote; without it that picture is left out.
"""

import json
from collections.abc import Iterable
from html import escape
from math import log10
from pathlib import Path
from typing import Any

from libramq.balance import Group, Member, strategy_named
from libramq.message import MessageQueue

HERE = Path(__file__).parent
#: As wide as a phone's page, so that a picture is read there without moving it, and its text is large enough.
WIDTH = 396
#: By member; each is readable behind white text, on a light page and on a dark one.
COLOURS = ("#2f6db5", "#b3541e", "#2e7d4f", "#7b4fa3", "#8a6d00", "#a8324a")
NOBODY = "#8a8f98"
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 } .card { fill: #ffffff; stroke: #d0d7de }
  .small { font-size: 12px } .bold { font-weight: 600 } .on { fill: #ffffff }
  .line { stroke: #57606a; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .card { fill: #161b22; stroke: #30363d } .on { fill: #ffffff }
    .line { stroke: #9aa4b0 }
  }
"""


def svg(name: str, width: int, height: int, title: str, parts: Iterable[str]) -> None:
    """Write a picture; it has a background of its own, so that it can be read on any page."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *parts,
        "</svg>\n",
    ]
    (HERE / name).write_text("\n".join(lines))


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" fill="{fill}"/>'


def line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return f'<line class="line" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def legend(x: float, y: float, number: int, words: str) -> list[str]:
    """Return a numbered line of text."""
    return [mark(x + 8, y - 4, number), text(x + 24, y, words)]


def mark(x: float, y: float, number: int) -> str:
    """Return a number in a circle."""
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="{NOBODY}"/>'
    return circle + text(x, y + 4, str(number), "small on", "middle")


def rebalance() -> None:
    """Draw who reads which queue over time."""
    rebalances = json.loads((HERE / "rebalance.json").read_text())
    colour = dict(zip(("Alice", "Bob", "Carol"), COLOURS, strict=False))
    what = {
        "member_joined": "{} joins",
        "member_left": "{} stops",
        "connection_closed": "{} is killed",
    }
    left, right, top, row = 66, WIDTH - 14, 98, 24
    began, ended = rebalances[0]["atMs"], rebalances[-1]["atMs"] + 3_000

    def x(at_ms: float) -> float:
        return left + (right - left) * (at_ms - began) / (ended - began)

    parts = [text(14, 28, "Who reads which queue", "bold")]
    for place, (member, fill) in enumerate(colour.items()):
        parts += [box(14 + 88 * place, 42, 14, 14, fill), text(34 + 88 * place, 54, member)]
    owner: dict[int, tuple[str, float]] = {}
    bars = []
    for each in rebalances:
        for move in each["moves"]:
            if move["queueId"] in owner:
                member, since = owner[move["queueId"]]
                bars.append((move["queueId"], member, since, each["atMs"]))
            owner[move["queueId"]] = (move["to"], each["atMs"] + move["pauseMs"])
    bars += [(queue, member, since, ended) for queue, (member, since) in owner.items()]
    for queue in sorted(owner):
        parts.append(text(left - 8, top + row * queue + 16, f"queue {queue}", "small", "end"))
    for queue, member, since, until in bars:
        width = max(x(until) - x(since) - 1, 1)
        parts.append(box(x(since), top + row * queue + 2, width, row - 4, colour[member]))
    bottom = top + row * len(owner)
    for number, each in enumerate(rebalances, 1):
        at, cause = x(each["atMs"]), each["causes"][0]
        parts += [line(at, top - 6, at, bottom + 6, 'stroke-dasharray="3 3"'), mark(at, top - 14, number)]
        moved = f"{each['moved']} queue{'s' * (each['moved'] != 1)} move"
        pause = f", {each['worstPauseMs']} ms" if number > 1 else ""
        words = f"{what[cause['reason']].format(cause['who'])}: {moved}{pause}"
        parts += legend(14, bottom + 50 + 22 * number, number, words)
    for second in range(0, (ended - began) // 1000 + 1, 5):
        parts.append(text(x(began + 1000 * second), bottom + 24, f"{second} s", "small", "middle"))
    parts.append(text(14, bottom + 48, "ms: how long the slowest queue stood still", "small"))
    height = bottom + 66 + 22 * len(rebalances)
    svg("rebalance.svg", WIDTH, height, "Rebalances of a group of three members", parts)


def handover() -> None:
    """Draw how a queue moves from one member to another."""
    lanes = {"Alice": 44, "coordinator": 146, "broker": 250, "Bob": 346}
    parts = [text(14, 28, "Queue 3 moves from Alice to Bob", "bold")]
    for name, at in lanes.items():
        parts += [text(at, 58, name, "bold", "middle"), line(at, 66, at, 352)]
    steps = [
        ("Bob", "coordinator", "Bob joins", 86),
        ("coordinator", "Alice", "the coordinator revokes queue 3", 118),
        ("Alice", "broker", "Alice commits its offset", 202),
        ("Alice", "coordinator", "and releases the queue", 232),
        ("coordinator", "broker", "queue 3 is granted to Bob, epoch 8", 262),
        ("coordinator", "Bob", "and Bob hears of it", 292),
        ("Bob", "broker", "he opens it under epoch 8,", 322),
        ("broker", "Bob", "and continues at offset 4711", 344),
    ]
    parts += [
        box(14, 132, 166, 48, COLOURS[0]),
        text(97, 152, "Alice ends its handlers,", "small on", "middle"),
        text(97, 170, "and calls on_revoked", "small on", "middle"),
    ]
    for number, (start, end, words, y) in enumerate(steps, 1):
        x1, x2 = lanes[start], lanes[end]
        tip = 1 if x2 > x1 else -1
        parts += [
            line(x1, y, x2 - 6 * tip, y),
            f'<path d="M{x2} {y} l{-9 * tip} -4 v8 z" fill="{NOBODY}"/>',
            mark(x1 + 30 * tip, y, number),
            *legend(14, 362 + 22 * number, number, words),
        ]
    end = 362 + 22 * len(steps)
    parts += [
        text(14, end + 30, "Later requests of Alice for this queue are refused:", "small"),
        text(14, end + 48, "her epoch is 7. Both keep reading their other queues.", "small"),
    ]
    svg("handover.svg", WIDTH, end + 62, "How a queue changes hands", parts)


def strategies() -> None:
    """Draw what three strategies make of 24 queues when a sixth member joins."""
    queues = [MessageQueue("Orders", "broker-a", queue_id) for queue_id in range(24)]
    # Pods get addresses that sort anywhere: the newcomer comes second.
    before = ["member-1", "member-3", "member-4", "member-5", "member-6"]
    newcomer = "member-2"
    colour = dict(zip([*before, newcomer], COLOURS, strict=True))
    parts = [text(14, 28, "A sixth member joins five that share 24 queues", "bold")]
    top, step = 60, 13.6
    for name in ("AVG", "AVG_BY_CIRCLE", "balanced_sticky"):
        strategy = strategy_named(name)
        owners = []
        held: dict[str, list[MessageQueue]] = {}
        for members in (before, sorted([*before, newcomer])):
            shares = strategy.assign(
                Group.of(
                    [
                        Member(client_id=member, topics=frozenset({"Orders"}), owned=held.get(member, ()))
                        for member in members
                    ],
                    queues,
                )
            )
            held = {member: list(share) for member, share in shares.items()}
            owners.append({queue: member for member, share in shares.items() for queue in share})
        moved = [queue for queue in queues if owners[0][queue] != owners[1][queue]]
        parts.append(text(14, top, f"{name}: {len(moved)} of 24 queues move", "bold"))
        for place, (owner, when) in enumerate(zip(owners, ("before", "after"), strict=True)):
            y = top + 12 + 30 * place
            parts.append(text(14, y + 17, when, "small"))
            for queue in queues:
                at = 58 + step * queue.queue_id
                parts.append(box(at, y, step - 1.6, 24, colour[owner[queue]]))
                parts.append(text(at + step / 2 - 1, y + 17, owner[queue][-1], "small on", "middle"))
        for queue in moved:
            parts.append(text(58 + step * queue.queue_id + 6, top + 82, "▲", "small", "middle"))
        top += 116
    parts += [
        text(14, top - 10, "The number is the member that reads the queue;", "small"),
        text(14, top + 8, "▲ marks queues that move.", "small"),
    ]
    svg("strategies.svg", WIDTH, top + 22, "What a newcomer moves under three strategies", parts)


#: Systems of bench/rolling_deploy, as the picture names them.
SYSTEMS = {
    "libramq": "LibraMQ",
    "rocketmq": "RocketMQ, push consumers",
    "kafka": "Kafka, cooperative-sticky",
    "kafka-consumer": "Kafka, group.protocol=consumer",
}
LATE_MS = 100


def rolling_deploy(measured: dict[str, Any]) -> None:
    """Draw the longest delay of each second of a rolling deploy, a panel for each system."""
    plan, systems = measured["plan"], measured["systems"]
    left, right, tall, gap = 62, WIDTH - 14, 84, 60
    times = [second for each in systems.values() for second, _, _ in each["by_second"]]
    began, ended = min(times), max(times) + 1
    worst = max(delay for each in systems.values() for _, _, delay in each["by_second"])
    decades = max(3, int(log10(worst)) + 1)

    def x(second: float) -> float:
        return left + (right - left) * (second - began) / (ended - began)

    def height(delay_ms: float) -> float:
        return tall * min(1.0, max(0.0, log10(max(delay_ms, 1)) / decades))

    parts = [
        text(14, 28, f"A rolling deploy of {plan['members']} members", "bold"),
        text(14, 48, f"{plan['rate']:,} messages a second. The bars are the longest", "small"),
        text(14, 64, "delay of each second, on a logarithmic scale.", "small"),
    ]
    bottom = 66.0
    for (name, each), fill in zip(systems.items(), COLOURS, strict=False):
        top = bottom + gap
        bottom = top + tall
        counts = f"{each['lost']:,} lost, {each['twice']:,} twice, {each['late']:,} over {LATE_MS} ms"
        parts += [text(14, top - 28, SYSTEMS[name], "bold"), text(14, top - 11, counts, "small")]
        for second, _, delay_ms in each["by_second"]:
            width = max(x(second + 1) - x(second) - 1, 1)
            parts.append(box(x(second), bottom - height(delay_ms), width, height(delay_ms), fill))
        for decade in range(0, decades + 1, 2):
            label = f"{10**decade:,} ms" if decade < 4 else f"{10 ** (decade - 3):,} s"
            parts.append(text(left - 6, bottom - height(10**decade) + 4, label, "small", "end"))
        limit = bottom - height(LATE_MS)
        parts += [
            line(left, bottom, right, bottom),
            line(left, limit, right, limit, 'stroke-dasharray="3 3"'),
            line(x(0), top, x(0), bottom, 'stroke-dasharray="1 3"'),
        ]
    deployed_s = plan["members"] * plan["every_s"]
    for second in range(0, ended, 10 if ended > 20 else 5):
        parts.append(text(x(second), bottom + 18, f"{second} s", "small", "middle"))
    parts += [
        text(
            14, bottom + 42, f"From 0 to {deployed_s:.0f} s every member is replaced, one after the", "small"
        ),
        text(14, bottom + 58, f"other, at the same times. Dashes: {LATE_MS} ms.", "small"),
    ]
    title = "The longest delay of each second of a rolling deploy, by system"
    svg("rolling_deploy.svg", WIDTH, int(bottom + 72), title, parts)


if __name__ == "__main__":
    rebalance()
    handover()
    strategies()
    if (HERE / "rolling_deploy.json").exists():
        rolling_deploy(json.loads((HERE / "rolling_deploy.json").read_text()))
