"""AlterConfigs (33): all settings of topics and brokers are replaced. 2 is flexible."""

from libramq.wire.kafka.schema import (
    Boolean,
    Int8,
    Int16,
    Int32,
    Message,
    NullableString,
    Remark,
    Request,
    String,
)


class AlterableConfig(Message, frozen=True, kw_only=True):
    """A setting; None: its default."""

    name: String
    value: NullableString = None


class AlterConfigsResource(Message, frozen=True, kw_only=True):
    """A topic or a broker, and its settings."""

    resource_type: Int8
    resource_name: String
    configs: tuple[AlterableConfig, ...]


class AlterConfigsRequest(Request, frozen=True, kw_only=True):
    """Sets settings."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: Boolean = False


class AlterConfigsResourceResponse(Message, frozen=True, kw_only=True):
    """The result for a resource."""

    error_code: Int16 = 0
    error_message: Remark = None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
