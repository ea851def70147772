"""Authorisation of requests: processors run only if the authorizer permits everything that a request touches.

An authorizer that permits everything costs nothing: the processors stay as they are. Otherwise bodies that
name resources are decoded twice, here and by their processor; large ones on a thread.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.remoting.headers import decode_header
from libramq.remoting.requests import REQUESTS
from libramq.rpc.operations import OPERATIONS
from libramq.rpc.outcome import Outcome
from libramq.rpc.request import BatchProcessor, Processor, Request, failure
from libramq.rpc.request_body import with_body


def authorised(processors: Mapping[int, Processor], authorizer: Authorizer) -> Mapping[int, Processor]:
    """Wrap processors so that they refuse what the authorizer refuses."""
    if authorizer.permits_everything:
        return processors
    return {code: _guarded(processor, authorizer) for code, processor in processors.items()}


def authorised_batches(
    processors: Mapping[int, BatchProcessor], authorizer: Authorizer
) -> Mapping[int, BatchProcessor]:
    """Wrap batch processors so that they get only the requests that the authorizer permits."""
    if authorizer.permits_everything:
        return processors
    # One for all codes of a processor: equal processors make neighbours a batch.
    guarded = {processor: _guarded_batch(processor, authorizer) for processor in processors.values()}
    return {code: guarded[processor] for code, processor in processors.items()}


def _guarded(processor: Processor, authorizer: Authorizer) -> Processor:
    def guarded(request: Request) -> Outcome:
        body_type = OPERATIONS[request.command.code].body

        def decide(body: Any) -> Outcome:
            _require(request, body, authorizer)
            return processor(request)

        return decide(None) if body_type is None else with_body(request, body_type, decide)

    return guarded


def _guarded_batch(processor: BatchProcessor, authorizer: Authorizer) -> BatchProcessor:
    def guarded(requests: Sequence[Request]) -> Sequence[Outcome]:
        refusals = [_refusal(request, authorizer) for request in requests]
        permitted = [request for request, refused in zip(requests, refusals, strict=True) if refused is None]
        outcomes = iter(processor(permitted) if permitted else ())
        return [next(outcomes) if refused is None else refused for refused in refusals]

    return guarded


def _refusal(request: Request, authorizer: Authorizer) -> Outcome | None:
    try:
        _require(request, None, authorizer)
    except Exception as error:  # A refused request does not affect its neighbours.
        return failure(error, request)
    return None


def _require(request: Request, body: Any, authorizer: Authorizer) -> None:
    code = request.command.code
    header = decode_header(request.command, REQUESTS[code].header)
    require_permission(authorizer, OPERATIONS[code].operation(request.principal, header, body))
