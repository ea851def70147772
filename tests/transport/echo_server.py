"""A server that echoes each request, over TLS or in plaintext, until the test ends."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from libramq.remoting.command import Command, reply_to
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import encode_frame

READ_BYTES = 1 << 16


class EchoServer:
    """An echo server; `requests` holds all requests read, `refusals` the errors of failed handshakes."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.requests: list[Command] = []
        self.refusals: list[str] = []
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, plain: socket.socket) -> None:
        with plain:
            try:
                connection = (
                    plain if self._context is None else self._context.wrap_socket(plain, server_side=True)
                )
            except OSError as error:
                self.refusals.append(str(error))
                return
            with connection:
                try:
                    self._answer(connection)
                except OSError as error:
                    self.refusals.append(str(error))

    def _answer(self, connection: socket.socket) -> None:
        reader = FrameReader()
        while data := connection.recv(READ_BYTES):
            try:
                requests = reader.receive(data)
            except Exception as error:  # For another protocol the connection ends, as with real servers.
                self.refusals.append(str(error))
                return
            self.requests += requests
            for request in requests:
                if not request.is_oneway:
                    connection.sendall(encode_frame(reply_to(request, 0, body=request.body)))


@contextmanager
def echo_server(context: ssl.SSLContext | None = None) -> Iterator[EchoServer]:
    server = EchoServer(context)
    try:
        yield server
    finally:
        server.close()
