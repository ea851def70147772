"""The requests of configuration: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from typing import Annotated, Final

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
    Versions,
)

# DescribeConfigs (32): the settings of topics and brokers. 1 answers synonyms, 3 documentation; 4 is
# flexible.
TOPIC: Final = 2
BROKER: Final = 4
#: The sources of a value, and its types, as far as they are answered (ConfigEntry.java).
DEFAULT_CONFIG: Final = 5
TYPE_STRING: Final = 2
TYPE_LONG: Final = 5


class DescribedResource(Message, frozen=True, kw_only=True):
    """A topic or a broker, and the wanted settings; None: all of them."""

    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None = None


class DescribeConfigsRequest(Request, frozen=True, kw_only=True):
    """Asks for settings."""

    resources: tuple[DescribedResource, ...]
    include_synonyms: Annotated[Boolean, Versions(1)] = False
    include_documentation: Annotated[Boolean, Versions(3)] = False


class Synonym(Message, frozen=True, kw_only=True):
    """Another place where a setting has a value."""

    name: String
    value: NullableString
    source: Int8


class Setting(Message, frozen=True, kw_only=True):
    """A setting and its value."""

    name: String
    value: NullableString
    read_only: Boolean = True
    config_source: Annotated[Int8, Versions(1)] = DEFAULT_CONFIG
    is_sensitive: Boolean = False
    synonyms: Annotated[tuple[Synonym, ...], Versions(1)] = ()
    config_type: Annotated[Int8, Versions(3)] = TYPE_STRING
    documentation: Annotated[NullableString, Versions(3)] = None


class DescribedConfigs(Message, frozen=True, kw_only=True):
    """The settings of one resource."""

    error_code: Int16 = 0
    error_message: Remark = None
    resource_type: Int8
    resource_name: String
    configs: tuple[Setting, ...] = ()


class DescribeConfigsResponse(Message, frozen=True, kw_only=True):
    """The settings, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[DescribedConfigs, ...]


# AlterConfigs (33): all settings of topics and brokers are replaced. 2 is flexible.
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


# IncrementalAlterConfigs (44): single settings of topics and brokers are changed. 1 is flexible.
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
