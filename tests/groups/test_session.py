"""How long members may be silent, and the one question before they are given up."""

from libramq.groups.session import ANSWER_MS_MAX, SILENCE_MS_MAX, Probe, Sessions


def silent(*peers: str) -> tuple[Sessions[str], list[Probe[str]]]:
    """Members of G that were silent from 0 on, just asked."""
    sessions: Sessions[str] = Sessions()
    for peer in peers:
        sessions.beat("G", peer, now_ms=0)
    assert sessions.look(now_ms=SILENCE_MS_MAX - 1) == ([], [])
    probes, expired = sessions.look(now_ms=SILENCE_MS_MAX)
    assert expired == []
    return sessions, probes


def test_a_silent_member_is_asked_once_and_expires_without_an_answer():
    sessions, probes = silent("c1", "c2")
    assert [(probe.group, probe.peer) for probe in probes] == [("G", "c1"), ("G", "c2")]
    sessions.answered("c2", probes[1].number, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.look(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX - 1) == ([], [])
    assert sessions.look(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX) == ([], [("G", "c1")])


def test_an_answer_is_as_good_as_a_heartbeat():
    sessions, (probe,) = silent("c1")
    sessions.answered("c1", probe.number, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.look(now_ms=2 * SILENCE_MS_MAX + 4) == ([], [])
    (again,), _ = sessions.look(now_ms=2 * SILENCE_MS_MAX + 5)
    assert again.number != probe.number


def test_a_client_that_does_not_know_the_group_is_no_member():
    sessions, (probe,) = silent("c1")
    sessions.answered("c1", probe.number, knows_group=False, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.look(now_ms=SILENCE_MS_MAX + 5) == ([], [("G", "c1")])


def test_nobody_answers_for_another():
    sessions, (probe,) = silent("c1")
    sessions.answered("c9", probe.number, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    sessions.answered("c1", probe.number + 1, knows_group=True, now_ms=SILENCE_MS_MAX + 5)
    assert sessions.look(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX) == ([], [("G", "c1")])


def test_pulls_and_commits_keep_a_session_and_make_none():
    sessions: Sessions[str] = Sessions()
    sessions.beat("G", "c1", now_ms=0)
    sessions.seen("G", "c1", now_ms=SILENCE_MS_MAX - 1)
    sessions.seen("G", "stranger", now_ms=0)
    assert sessions.look(now_ms=SILENCE_MS_MAX) == ([], [])


def test_a_heartbeat_after_the_question_answers_it():
    sessions, (probe,) = silent("c1")
    sessions.beat("G", "c1", now_ms=SILENCE_MS_MAX + 1)
    sessions.answered("c1", probe.number, knows_group=False, now_ms=SILENCE_MS_MAX + 2)
    assert sessions.look(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX) == ([], [])


def test_sessions_of_a_connection_are_apart_and_end_with_membership():
    sessions: Sessions[str] = Sessions()
    for group in ("G", "H"):
        sessions.beat(group, "c1", now_ms=0)
    sessions.seen("H", "c1", now_ms=10)
    (probe,), _ = sessions.look(now_ms=SILENCE_MS_MAX)
    assert probe.group == "G"
    sessions.ended("G", "c1")
    sessions.answered("c1", probe.number, knows_group=True, now_ms=SILENCE_MS_MAX + 1)
    assert sessions.look(now_ms=SILENCE_MS_MAX + ANSWER_MS_MAX)[1] == []
