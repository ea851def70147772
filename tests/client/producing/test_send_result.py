"""Results of a batch are created on access and are the same by every way of access."""

import pytest

from libramq.client.producing.send_result import SendResult, SendStatus, send_results
from libramq.message import MessageQueue
from libramq.rpc.broker_calls import SendReply

ASKED = MessageQueue("T", "a", -1)


FIRST = "7F00000100002A9F"


def results(offset_ids, inner_num=""):
    return send_results(("x", "y", "z"), ASKED, SendReply(10, 3, 17, offset_ids, "t", "r", inner_num))


@pytest.mark.parametrize(
    ("offset_ids", "inner_num", "found"),
    [
        ("A,B,C", "", "ABC"),
        ("A,B", "", ["", "", ""]),
        (f"{FIRST}{'00000000000012AB'}", "3", [f"{FIRST}{number:04}0000000012AB" for number in range(3)]),
        (f"{FIRST}{'00000000000012AB'}", "2", ["", "", ""]),
        ("no id", "3", ["", "", ""]),
    ],
)
def test_results_have_the_places_of_their_messages(offset_ids, inner_num, found):
    """A broker that names another number of positions than there are messages names none.

    It names one of a batch that is stored as one record, and how many messages that has.
    """
    queue = MessageQueue("T", "a", 3)
    expected = [
        SendResult(SendStatus.FLUSH_DISK_TIMEOUT, unique_id, offset_id, queue, 17 + number, "t", "r")
        for number, (unique_id, offset_id) in enumerate(zip("xyz", found, strict=True))
    ]
    made = results(offset_ids, inner_num)
    assert list(made) == expected
    assert [made[0], made[1], made[-1]] == expected
    assert made[1:] == expected[1:]
    assert [*made, *made] == expected * 2
    assert all(type(each) is SendResult for each in made)
    with pytest.raises(IndexError):
        made[3]
