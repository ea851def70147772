"""Incomplete frames: how much of them a server holds, and which connections it closes."""

from libramq.transport.server import UNFINISHED_BYTES_MAX, UnfinishedFrames

MIB = 1 << 20


def test_the_connection_holding_most_bytes_longest_is_closed():
    frames: UnfinishedFrames[str] = UnfinishedFrames()
    for number in range(4):
        assert frames.update(f"stalled-{number}", 15 * MIB, 1_000, is_another=True) == []
    assert frames.update("producer", 3 * MIB, 60_000, is_another=True) == []
    assert frames.update("tiny", 100, 1_000, is_another=True) == []
    given_up = frames.update("producer", 5 * MIB, 60_001, is_another=False)
    assert given_up == ["stalled-0", "stalled-1"], "until there is room for more than one read"
    for each in given_up:
        frames.forget(each)
    assert frames.total_bytes == 35 * MIB + 100


def test_the_age_of_a_connection_counts_from_its_current_frame():
    frames: UnfinishedFrames[str] = UnfinishedFrames()
    frames.update("busy", 15 * MIB, 0, is_another=True)
    frames.update("busy", 15 * MIB, 50_000, is_another=True)
    frames.update("stalled", 12 * MIB, 10_000, is_another=True)
    frames.update("other", 15 * MIB, 50_000, is_another=True)
    assert frames.update("last", UNFINISHED_BYTES_MAX - 41 * MIB, 50_001, is_another=True)[0] == "stalled"


def test_finished_frames_and_ended_connections_are_not_counted():
    frames: UnfinishedFrames[str] = UnfinishedFrames()
    for _ in range(100):
        assert frames.update("a", 15 * MIB, 0, is_another=True) == []
        assert frames.update("a", 0, 0, is_another=True) == []
        assert frames.update("b", 15 * MIB, 0, is_another=False) == []
        frames.forget("b")
    assert frames.total_bytes == 0
