"""Timeouts of outgoing connections and requests, for shells of every kind.

A module of its own, so that blocking callers do not load asyncio for two numbers.
"""

from typing import Final

#: NettyClientConfig.connectTimeoutMillis.
CONNECT_TIMEOUT_MS: Final = 3000
#: ClientConfig.mqClientApiTimeout.
REQUEST_TIMEOUT_MS: Final = 3000
