"""Members as edges tell of them, lists as coordinators publish them and as edges keep them."""

from libramq.groups.edge_members import EdgeMember, EdgeMembers
from libramq.groups.published_lists import Publication, PublishedLists
from libramq.groups.shared_lists import SharedList, SharedLists


def members(*names: str) -> list[EdgeMember]:
    """Names in capitals are stock clients."""
    return [EdgeMember(client_id=name, stock=name.isupper()) for name in names]


def edges_of(**edges: dict[str, list[EdgeMember]]) -> EdgeMembers:
    known = EdgeMembers()
    for name, groups in edges.items():
        known.heard(name, ["a", "b"], now_ms=0)
        known.told(name, groups, complete=True)
    return known


def test_the_members_of_a_group_are_those_of_all_edges():
    """Each once; who allocates for itself at one edge, does."""
    known = edges_of(b={"g": members("x", "Y")}, a={"g": members("z", "x"), "h": members("x")})
    assert known.edges("g") == ["a", "b"]
    assert known.client_ids("g") == ["Y", "x", "z"]
    assert known.stock("g") == ["Y"]
    assert known.told("a", {"g": members("z", "x")}, complete=False) == []
    assert known.told("b", {"g": []}, complete=False) == ["g"]
    assert (known.edges("g"), known.stock("g"), known.groups()) == (["a"], [], ["g", "h"])


def test_members_of_ours_beside_stock_ones_allocate_for_themselves():
    """Also where they have not looked at a list since their broker came."""
    ours = EdgeMember(client_id="x", stock=False)
    asks = EdgeMember(client_id="y", stock=True, topics=["T"])
    known = edges_of(a={"g": [ours]}, b={"g": [asks]})
    assert known.asked("g").allocates
    known.told("a", {"g": []}, complete=False)
    assert not known.asked("g").allocates


def test_what_a_complete_word_does_not_name_is_over():
    known = edges_of(a={"g": members("x"), "h": members("x")})
    assert known.told("a", {"h": members("x")}, complete=True) == ["g"]
    assert known.groups() == ["h"]
    assert known.forget("a") == ["h"]
    assert known.forget("a") == []


def test_an_edge_agrees_when_it_has_told_of_all_by_the_same_brokers():
    known = EdgeMembers()
    assert not known.heard("a", ["a", "b"], now_ms=5)
    assert not known.agrees("a", ["a", "b"])
    known.told("a", {}, complete=True)
    assert known.heard("a", ["a", "b"], now_ms=9)
    assert known.agrees("a", ["a", "b"])
    assert not known.agrees("a", ["a", "b", "c"])
    assert (known.silent(since_ms=9), known.silent(since_ms=10)) == ([], ["a"])


def test_a_group_at_one_edge_has_no_list():
    lists = PublishedLists()
    assert lists.publish("g", ["a"], ()) is None
    assert lists.publish("g", ["a", "b"], ["x", "y"]) == Publication("g", ["x", "y"], ["a", "b"])
    assert lists.publish("g", ["a", "b"], ["x", "y"]) is None
    assert lists.told("b") == [("g", ["x", "y"])]
    assert lists.publish("g", ["a", "c"], ["x", "y"]) == Publication("g", ["x", "y"], ["a", "b", "c"])
    assert lists.publish("g", ["a"], ()) == Publication("g", (), ["a", "c"])
    assert lists.publish("g", [], ()) is None


def test_an_edge_with_the_list_of_another_coordinator_is_told_that_it_is_over():
    lists = PublishedLists()
    lists.listed_elsewhere("b", "g")
    assert lists.publish("g", ["b"], ()) == Publication("g", (), ["b"])
    assert lists.publish("g", ["b"], ()) is None


def test_a_list_stands_until_its_coordinator_or_another_says_otherwise():
    """What comes late does not."""
    shared = SharedLists()

    def take(broker: str, version: int, *client_ids: str) -> bool:
        return shared.take("g", SharedList(broker, version, list(client_ids)))

    assert take("a", 5, "x", "y")
    assert not take("a", 5, "z")
    assert not take("a", 4)
    assert shared.get("g") == ["x", "y"]
    assert take("b", 2, "x")
    assert (shared.get("g"), shared.told_by_others("b"), shared.told_by_others("a")) == (["x"], [], ["g"])
    assert take("b", 3)
    assert shared.get("g") is None
