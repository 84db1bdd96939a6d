"""Redis over a bare socket, so that it is seen how a connection ends."""

import select
import socket


class Ended(Exception):
    """The connection is over: `clean` if by FIN between two replies."""

    def __init__(self, why, clean):
        super().__init__(why)
        self.clean = clean


class Refused(Exception):
    """An error reply."""


class Connection:
    def __init__(self, address, timeout=10):
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._file = self._socket.makefile("rb")

    def send(self, *commands):
        """Sends commands in one go; as many replies follow."""
        parts = []
        for command in commands:
            words = [str(word).encode() for word in command]
            parts += [b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)]
        try:
            self._socket.sendall(b"".join(parts))
        except OSError as error:
            raise Ended(f"send: {error}", False) from error

    def reply(self):
        line = self._line(first=True)
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(rest.decode())
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(int(rest)).decode()
        return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]

    def call(self, *command):
        self.send(command)
        return self.reply()

    def over(self):
        """Whether the other side's FIN is there already."""
        readable, _, _ = select.select([self._socket], [], [], 0)
        return bool(readable) and self._read(lambda: self._socket.recv(1, socket.MSG_PEEK)) == b""

    def close(self):
        self._file.close()
        self._socket.close()

    def _line(self, first=False):
        line = self._read(self._file.readline)
        if not line.endswith(b"\r\n"):
            raise Ended("FIN inside a reply" if line else "FIN", first and not line)
        return line

    def _bytes(self, length):
        data = self._read(lambda: self._file.read(length + 2))
        if len(data) < length + 2:
            raise Ended("FIN inside a reply", False)
        return data[:-2]

    def _read(self, read):
        try:
            return read()
        except OSError as error:
            raise Ended(f"read: {error}", False) from error
