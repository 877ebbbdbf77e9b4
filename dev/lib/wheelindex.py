"""A package index over a folder of wheels (PEP 503), and filling such a folder from the machine's own index."""

import hashlib
import html
import os
import re
import shutil
import subprocess
import tempfile
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import packages
from devlib import REPO, Failure, cache_dir, locked, say

PYTHON = "/usr/bin/python3"  # Debian's, which is also the Python in the images
SETTINGS = REPO / "crates/operator/src/settings.rs"


def sets_of_examples() -> list[str]:
    """What the pods of examples/ install: their packages, and the bridge for those that speak stdio. The bridge is
    installed apart from the package, so it is resolved apart as well."""
    bridge = re.search(r'bridge_package: "([^"]+)"', SETTINGS.read_text())[1]
    found = set()
    for file in sorted((REPO / "examples").glob("*.yaml")):
        for document in re.split(r"^---", file.read_text(), flags=re.M):
            package = re.search(r"^\s+(?:mcp|fromPackage):\s*[\"']?([^\s\"'#]+)", document, re.M)
            if package and not re.search(r"^\s*type:\s*node-runtime", document, re.M):
                found.add(package[1])
                if re.search(r"^\s+transport:\s*stdio", document, re.M):
                    found.add(bridge)
    return sorted(found)


def fetch(sets: list[str]) -> Path:
    """A folder with the wheels of these sets of requirements and all that they need. Each set is resolved on its
    own, as a pod would do it. Kept in the cache, so versions stay what they were when it was filled."""
    packages.ensure("tools")
    number = subprocess.run([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                            text=True, capture_output=True, check=True).stdout.strip()
    key = hashlib.sha256("\n".join([number, *sorted(sets)]).encode()).hexdigest()[:16]
    final = cache_dir() / "wheels" / key
    if final.is_dir():
        return final
    with locked(cache_dir() / "wheels" / f".{key}.lock", "waiting for another download of wheels"):
        if not final.is_dir():
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=final.parent))
            try:
                for requirements in sorted(sets):
                    _download(requirements, new)
                new.chmod(0o755)
                new.rename(final)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    return final


def _download(requirements: str, folder: Path) -> None:
    say(f"downloading {requirements} and what that needs, with pip")
    done = subprocess.run(
        [PYTHON, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
         "--only-binary=:all:", "--dest", str(folder), *requirements.split()],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Failure(f"pip download {requirements} failed:\n{done.stdout[-2000:]}")


def normal(name: str) -> str:
    """The one spelling of a project's name that an index answers to."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Handler(BaseHTTPRequestHandler):
    """`/simple/`, `/simple/NAME/` and `/files/WHEEL`."""

    folder: Path
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = [urllib.parse.unquote(part) for part in self.path.split("?")[0].split("/") if part]
        wheels = {file.name: file for file in sorted(self.folder.glob("*.whl"))}
        names = {name: normal(name.split("-")[0]) for name in wheels}
        if parts == ["simple"]:
            self._page((f"{name}/", name) for name in sorted(set(names.values())))
        elif len(parts) == 2 and parts[0] == "simple" and normal(parts[1]) in names.values():
            self._page((f"/files/{name}#sha256={_sha256(wheels[name])}", name)
                       for name, project in names.items() if project == normal(parts[1]))
        elif len(parts) == 2 and parts[0] == "files" and parts[1] in wheels:
            self._send(200, "application/octet-stream", wheels[parts[1]].read_bytes())
        else:
            self._send(404, "text/plain", b"not here\n")

    do_HEAD = do_GET

    def _page(self, links) -> None:
        lines = "".join(f'<a href="{html.escape(href)}">{html.escape(text)}</a><br>\n' for href, text in links)
        self._send(200, "text/html", f"<!DOCTYPE html><html><body>\n{lines}</body></html>\n".encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sha256(file: Path) -> str:
    known = _digests.get(file)
    if not known:
        known = _digests[file] = hashlib.sha256(file.read_bytes()).hexdigest()
    return known


_digests: dict[Path, str] = {}


def serve(folder: Path, host: str, port: int, until_stdin_ends: bool = False) -> None:
    """Serve the folder until killed; says where on stdout."""
    handler = type("Handler", (Handler,), {"folder": folder})
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise Failure(f"cannot listen on {host}:{port}: {os.strerror(error.errno)}") from None
    server.daemon_threads = True
    if until_stdin_ends:
        def watch() -> None:
            while os.read(0, 4096):
                pass
            os._exit(0)

        threading.Thread(target=watch, daemon=True).start()
    print(f"http://{host}:{server.server_address[1]}/simple/", flush=True)
    server.serve_forever()
