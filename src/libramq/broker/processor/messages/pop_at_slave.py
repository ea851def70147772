"""POP_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME, QUERY_ASSIGNMENT at a slave: served while it acts.

Nothing is popped in order there: what is blocked would have to be written. A group that the slave has not
copied yet would be another one than its master's.
"""

from collections.abc import Callable
from functools import partial

from libramq.broker.pop.pops_at_slave import PopsAtSlave
from libramq.catalog.request_modes import RequestModes
from libramq.codes import RequestCode
from libramq.formats.tables import MODE_POP
from libramq.pop.handle import decode_handle
from libramq.remoting.body.assignment import QueryAssignmentBody
from libramq.remoting.pop_headers import ChangeInvisibleTimeHeader, PopMessageHeader
from libramq.rpc.outcome import Outcome
from libramq.rpc.request import Processor, Request


class PopAtSlave:
    """Serves what a slave otherwise refuses. forwards: whether it forwards pops to its master."""

    def __init__(
        self,
        pops: PopsAtSlave,
        has_group: Callable[[str], bool],
        modes: RequestModes,
        *,
        forwards: Callable[[], bool],
    ) -> None:
        self._forwards = forwards
        self._pops = pops
        self._has_group = has_group
        self._modes = modes

    def serve(self, served: dict[int, Processor], refused: dict[int, Processor]) -> None:
        """Put the processors that decide into `refused`. served: a master's processors."""
        for code, decide in (
            (RequestCode.POP_MESSAGE, self._pop),
            (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self._change),
            (RequestCode.QUERY_ASSIGNMENT, self._assign),
        ):
            refused[code] = partial(decide, served[code], refused[code])

    def _pop(self, serve: Processor, refuse: Processor, request: Request) -> Outcome:
        if not self._pops.is_serving:
            return refuse(request)
        header: PopMessageHeader = request.header
        if header.order or not self._has_group(header.consumer_group):
            return refuse(request)
        return serve(request)

    def _change(self, serve: Processor, refuse: Processor, request: Request) -> Outcome:
        header: ChangeInvisibleTimeHeader = request.header
        handle = decode_handle(header.extra_info)
        key = (header.topic, header.consumer_group, header.queue_id, handle.start_offset, handle.pop_time_ms)
        return serve(request) if self._pops.has(key) else refuse(request)

    def _assign(self, serve: Processor, refuse: Processor, request: Request) -> Outcome:
        """Assign what a group pops; queues that it pulls a coordinator assigns, which a slave is not."""
        if not (self._pops.is_serving or self._forwards()):
            return refuse(request)
        body: QueryAssignmentBody = request.body
        mode = self._modes.get(body.topic, body.consumer_group)
        return serve(request) if mode is not None and mode.mode == MODE_POP else refuse(request)
