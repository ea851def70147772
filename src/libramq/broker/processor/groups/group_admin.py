"""UPDATE_AND_CREATE_SUBSCRIPTIONGROUP and similar requests: consumer groups created, changed, deleted and
listed, and topics forbidden to them.

Upstream: AdminBrokerProcessor.java.
"""

from typing import Final

from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.pull import Pull
from libramq.broker.processor.listing import Listing, requested_page
from libramq.catalog.group_table import GroupTable
from libramq.catalog.requirements import topic_forbidden
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import encode_body
from libramq.kernel.work import Work
from libramq.remoting import headers as h
from libramq.remoting.body.administration import GroupConfigList, GroupForbidden
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.waits.held_pulls import HeldPulls

#: Ours: a list is created in slices, between which others run; a group takes 0.3 ms to journal.
GROUPS_PER_LIST_MAX: Final = 1_000


class GroupAdministration:
    """The processor of queries and changes of groups.

    held: pulls, which are refused when their group is deleted or forbidden their topic.
    """

    def __init__(
        self,
        *,
        groups: GroupTable,
        offsets: OffsetCommits,
        coordination: Coordination,
        held: HeldPulls[Pull],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._coordination = coordination
        self._held = held
        self._listing = Listing("subscription_group_table")

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def create(self, request: Request) -> Outcome:
        """Create a group or change it."""
        self._groups.put(request.body, request.wall_ms)
        return SUCCESS

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def create_list(self, request: Request) -> Work[Outcome]:
        """Create or change groups: all of them, or none if one is invalid."""
        body: GroupConfigList = request.body
        if len(body.group_config_list) > GROUPS_PER_LIST_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"{len(body.group_config_list)} groups in one list; {GROUPS_PER_LIST_MAX} are allowed",
            )
        for config in body.group_config_list:
            self._groups.check(config)
        for config in body.group_config_list:
            self._groups.put(config, request.wall_ms)
            yield None
        return SUCCESS

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete(self, request: Request) -> Outcome:
        """Delete a group's configuration, and its offsets if requested."""
        header: h.DeleteGroupHeader = request.header
        self._groups.delete(header.group_name, request.wall_ms)
        if header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._coordination.group_removed(header.group_name, may_return=self._groups.creates_on_use)
        self._end_pulls(header.group_name)
        return SUCCESS

    def _end_pulls(self, group: str) -> None:
        """End the pulls of a deleted group, so that its live members open their queues again."""
        gone = broker_error(ResponseCode.NOT_YET_GRANTED, f"group {group} was deleted")
        for held in self._held.take_where(
            lambda held: held.request.group == group and held.request.member is not None
        ):
            held.request.waiter.refuse(gone)

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def list_all(self, request: Request) -> Outcome:
        """Return all groups with their configuration."""
        header: h.GetAllGroupsHeader = request.header
        total = {"totalGroupNum": str(len(self._groups))}
        page = requested_page(header.data_version, header.group_seq, header.max_group_num)
        return self._listing.answer(self._groups.wrapper(), page, total)

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def get(self, request: Request) -> Outcome:
        """Return one group's configuration."""
        header: h.GroupByNameHeader = request.header
        config = self._groups.find(header.group, request.wall_ms)
        if config is None:
            return Reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group {header.group} does not exist"
            )
        return Reply(body=encode_body(config))

    @serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    def forbid(self, request: Request) -> Outcome:
        """Forbid a group from reading a topic, or allow it again, as requested; return whether it may.

        Held pulls are refused at once; otherwise they would get the next message.
        """
        header: h.GroupForbiddenHeader = request.header
        group, topic = header.group, header.topic
        if header.readable is not None:
            self._groups.forbid(group, topic, request.wall_ms, is_forbidden=not header.readable)
        if header.readable is False:
            refusal = topic_forbidden(group, topic)
            for held in self._held.take_where(
                lambda held: held.request.group == group and held.request.topic == topic
            ):
                held.request.waiter.refuse(refusal)
        readable = self._groups.may_read(group, topic)
        return Reply(body=encode_body(GroupForbidden(group=group, topic=topic, readable=readable)))
