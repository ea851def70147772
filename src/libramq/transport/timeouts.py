"""How long outgoing connections and requests wait, whatever shell makes them.

A module of its own, so that blocking callers do not load asyncio for two numbers.
"""

from typing import Final

#: NettyClientConfig.connectTimeoutMillis.
CONNECT_TIMEOUT_MS: Final = 3000
#: ClientConfig.mqClientApiTimeout.
REQUEST_TIMEOUT_MS: Final = 3000
