"""The question: a request from an engine to another process, with a callback for its answer; and the signing
of such requests.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from libramq.errors import LibraError
from libramq.kernel.work import Callback
from libramq.logs import get_logger
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign_for
from libramq.rpc.call import Call

log = get_logger(__name__)


class Question(NamedTuple):
    """answered: called once, with the call's result or a LibraError."""

    address: str
    call: Call[Any]
    answered: Callable[[Any], None]
    timeout_ms: int

    def command(self) -> Command:
        """Return the request."""
        return self.call.command()

    def done(self, outcome: Command | LibraError) -> None:
        """Pass on the result of the request."""
        try:
            self.answered(self.call.outcome(outcome, where=self.address))
        except Exception:  # A fault in one callback must not close the connection for all.
            log.exception("a response could not be processed", address=self.address)


Ask = Callable[[Question], None]


def answer_to(ask: Ask, address: str, call: Call[Any], timeout_ms: int) -> Callback:
    """Return the answer to a call for long work to wait for; errors are raised there."""
    return Callback(lambda done: ask(Question(address, call, done, timeout_ms)))


def signing(ask: Ask, credentials: Credentials | None) -> Ask:
    """Wrap `ask` to sign requests for their addresses; without credentials return it unchanged."""
    if credentials is None:
        return ask

    def ask_signed(question: Question) -> None:
        command = sign_for(question.command(), credentials, question.address)
        ask(question._replace(call=replace(question.call, ext=command.ext)))

    return ask_signed
