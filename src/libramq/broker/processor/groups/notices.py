"""Notices to members, as RocketMQ's requests: NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_RUNNING_INFO."""

from collections.abc import Iterable

from libramq.codes import RequestCode
from libramq.groups.pending_notifications import AreYouThere, GroupChanged, Notice
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Effects
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.frame import encode_frame


def send_notices(effects: Effects, notices: Iterable[Notice[Connection]]) -> None:
    """Send notices; all members of a group get the same frame.

    A change is announced again until the member has fetched the list, so a member that does not read needs
    no second one behind those that it has not read.
    """
    changed: dict[str, bytes] = {}
    for notice in notices:
        if not notice.peer.is_open:
            continue
        if isinstance(notice, GroupChanged):
            frame = changed.get(notice.group)
            if frame is None:
                frame = changed[notice.group] = _group_changed(notice.group)
            effects.offer(notice.peer, frame)
        else:
            effects.send(notice.peer, _probe(notice))


def _group_changed(group: str) -> bytes:
    code, ext = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}
    return encode_frame(Command(code=code, flag=FLAG_ONEWAY, ext=ext))


def _probe(notice: AreYouThere[Connection]) -> bytes:
    ext = {"consumerGroup": notice.group, "clientId": notice.client_id, "jstackEnable": "false"}
    return encode_frame(Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=notice.number, ext=ext))
