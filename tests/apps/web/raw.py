"""A client that sends bytes as they are."""

import contextlib
import json
import socket


def connect(port, timeout=10):
    """A connection to this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def read(connection):
    """All that comes until the end, or until nothing does."""
    found = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(2**16):
            found += part
    return found


def tell(port, *parts, half=False, timeout=10):
    """What a server answers to these bytes; `half` closes our side behind them."""
    with connect(port, timeout) as connection:
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)
            if half:
                connection.shutdown(socket.SHUT_WR)
        return read(connection)


def status_of(answer):
    """The status of an answer; 0 where there is none."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def error_of(answer):
    """The error in OpenAI's form that an answer is."""
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status_of(answer)
    return error


def get(path, *lines, host="127.0.0.1"):
    """A GET that ends its connection."""
    head = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *lines]
    return "\r\n".join([*head, "", ""]).encode()


def post(path, body, *lines, kind="application/json"):
    """A POST that ends its connection."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    head += [f"Content-Type: {kind}", f"Content-Length: {len(data)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + data
