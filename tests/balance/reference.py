"""Slow reference solutions: brute force, and textbook augmenting paths."""

from libramq.balance.group import Group


def by_brute_force(of: Group) -> tuple[list[int], int]:
    """Return the least loads (largest first) and the fewest moves to them, by trying every load vector."""
    members = of.members
    reached = {(0,) * len(members): 0}
    for topic, queues in of.queues.items():
        takers = [place for place, member in enumerate(members) if topic in member.topics]
        for queue in queues if takers else ():
            holders = [place for place, member in enumerate(members) if queue in member.owned]
            following: dict[tuple[int, ...], int] = {}
            for loads, moves in reached.items():
                for taker in takers:
                    after = (*loads[:taker], loads[taker] + 1, *loads[taker + 1 :])
                    count = moves + (len(holders) == 1 and taker not in holders)
                    if count < following.get(after, count + 1):
                        following[after] = count
            reached = following
    return min((sorted(loads, reverse=True), moves) for loads, moves in reached.items())


def by_augmenting_paths(of: Group) -> tuple[list[int], int]:
    """Return the same for larger groups. Queues are added one by one, each along the cheapest chain of
    displacements.

    A load of n costs n², and a move so little that loads come first. (The smallest sum of squares means the
    least loads.)
    """
    members = of.members
    queues = [
        (queue, [place for place, member in enumerate(members) if topic in member.topics])
        for topic, some in of.queues.items()
        for queue in some
    ]
    queues = [(queue, takers) for queue, takers in queues if takers]
    square = len(queues) + 1

    def cost(queue, place):
        holders = [n for n, member in enumerate(members) if queue in member.owned]
        return int(len(holders) == 1 and place not in holders)

    price = {(queue, place): cost(queue, place) for queue, takers in queues for place in takers}
    may_take = dict(queues)
    shares = [set() for _ in members]
    for queue, takers in queues:
        best = {place: (price[queue, place], None, queue) for place in takers}
        changed = True
        while changed:
            changed = False
            for giver in list(best):
                for other in shares[giver]:
                    for taker in may_take[other]:
                        total = best[giver][0] - price[other, giver] + price[other, taker]
                        if taker != giver and (taker not in best or total < best[taker][0]):
                            best[taker] = (total, giver, other)
                            changed = True
        place = min(best, key=lambda each: best[each][0] + square * (2 * len(shares[each]) + 1))
        while True:
            _, giver, moved = best[place]
            shares[place].add(moved)
            if giver is None:
                break
            shares[giver].remove(moved)
            place = giver
    total = sum(price[queue, place] for place, share in enumerate(shares) for queue in share)
    return sorted(map(len, shares), reverse=True), total


def is_optimal(of: Group, assignment) -> bool:
    """Return whether no chain of displacements lowers the loads or, at equal loads, saves a move.

    A flow has the least cost exactly when no cycle of the residual network has a negative cost. Here the
    nodes are the members, and an arc passes a queue on. From a member with one queue less than another an arc
    back closes the chain, since the two may change places.
    """
    holders: dict[object, list[int]] = {}
    for place, member in enumerate(of.members):
        for queue in member.owned:
            holders.setdefault(queue, []).append(place)
    subscribed = [member.topics for member in of.members]
    shares = [assignment[member.client_id] for member in of.members]
    arcs: dict[tuple[int, int], int] = {}
    for giver, share in enumerate(shares):
        cheapest: dict[str, int] = {}
        for queue in share:
            holder = holders.get(queue, [])
            stays = holder == [giver]
            cheapest[queue.topic] = min(cheapest.get(queue.topic, 1), int(stays))
            if len(holder) == 1 and not stays and queue.topic in subscribed[holder[0]]:
                arcs[giver, holder[0]] = -1
        for taker, topics in enumerate(subscribed):
            costs = [cost for topic, cost in cheapest.items() if topic in topics]
            if taker != giver and costs:
                arcs[giver, taker] = min(arcs.get((giver, taker), 1), *costs)
    following: dict[int, list[int]] = {}
    for giver, taker in arcs:
        following.setdefault(giver, []).append(taker)
    for giver, share in enumerate(shares):
        reached = [giver]
        for node in reached:
            reached += [taker for taker in following.get(node, ()) if taker not in reached]
        if any(len(share) > len(shares[taker]) + 1 for taker in reached):
            return False
    for giver, one in enumerate(shares):
        for taker, other in enumerate(shares):
            if len(one) == len(other) + 1:  # A chain from giver to taker may be closed for nothing.
                arcs[taker, giver] = min(arcs.get((taker, giver), 0), 0)
    costs = [0] * len(shares)
    for _ in range(len(shares) + 1):
        changed = False
        for (giver, taker), cost in arcs.items():
            if costs[giver] + cost < costs[taker]:
                costs[taker] = costs[giver] + cost
                changed = True
        if not changed:
            return True
    return False
