"""Draws the pictures of the guides: the rebalances of a real run, a handover, and two strategies.

    python docs/pictures/draw.py

rebalance.json is from what `libra groups history --json` printed of a run, with names instead of client ids.
"""

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from libramq.balance import Group, Member, strategy_named
from libramq.message import MessageQueue

HERE = Path(__file__).parent
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
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
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


def rebalance() -> None:
    """Draw who reads which queue over time."""
    rebalances = json.loads((HERE / "rebalance.json").read_text())
    colour = dict(zip(("Alice", "Bob", "Carol"), COLOURS, strict=False))
    what = {
        "member_joined": "{} joins",
        "member_left": "{} stops",
        "connection_closed": "{} is killed",
    }
    left, right, top, row = 84, 772, 92, 24
    began, ended = rebalances[0]["atMs"], rebalances[-1]["atMs"] + 3_000

    def x(at_ms: float) -> float:
        return left + (right - left) * (at_ms - began) / (ended - began)

    parts = [text(20, 30, "Who reads which queue", "bold")]
    for place, (member, fill) in enumerate(colour.items()):
        parts += [
            box(440 + 110 * place, 18, 16, 16, fill),
            text(462 + 110 * place, 31, member),
        ]
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
        parts.append(text(left - 12, top + row * queue + 16, f"queue {queue}", "small", "end"))
    for queue, member, since, until in bars:
        width = max(x(until) - x(since) - 1, 1)
        parts.append(box(x(since), top + row * queue + 2, width, row - 4, colour[member]))
    bottom = top + row * len(owner)
    for each in rebalances:
        at, cause = x(each["atMs"]), each["causes"][0]
        parts.append(line(at, top - 6, at, bottom + 6, 'stroke-dasharray="3 3"'))
        parts.append(text(at, top - 26, what[cause["reason"]].format(cause["who"]), "small bold"))
        pause = f", {each['worstPauseMs']} ms" if each is not rebalances[0] else ""
        parts.append(text(at, top - 11, f"{each['moved']} move{pause}", "small"))
    for second in range(0, (ended - began) // 1000 + 1, 5):
        parts.append(text(x(began + 1000 * second), bottom + 24, f"{second} s", "small", "middle"))
    parts.append(text(left, bottom + 48, "ms: how long the queue that waited longest stood still", "small"))
    svg("rebalance.svg", 860, bottom + 64, "Rebalances of a group of three members", parts)


def handover() -> None:
    """Draw how a queue moves from one member to another."""
    lanes = {"Alice": 110, "coordinator": 320, "the queue's broker": 530, "Bob": 740}
    parts = [text(20, 30, "Queue 3 moves from Alice to Bob", "bold")]
    for name, at in lanes.items():
        parts += [text(at, 66, name, "bold", "middle"), line(at, 76, at, 470)]
    steps = [
        ("Bob", "coordinator", "joins", 100),
        ("coordinator", "Alice", "revokes queue 3", 140),
        ("Alice", "the queue's broker", "commits its offset", 240),
        ("Alice", "coordinator", "releases queue 3", 280),
        ("coordinator", "the queue's broker", "grants it to Bob, epoch 8", 320),
        ("coordinator", "Bob", "queue 3 is yours, epoch 8", 360),
        ("Bob", "the queue's broker", "opens it: epoch 8", 400),
        ("the queue's broker", "Bob", "continue at offset 4711", 440),
    ]
    parts += [
        box(28, 158, 164, 56, COLOURS[0]),
        text(110, 180, "finishes its handlers,", "small on", "middle"),
        text(110, 198, "calls on_revoked", "small on", "middle"),
    ]
    for start, end, words, y in steps:
        x1, x2 = lanes[start], lanes[end]
        tip = 1 if x2 > x1 else -1
        parts += [
            line(x1, y, x2 - 6 * tip, y),
            f'<path d="M{x2} {y} l{-9 * tip} -4 v8 z" fill="{NOBODY}"/>',
            text(x1 + 105 * tip, y - 6, words, "small", "middle"),
        ]
    parts += [
        text(20, 500, "Later requests of Alice for this queue are refused: her epoch is 7.", "small"),
        text(20, 520, "Both members keep reading their other queues.", "small"),
    ]
    svg("handover.svg", 860, 540, "How a queue changes hands", parts)


def strategies() -> None:
    """Draw what three strategies make of 24 queues when a sixth member joins."""
    queues = [MessageQueue("Orders", "broker-a", queue_id) for queue_id in range(24)]
    # Pods get addresses that sort anywhere: the newcomer comes second.
    before = ["member-1", "member-3", "member-4", "member-5", "member-6"]
    newcomer = "member-2"
    colour = dict(zip([*before, newcomer], COLOURS, strict=True))
    parts = [text(20, 30, "A sixth member joins five that share 24 queues", "bold")]
    top = 62
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
        parts.append(text(20, top, f"{name}: {len(moved)} of 24 queues move", "bold"))
        for place, (owner, when) in enumerate(zip(owners, ("before", "after"), strict=True)):
            y = top + 12 + 30 * place
            parts.append(text(20, y + 17, when, "small"))
            for queue in queues:
                at = 80 + 31 * queue.queue_id
                parts.append(box(at, y, 28, 24, colour[owner[queue]]))
                parts.append(text(at + 14, y + 17, owner[queue][-1], "small on", "middle"))
        for queue in moved:
            parts.append(text(80 + 31 * queue.queue_id + 14, top + 80, "▲", "small", "middle"))
        top += 112
    parts.append(
        text(
            20, top - 10, "The number is the member that reads the queue; ▲ marks queues that move.", "small"
        )
    )
    svg("strategies.svg", 860, top + 6, "What a newcomer moves under three strategies", parts)


if __name__ == "__main__":
    rebalance()
    handover()
    strategies()
