"""Delay levels: the account of deliveries, and store times independent of changes of the wall clock."""

from libramq.broker.files.delay_schedule import (
    SETTINGS_MAX,
    UNNOTICED_MS,
    WAITING_MAX,
    LevelAccount,
    StoredMoments,
)
from libramq.clock import Now


def test_what_waits_is_undelivered_and_so_is_all_that_follows_the_account():
    account = LevelAccount(until=9, waiting=(3, 7))
    assert [account.first_undelivered(each) for each in range(11)] == [3, 3, 3, 3, 7, 7, 7, 7, 9, 9, 10]


def test_an_account_from_outside_is_put_in_order_and_bounded():
    assert LevelAccount(until=9, waiting=(7, 3, 7, -1, 12)).bounded(8) == LevelAccount(
        until=8, waiting=(3, 7)
    )
    assert LevelAccount(until=-5, waiting=(3,)).bounded(8) == LevelAccount()
    many = LevelAccount(until=1 << 40, waiting=tuple(range(0, 4 * WAITING_MAX, 2))).bounded(1 << 30)
    assert len(many.waiting) == WAITING_MAX
    assert many.until == 2 * WAITING_MAX  # Possible later deliveries are repeated.


def test_the_account_by_which_more_is_delivered_is_ahead():
    account = LevelAccount(until=9, waiting=(3, 7))
    assert LevelAccount(until=10).is_ahead_of(account)
    assert LevelAccount(until=9, waiting=(7,)).is_ahead_of(account)
    assert not account.is_ahead_of(account)
    assert not LevelAccount(until=8).is_ahead_of(account)


HOUR_MS = 3_600_000
WALL_MS = 1_700_000_000_000


def now(monotonic_ms: int, *, set_by_ms: int = 0) -> Now:
    """Return the time on a wall clock that read WALL_MS at monotonic zero, and was set since."""
    return Now(wall_ms=WALL_MS + monotonic_ms + set_by_ms, monotonic_ms=monotonic_ms)


def test_each_record_is_timed_by_the_clock_it_was_stored_with():
    moments = StoredMoments(now(1_000))
    moments.note(500, now(4_000, set_by_ms=HOUR_MS))
    moments.note(900, now(5_000, set_by_ms=-HOUR_MS))
    assert moments.moment_of(0, WALL_MS + 1_200) == 1_200
    assert moments.moment_of(499, WALL_MS + 3_999) == 3_999
    assert moments.moment_of(500, WALL_MS + HOUR_MS + 4_000) == 4_000
    assert moments.moment_of(900, WALL_MS - HOUR_MS + 5_100) == 5_100


def test_small_clock_corrections_are_ignored_until_they_add_up():
    moments = StoredMoments(now(0))
    assert not moments.is_set(now(10_000))
    assert not moments.is_set(now(10_000, set_by_ms=UNNOTICED_MS))
    assert not moments.is_set(now(20_000, set_by_ms=-UNNOTICED_MS))
    assert moments.is_set(now(30_000, set_by_ms=UNNOTICED_MS + 1))


def test_a_clock_that_is_set_all_the_time_uses_bounded_memory():
    moments = StoredMoments(now(0))
    last = 3 * SETTINGS_MAX
    for number in range(1, last + 1):
        moments.note(100 * number, now(number, set_by_ms=1_000 * number))
    assert len(moments._starts) == SETTINGS_MAX
    assert moments.moment_of(100 * last, WALL_MS + last + 1_000 * last) == last
    assert moments.moment_of(50, WALL_MS + 7) == 7, "of an earlier process"
