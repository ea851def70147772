"""Results of a batch are made when they are looked at, and are the same in every way of looking."""

import pytest

from libramq.client.producing.send_result import SendResult, SendStatus, send_results
from libramq.message import MessageQueue
from libramq.rpc.broker_calls import SendReply

ASKED = MessageQueue("T", "a", -1)


def results(offset_ids):
    return send_results(("x", "y", "z"), ASKED, SendReply(10, 3, 17, offset_ids, "t", "r"))


@pytest.mark.parametrize(("offset_ids", "found"), [("A,B,C", "ABC"), ("A,B", ["", "", ""])])
def test_results_have_the_places_of_their_messages(offset_ids, found):
    """A broker that names another number of positions than there are messages names none."""
    queue = MessageQueue("T", "a", 3)
    expected = [
        SendResult(SendStatus.FLUSH_DISK_TIMEOUT, unique_id, offset_id, queue, 17 + number, "t", "r")
        for number, (unique_id, offset_id) in enumerate(zip("xyz", found, strict=True))
    ]
    made = results(offset_ids)
    assert list(made) == expected
    assert [made[0], made[1], made[-1]] == expected
    assert made[1:] == expected[1:]
    assert [*made, *made] == expected * 2
    assert all(type(each) is SendResult for each in made)
    with pytest.raises(IndexError):
        made[3]
