"""IncrementalAlterConfigs (44): single settings of topics and brokers are changed. 1 is flexible."""

from typing import Final

from libramq.wire.kafka.apis.alter_configs import AlterConfigsResourceResponse
from libramq.wire.kafka.schema import Boolean, Int8, Int32, Message, NullableString, Request, String

#: The operation: set the value. Others delete it, and add or remove parts of a list.
SET: Final = 0


class IncrementalConfig(Message, frozen=True, kw_only=True):
    """A change of a setting."""

    name: String
    config_operation: Int8 = SET
    value: NullableString = None


class IncrementalAlterConfigsResource(Message, frozen=True, kw_only=True):
    """A topic or a broker, and the changes."""

    resource_type: Int8
    resource_name: String
    configs: tuple[IncrementalConfig, ...]


class IncrementalAlterConfigsRequest(Request, frozen=True, kw_only=True):
    """Changes settings."""

    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: Boolean = False


class IncrementalAlterConfigsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
