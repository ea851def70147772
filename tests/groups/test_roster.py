"""Members as edges report them, and lists as coordinators publish and edges keep them."""

from libramq.groups.roster import EdgeMember, MemberList, Publication, Roster


def members(*names: str) -> list[EdgeMember]:
    """Return members; names in capitals are stock clients."""
    return [EdgeMember(client_id=name, stock=name.isupper()) for name in names]


def edges_of(**edges: dict[str, list[EdgeMember]]) -> Roster:
    known = Roster()
    for name, groups in edges.items():
        known.edge_reported(name, ["a", "b"], now_ms=0)
        known.report(name, groups, complete=True)
    return known


def test_the_members_of_a_group_are_those_of_all_edges():
    """Each member is listed once; one that allocates for itself at one edge does so everywhere."""
    known = edges_of(b={"g": members("x", "Y")}, a={"g": members("z", "x"), "h": members("x")})
    assert known.client_ids("g") == ["Y", "x", "z"]
    assert known.stock("g") == ["Y"]
    assert known.report("a", {"g": members("z", "x")}, complete=False) == []
    assert known.report("b", {"g": []}, complete=False) == ["g"]
    assert (known.client_ids("g"), known.stock("g"), known.groups()) == (["x", "z"], [], ["g", "h"])


def test_libramq_members_beside_stock_members_allocate_for_themselves():
    """This holds also where they have not fetched a list since their broker started."""
    ours = EdgeMember(client_id="x", stock=False)
    asks = EdgeMember(client_id="y", topics=("T",))
    known = edges_of(a={"g": [ours]}, b={"g": [asks]})
    assert known.server_assigned("g").allocates
    known.report("a", {"g": []}, complete=False)
    assert not known.server_assigned("g").allocates


def test_a_complete_report_ends_memberships_it_does_not_name():
    known = edges_of(a={"g": members("x"), "h": members("x")})
    assert known.report("a", {"h": members("x")}, complete=True) == ["g"]
    assert known.groups() == ["h"]
    assert known.forget_edge("a") == ["h"]
    assert known.forget_edge("a") == []


def test_an_edge_agrees_when_it_has_reported_all_members_to_the_same_brokers():
    known = Roster()
    assert not known.edge_reported("a", ["a", "b"], now_ms=5)
    assert not known.agrees("a", ["a", "b"])
    known.report("a", {}, complete=True)
    assert known.edge_reported("a", ["a", "b"], now_ms=9)
    assert known.agrees("a", ["a", "b"])
    assert not known.agrees("a", ["a", "b", "c"])
    assert (known.silent_edges(since_ms=9), known.silent_edges(since_ms=10)) == ([], ["a"])


def test_a_group_at_one_edge_needs_no_published_list():
    """Edges with an earlier list are notified that it is void."""
    known = edges_of(a={"g": members("x")}, b={}, c={})
    assert known.publish("g") is None
    known.report("b", {"g": members("y")}, complete=False)
    assert known.publish("g") == Publication("g", ["x", "y"], ["a", "b"])
    assert known.publish("g") is None
    assert known.published_to("b") == [("g", ["x", "y"])]
    known.report("b", {"g": []}, complete=False)
    known.report("c", {"g": members("y")}, complete=False)
    assert known.publish("g") == Publication("g", ["x", "y"], ["a", "b", "c"])
    known.report("c", {"g": []}, complete=False)
    assert known.publish("g") == Publication("g", [], ["a", "c"])
    known.report("a", {"g": []}, complete=False)
    assert known.publish("g") is None


def test_an_edge_with_a_former_coordinators_list_is_notified_of_its_end():
    known = edges_of(b={"g": members("x")})
    known.listed_elsewhere("b", "g")
    assert known.publish("g") == Publication("g", [], ["b"])
    assert known.publish("g") is None


def test_published_lists_of_groups_that_moved_are_dropped():
    known = edges_of(a={"g": members("x"), "h": members("x")}, b={"g": members("y"), "h": members("y")})
    known.publish("g")
    known.publish("h")
    known.listed_elsewhere("b", "g")
    known.forget_published(lambda group: group == "h")
    assert [group for group, _ in known.published_to("a")] == ["h"]
    assert known.publish("h") is None


def test_a_list_is_valid_until_a_coordinator_replaces_it():
    """A list that arrives late does not replace it."""
    known = Roster()

    def take(broker: str, version: int, *client_ids: str) -> bool:
        return known.take_list("g", MemberList(broker, version, list(client_ids)))

    assert take("a", 5, "x", "y")
    assert not take("a", 5, "z")
    assert not take("a", 4)
    assert known.listed("g") == ["x", "y"]
    assert take("b", 2, "x")
    assert (known.listed("g"), known.listed_by_others("b"), known.listed_by_others("a")) == (["x"], [], ["g"])
    assert take("b", 3)
    assert known.listed("g") is None
