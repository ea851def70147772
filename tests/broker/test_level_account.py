"""The account of a delay level: what is delivered behind its first message that is not."""

from libramq.broker.files.schedule_file import WAITING_MAX, LevelAccount


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
    assert many.until == 2 * WAITING_MAX  # What may have been delivered behind it is delivered again.


def test_the_account_by_which_more_is_delivered_is_ahead():
    account = LevelAccount(until=9, waiting=(3, 7))
    assert LevelAccount(until=10).is_ahead_of(account)
    assert LevelAccount(until=9, waiting=(7,)).is_ahead_of(account)
    assert not account.is_ahead_of(account)
    assert not LevelAccount(until=8).is_ahead_of(account)
