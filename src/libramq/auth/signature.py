"""The signature of a request: the signed content, the algorithm (HMAC-SHA1), and its verification.

    Signature = Base64(HMAC-SHA1(secret, values of the fields in the order of their names + body))

Access key and security token are fields and signed like the others; the secret is never sent. Clients of ACL
1.0 and 2.0 sign the same way. Upstream: AclUtils.combineRequestContent, AclSigner.java.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


def signature(fields: Mapping[str, str], body: bytes, secret: bytes) -> str:
    """Return the signature of a body and all fields except the signature itself.

    Takes about 3 µs plus SHA-1's time for the body. Raises UnicodeEncodeError for a lone surrogate.
    """
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode() + body
    return b64encode(hmac.digest(secret, content, "sha1")).decode()


def is_right(fields: Mapping[str, str], body: bytes, *secrets: bytes) -> bool:
    """Return whether the fields' signature was made with one of the secrets; compares in constant time."""
    try:
        expected = [signature(fields, body, secret).encode() for secret in secrets]
        presented = fields.get(SIGNATURE, "").encode()
    except UnicodeEncodeError:  # A lone surrogate, which cannot be signed.
        return False
    return any(hmac.compare_digest(presented, each) for each in expected)
