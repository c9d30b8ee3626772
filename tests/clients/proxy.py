"""A proxy between clients and the server that cuts connections in the middle of what they say."""

import contextlib
import random
import socket
import threading

RECEIVE_BYTES_MAX = 65536
LENGTH_BYTES = 4
# So many frames of a connection always pass, in either direction, so that clients get anywhere.
SAFE_FRAMES = 3


class CuttingProxy:
    """Passes on whole frames, and now and then only the beginning of one: then the connection is cut.

    So the server may have done what it was asked while the client never hears of it.
    """

    def __init__(self, address, cut_chance, seed):
        host, port = address.rsplit(":", 1)
        self._server = (host, int(port))
        self._chance = cut_chance
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, 0))
        own_port = self._listener.getsockname()[1]
        self.address = f"{host}:{own_port}"
        # Answers tell clients where the server is; they are to come here. The lengths are the same.
        self._told = host.encode() + int(port).to_bytes(4, "big")
        self._to_tell = host.encode() + own_port.to_bytes(4, "big")
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop_cutting()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def stop_cutting(self):
        with self._lock:
            self._chance = 0

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for pair in [(client, server), (server, client)]:
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source, target):
        with contextlib.suppress(OSError):
            safe_frames = SAFE_FRAMES
            while frame := read_frame(source):
                frame = frame.replace(self._told, self._to_tell)
                passed = len(frame) if safe_frames else self._passed_bytes(len(frame))
                safe_frames = max(0, safe_frames - 1)
                target.sendall(frame[:passed])
                if passed < len(frame):
                    break
        # The thread of the other direction wakes up, too. The sockets are closed when both have let go.
        for end in [source, target]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

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
