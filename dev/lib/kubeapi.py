"""A very small Kubernetes client: JSON over HTTPS with a client certificate."""

import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from pathlib import Path


class Api:
    """Requests to one API server, with the certificate files of `pki`."""

    def __init__(self, url: str, pki: Path, user: str = "admin"):
        self.url = url
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / f"{user}.crt", pki / f"{user}.key")
        # No proxy: the address is a private one on this machine, whatever http_proxy says.
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))

    def request(self, method: str, path: str, body=None, timeout: float = 5):
        """Gives (status, decoded JSON or text). Connection trouble is status 0."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers={
            "Content-Type": "application/json", "Accept": "application/json"})
        try:
            with self.opener.open(request, timeout=timeout) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, content = error.code, error.read()
        except (OSError, ssl.SSLError) as error:
            return 0, str(error)
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode(errors="replace")

    def get(self, path: str, timeout: float = 5):
        """The decoded answer, or None when there is none."""
        status, answer = self.request("GET", path, timeout=timeout)
        return answer if status == 200 else None

    def ready(self, timeout: float = 2) -> bool:
        return self.request("GET", "/readyz", timeout=timeout)[0] == 200


def dns_answers(server: str, name: str, timeout: float = 0.5) -> bool:
    """Does this DNS server resolve `name` to at least one address?"""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.strip(".").split("."))
    query = struct.pack(">HHHHHH", 0x4761, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(timeout)
        try:
            link.sendto(query, (server, 53))
            answer = link.recv(4096)
        except OSError:
            return False
    identity, flags, _, answers = struct.unpack(">HHHH", answer[:8])
    return identity == 0x4761 and flags & 0xF == 0 and answers > 0
