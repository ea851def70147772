"""The proof of a slave: shows that the slave knows the secret of the cluster's brokers, before it gets the
log.

    slave ─► report       the end of its log, as always
    slave ◄─ challenge    a block at an impossible offset: random bytes
    slave ─► proof        a report below 0: the HMAC of these bytes with the secret
    slave ◄─ blocks       starting at the report

This is LibraMQ's own, and used only if clients are authenticated, because Apache's slaves cannot prove
anything. A slave that gets no challenge, as from Apache's master, copies as always.
"""

import hmac
from collections.abc import Callable
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline
from libramq.kernel.parts import Kernel
from libramq.replication.blocks import CHALLENGE_OFFSET, encode_block
from libramq.secret_bits import SecretBits

CHALLENGE_BYTES: Final = 16
#: Ours: a slave answers at once, but its process may stall for some seconds.
PROOF_MS_MAX: Final = 10_000
#: Ours: connections without a proof yet; a master has at most 16 slaves (`ha_service`). Beyond the limit the
#: oldest is closed, as in `transport/admission.py`, because a slave proves itself within a round trip.
UNPROVEN_MAX: Final = 64
_PURPOSE: Final = b"libra slave "


def slave_proof(secret: bytes, challenge: bytes) -> int:
    """Return the report that proves knowledge of the secret: 63 bits, for which an attacker has one guess."""
    return -1 - (int.from_bytes(hmac.digest(secret, _PURPOSE + challenge, "sha256")[:8]) >> 1)


class _Unproven(NamedTuple):
    """A challenged connection. report: the end of its slave's log."""

    report: int
    challenge: bytes
    end: Deadline


class SlaveProofs:
    """Challenges connections and checks their proofs. refuse: ends a connection with a reason."""

    def __init__(
        self,
        secrets: tuple[bytes, ...],
        secret_bits: SecretBits,
        kernel: Kernel,
        *,
        refuse: Callable[[Connection, str], None],
    ) -> None:
        self._secrets = secrets
        self._secret_bits = secret_bits
        self._effects, self._deadlines = kernel.effects, kernel.deadlines
        self._refuse = refuse
        self._unproven: dict[Connection, _Unproven] = {}

    def report_of(self, connection: Connection, reported: int, now_ms: MonotonicMs) -> int | None:
        """Check a challenged connection's proof and return its report; None if just challenged or refused."""
        unproven = self._unproven.get(connection)
        if unproven is None:
            self._challenge(connection, reported, now_ms)
            return None
        self.forget(connection)
        proof = reported.to_bytes(8, signed=True)
        expected = [slave_proof(secret, unproven.challenge) for secret in self._secrets]
        if not any(hmac.compare_digest(each.to_bytes(8, signed=True), proof) for each in expected):
            self._refuse(
                connection,
                "it has not proven to know the innerClientAuthenticationCredentials of this cluster; set the "
                "same at master and slave, both of LibraMQ",
            )
            return None
        return unproven.report

    def forget(self, connection: Connection) -> None:
        """Forget a connection that has ended or sent its proof."""
        unproven = self._unproven.pop(connection, None)
        if unproven is not None:
            unproven.end.cancel()

    def _challenge(self, connection: Connection, reported: int, now_ms: MonotonicMs) -> None:
        if len(self._unproven) >= UNPROVEN_MAX:
            oldest = next(iter(self._unproven))
            self.forget(oldest)
            self._refuse(oldest, f"{UNPROVEN_MAX} connections have not proven to be slaves")
        challenge = bytes.fromhex(self._secret_bits.token_hex(CHALLENGE_BYTES))
        reason = f"it has not proven to be a slave within {PROOF_MS_MAX} ms"
        end = self._deadlines.new(lambda _: self._refuse(connection, reason))
        end.at(now_ms + PROOF_MS_MAX)
        self._unproven[connection] = _Unproven(reported, challenge, end)
        self._effects.send(connection, encode_block(CHALLENGE_OFFSET, challenge))
