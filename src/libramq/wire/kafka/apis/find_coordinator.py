"""FindCoordinator (10): the broker that coordinates a group. 3 is flexible; 4 asks for several groups at
once.
"""

from typing import Annotated, Final

from libramq.wire.kafka.schema import Int8, Int16, Int32, Message, Remark, Request, String, Versions

GROUP: Final = 0


class FindCoordinatorRequest(Request, frozen=True, kw_only=True):
    """Asks for the coordinators of keys. key_type: 0 a group; others are transactions and share groups."""

    key: Annotated[String, Versions(0, 3)] = ""
    key_type: Annotated[Int8, Versions(1)] = GROUP
    coordinator_keys: Annotated[tuple[String, ...], Versions(4)] = ()


class Coordinator(Message, frozen=True, kw_only=True):
    """The coordinator of a key."""

    key: String
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1
    error_code: Int16 = 0
    error_message: Remark = None


class FindCoordinatorResponse(Message, frozen=True, kw_only=True):
    """One coordinator, or, from version 4 on, one for each key."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Annotated[Int16, Versions(0, 3)] = 0
    error_message: Annotated[Remark, Versions(1, 3)] = None
    node_id: Annotated[Int32, Versions(0, 3)] = -1
    host: Annotated[String, Versions(0, 3)] = ""
    port: Annotated[Int32, Versions(0, 3)] = -1
    coordinators: Annotated[tuple[Coordinator, ...], Versions(4)] = ()
