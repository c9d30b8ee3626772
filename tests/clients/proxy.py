"""Proxies between clients and the server."""

import contextlib
import random
import socket
import threading

RECEIVE_BYTES_MAX = 65536
LENGTH_BYTES = 4
# This number of frames of a connection always passes, in either direction, so that clients make progress.
SAFE_FRAMES = 3


class PassingProxy:
    """Passes all bytes on, as a port mapping does. The server may be named after the proxy has its port."""

    def __init__(self, host="127.0.0.1"):
        self.server = None
        self.connections = 0
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"{host}:{self.port}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(self.server)
            for pair in [(client, server), (server, client)]:
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source, target):
        with contextlib.suppress(OSError):
            self._pass_all(source, target)
        # The thread of the other direction wakes up, too. The sockets are closed when both have let go.
        for end in [source, target]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass_all(self, source, target):
        while piece := source.recv(RECEIVE_BYTES_MAX):
            target.sendall(piece)


class CuttingProxy(PassingProxy):
    """Passes on whole frames, and now and then only the beginning of one: then the connection is cut.

    So the server may have executed a request whose answer the client never gets.
    """

    def __init__(self, address, cut_chance, seed):
        host, port = address.rsplit(":", 1)
        super().__init__(host)
        self.server = (host, int(port))
        self._chance = cut_chance
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        # Answers contain the address of the server; the proxy replaces it by its own, of the same length.
        self._told = host.encode() + int(port).to_bytes(4, "big")
        self._to_tell = host.encode() + self.port.to_bytes(4, "big")
        self.cuts = 0

    def __exit__(self, *_):
        self.stop_cutting()
        super().__exit__()

    def stop_cutting(self):
        with self._lock:
            self._chance = 0

    def _pass_all(self, source, target):
        safe_frames = SAFE_FRAMES
        while frame := read_frame(source):
            frame = frame.replace(self._told, self._to_tell)
            passed = len(frame) if safe_frames else self._passed_bytes(len(frame))
            safe_frames = max(0, safe_frames - 1)
            target.sendall(frame[:passed])
            if passed < len(frame):
                break

    def _passed_bytes(self, frame_bytes):
        """How much of a frame is passed on."""
        with self._lock:
            if self._random.random() >= self._chance:
                return frame_bytes
            self.cuts += 1
            return self._random.randrange(frame_bytes)


def read_frame(source):
    """A frame with its length before it; nothing at the end of the connection."""
    head = read_exactly(source, LENGTH_BYTES)
    return head and head + read_exactly(source, int.from_bytes(head, "big"))


def read_exactly(source, count):
    read = bytearray()
    while len(read) < count:
        piece = source.recv(min(count - len(read), RECEIVE_BYTES_MAX))
        if not piece:
            return b""
        read += piece
    return bytes(read)
