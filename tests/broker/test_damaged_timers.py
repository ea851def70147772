"""Timer files that are missing, empty, cut, zeroed, old, or of another precision.

Pending messages are still delivered, perhaps twice, but at least once.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.brokers import Conversation
from tests.broker.test_timers import NOW_MS, advance, bodies, send_at
from tests.fakes import FakePeer

FILES = ("timerwheel", "timerlog", "config/timercheck")


def missing(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def damaged(data: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            file.write_bytes(data(file.read_bytes()))

    return damage


DAMAGES = {
    "missing": missing,
    "empty": damaged(lambda data: b""),
    "halved": damaged(lambda data: data[: len(data) // 2]),
    "zeroed": damaged(lambda data: bytes(len(data))),
    "ones": damaged(lambda data: b"\xff" * len(data)),
}


def some_timers(talk: Conversation) -> set[bytes]:
    """Send messages for several moments, some of which are delivered before this returns."""
    peer = FakePeer()
    names = set()
    for number in range(20):
        body = b"%d" % number
        send_at(talk, peer, NOW_MS + 2_000 + number * 1_000, body=body)
        names.add(body)
    advance(talk, 12_000)
    assert 0 < len(names - set(bodies(talk))) < 10
    return names


@pytest.mark.parametrize("stop", ["close", "kill"])
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_loses_no_waiting_message(tmp_path, name, how, stop):
    talk = Conversation(tmp_path, timer_log_file_bytes=1 << 12)
    sent = some_timers(talk)
    getattr(talk, stop)()
    DAMAGES[how](tmp_path / name)
    again = Conversation(tmp_path, clock=talk.clock, timer_log_file_bytes=1 << 12)
    again.advance(30_000)
    assert set(bodies(again)) == sent
    again.close()


@pytest.mark.parametrize("names", [FILES, FILES[:1], FILES[1:2], FILES[2:]])
def test_files_that_are_older_than_the_log_lose_no_message(tmp_path, names):
    talk = Conversation(tmp_path / "store", timer_log_file_bytes=1 << 12)
    peer = FakePeer()
    send_at(talk, peer, NOW_MS + 5_000, body=b"first")
    advance(talk, 1_000)
    old = {}
    for name in FILES:
        path = tmp_path / "store" / name
        kept = tmp_path / "old" / name
        kept.parent.mkdir(parents=True, exist_ok=True)
        old[name] = (shutil.copytree if path.is_dir() else shutil.copy)(path, kept)
    sent = some_timers(talk) | {b"first"}
    talk.close()
    for name in names:
        path = tmp_path / "store" / name
        missing(path)
        (shutil.copytree if old[name].is_dir() else shutil.copy)(old[name], path)
    again = Conversation(tmp_path / "store", clock=talk.clock, timer_log_file_bytes=1 << 12)
    again.advance(30_000)
    assert set(bodies(again)) == sent
    again.close()


@pytest.mark.parametrize("precision_ms", [100, 200, 500])
@pytest.mark.parametrize("stop", ["close", "kill"])
def test_another_precision_loses_no_waiting_message(tmp_path, precision_ms, stop):
    talk = Conversation(tmp_path)
    sent = some_timers(talk)
    getattr(talk, stop)()
    again = Conversation(tmp_path, clock=talk.clock, timer_precision_ms=precision_ms)
    again.advance(60_000)
    assert set(bodies(again)) == sent
    again.close()


@pytest.mark.parametrize("stop", ["close", "kill"])
def test_a_clock_that_was_ahead_for_a_while_loses_no_message(tmp_path, stop, peer):
    talk = Conversation(tmp_path)
    send_at(talk, peer, NOW_MS + 2_000, body=b"0")
    advance(talk, 3_000)
    talk.clock.set_wall(by_ms=3_600_000)
    send_at(talk, peer, NOW_MS + 3_606_000, body=b"1")
    advance(talk, 20_000)
    assert bodies(talk) == [b"0", b"1"]
    talk.clock.set_wall(by_ms=-3_600_000)
    send_at(talk, peer, NOW_MS + 60_000, body=b"2")
    for _ in range(20):  # Collected, with all written files truncated.
        talk.advance(100)
        talk.flush()
    getattr(talk, stop)()
    again = Conversation(tmp_path, clock=talk.clock)
    advance(again, 120_000)
    assert bodies(again) == [b"0", b"1", b"2"]
    again.close()


def test_a_kill_before_the_checkpoint_was_written_after_the_clock_was_set_back(tmp_path, peer):
    """The old checkpoint says that everything was delivered up to a time that is now in the future again."""
    talk = Conversation(tmp_path)
    talk.clock.set_wall(by_ms=3_600_000)
    send_at(talk, peer, NOW_MS + 3_602_000, body=b"1")
    advance(talk, 10_000)
    assert bodies(talk) == [b"1"]
    checkpoint = (tmp_path / "config" / "timercheck").read_bytes()
    talk.clock.set_wall(by_ms=-3_600_000)
    send_at(talk, peer, NOW_MS + 60_000, body=b"2")
    advance(talk, 10_000)
    talk.kill()
    assert (tmp_path / "config" / "timercheck").read_bytes() != checkpoint
    (tmp_path / "config" / "timercheck").write_bytes(checkpoint)
    again = Conversation(tmp_path, clock=talk.clock)
    advance(again, 120_000)
    assert set(bodies(again)) == {b"1", b"2"}
    again.close()
