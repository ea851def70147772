"""Notices to members, as RocketMQ's requests: NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_RUNNING_INFO."""

from collections.abc import Iterable

from libramq.codes import RequestCode
from libramq.groups.notice import GroupChanged, Notice
from libramq.kernel.connection import Connection
from libramq.rpc.outcome import Notify


def requests_of(notices: Iterable[Notice[Connection]]) -> tuple[Notify, ...]:
    """Return the requests for notices; all members of a group get the same fields, so one frame."""
    fields: dict[str, dict[str, str]] = {}
    requests: list[Notify] = []
    for notice in notices:
        group = notice.group
        if isinstance(notice, GroupChanged):
            ext = fields.setdefault(group, {"consumerGroup": group})
            requests.append(Notify(notice.peer, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext))
        else:
            ext = {"consumerGroup": group, "clientId": notice.client_id, "jstackEnable": "false"}
            requests.append(Notify(notice.peer, RequestCode.GET_CONSUMER_RUNNING_INFO, ext, notice.number))
    return tuple(requests)
