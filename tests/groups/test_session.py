"""How long members may be silent, and the one probe before they are removed."""

from libramq.groups.consumer_group import ANSWER_MS_MAX, SILENCE_MS_MAX, Consumer, ConsumerGroups, Member
from libramq.groups.pending_notifications import AreYouThere


class Sessions(ConsumerGroups[str]):
    """Members of groups, by connection."""

    def heartbeat(self, group: str, peer: str, *, now_ms: int, client_id: str = "alice") -> None:
        consumer = Consumer(group=group)
        member = Member(peer, client_id, "JAVA", 479, now_ms)
        self.beat(self.get_or_create(consumer), member, consumer)

    def seen(self, group: str, peer: str, *, now_ms: int) -> None:
        self.member(group, peer).session.seen(now_ms=now_ms)

    def checked(self, *, now_ms: int) -> tuple[list[AreYouThere[str]], list[tuple[str, str]]]:
        probes, expired = [], []
        for group in self:
            silent, gone = self.look(group, now_ms=now_ms)
            probes += silent
            expired += [(group.name, peer) for peer in gone]
        return probes, expired


def silent(*peers: str) -> tuple[Sessions, list[AreYouThere[str]]]:
    """Return members of G, silent since 0 and just probed, and the probes."""
    sessions = Sessions()
    for peer in peers:
        sessions.heartbeat("G", peer, now_ms=0)
    assert sessions.checked(now_ms=SILENCE_MS_MAX - 1) == ([], [])
    questions, expired = sessions.checked(now_ms=SILENCE_MS_MAX)
    assert expired == []
    return sessions, questions


def test_a_silent_member_is_probed_once_and_expires_without_an_answer():
    sessions, questions = silent("c1", "c2")
    assert [(each.group, each.peer, each.client_id) for each in questions] == [
        ("G", "c1", "alice"), ("G", "c2", "alice"),
    ]  # fmt: skip
    sessions.answered("c2", questions[1].number, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.checked(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX - 1) == ([], [])
    assert sessions.checked(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX) == ([], [("G", "c1")])


def test_an_answer_counts_as_a_heartbeat():
    sessions, (question,) = silent("c1")
    sessions.answered("c1", question.number, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.checked(now_ms=2 * SILENCE_MS_MAX + 4) == ([], [])
    (again,), _ = sessions.checked(now_ms=2 * SILENCE_MS_MAX + 5)
    assert again.number != question.number


def test_a_client_that_does_not_know_the_group_is_no_member():
    sessions, (question,) = silent("c1")
    sessions.answered("c1", question.number, knows_group=False, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.checked(now_ms=SILENCE_MS_MAX + 5) == ([], [("G", "c1")])


def test_an_answer_counts_for_its_own_client_only():
    sessions, (question,) = silent("c1")
    sessions.answered("c9", question.number, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    sessions.answered("c1", question.number + 1, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.checked(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX) == ([], [("G", "c1")])


def test_pulls_and_commits_extend_a_session_but_start_none():
    sessions = Sessions()
    sessions.heartbeat("G", "c1", now_ms=0)
    sessions.seen("G", "c1", now_ms=SILENCE_MS_MAX - 1)
    assert sessions.member("G", "stranger") is None
    assert sessions.checked(now_ms=SILENCE_MS_MAX) == ([], [])


def test_a_heartbeat_answers_an_open_probe():
    sessions, (question,) = silent("c1")
    sessions.heartbeat("G", "c1", now_ms=SILENCE_MS_MAX + 1)
    sessions.answered("c1", question.number, knows_group=False, now_ms=SILENCE_MS_MAX + 2)
    assert sessions.checked(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX) == ([], [])


def test_a_new_client_on_a_connection_does_not_answer_for_the_former_one():
    sessions, (question,) = silent("c1")
    sessions.heartbeat("G", "c1", now_ms=SILENCE_MS_MAX + 1, client_id="bob")
    sessions.answered("c1", question.number, knows_group=False, now_ms=SILENCE_MS_MAX + 2)
    assert sessions.checked(now_ms=2 * SILENCE_MS_MAX) == ([], [])


def test_sessions_on_one_connection_are_separate():
    sessions = Sessions()
    for group in ("G", "H"):
        sessions.heartbeat(group, "c1", now_ms=0)
    sessions.seen("H", "c1", now_ms=10)
    (question,), _ = sessions.checked(now_ms=SILENCE_MS_MAX)
    assert question.group == "G"
    sessions.remove("G", "c1")
    sessions.answered("c1", question.number, knows_group=True, now_ms=SILENCE_MS_MAX + 1)
    assert sessions.checked(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX)[1] == []
