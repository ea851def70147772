"""The remoting protocol without sockets: frames, commands, typed headers and bodies, signatures."""

from libramq.remoting.command import Command, Serialization, reply_to
from libramq.remoting.connection import FrameReader, PendingRequests
from libramq.remoting.frame import decode_frame, encode_frame

__all__ = [
    "Command",
    "FrameReader",
    "PendingRequests",
    "Serialization",
    "decode_frame",
    "encode_frame",
    "reply_to",
]
