"""Bodies of coordinated groups: decoded into domain values and encoded again."""

from libramq.fencing import MODE_CLIENT, Claim, FenceGrant, FenceReport
from libramq.formats.document import decode_body, encode_body
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import PeerGathered, PeerGrantBody

CLAIMS = {MessageQueue("T", "b", 1): Claim("alice", 7), MessageQueue("%RETRY%G", "b", 0): Claim("", 3)}


def test_a_grant_round_trips():
    for grant in (
        FenceGrant(group="G", epoch=9, claims=CLAIMS, complete=True),
        FenceGrant(group="G", epoch=1, mode=MODE_CLIENT, client_ids={"alice": "a@1"}),
    ):
        assert decode_body(encode_body(PeerGrantBody.of(grant)), PeerGrantBody).value() == grant


def test_a_report_round_trips():
    for report in (
        FenceReport(),
        FenceReport(epoch=7, openings=CLAIMS, members=["alice"], members_epoch=8),
    ):
        assert decode_body(encode_body(PeerGathered.of(report)), PeerGathered).value() == report


def test_the_highest_epoch_of_a_body_counts():
    assert FenceGrant(group="G", epoch=2, claims=CLAIMS).highest_epoch == 7
    assert FenceReport(epoch=2, openings=CLAIMS, members_epoch=8).highest_epoch == 8
