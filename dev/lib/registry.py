"""Starting, stopping and filling the local registry."""

import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import packages
from devlib import Failure, locked, state_dir, until

PORT = 5000  # the one that containerd in the clusters knows, see clusterparts.py


def home() -> Path:
    return state_dir() / "registry"


def running() -> int:
    """The process id of the registry, 0 when none runs. It holds a lock while it lives."""
    try:
        with open(home() / "running", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return 0
            except BlockingIOError:
                return int(file.read().strip() or 0)
    except FileNotFoundError:
        return 0


def answers(host: str = "127.0.0.1") -> bool:
    connection = http.client.HTTPConnection(host, PORT, timeout=2)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def up() -> bool:
    """Start the registry, empty; False when it is already there."""
    packages.ensure("image")
    with locked(state_dir() / ".registry.lock", "waiting for another dev/registry", remove=True):
        if running() and until(answers, 10):
            return False
        _clear()
        home().mkdir(parents=True, mode=0o700)
        with open(home() / "log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-B", str(Path(__file__).with_name("registryd.py")), str(home()),
                 str(PORT)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True)
        if not until(lambda: process.poll() is not None or (running() and answers()), 20):
            process.kill()
        if process.poll() is not None:
            words = (home() / "log").read_text(errors="replace")
            taken = (f"\nSomething else listens on port {PORT}; is it the registry of another state folder?"
                     if "Address already in use" in words else "")
            _clear()
            raise Failure(f"the registry did not start:\n{words[-2000:].rstrip()}{taken}")
    return True


def down() -> bool:
    """End the registry and drop what it holds; False when there was none."""
    with locked(state_dir() / ".registry.lock", "waiting for another dev/registry", remove=True):
        if not home().exists():
            return False
        _clear()
    return True


def _clear() -> None:
    pid = running()
    if pid:
        os.kill(pid, signal.SIGTERM)
        if not until(lambda: not running(), 10, 0.02):
            os.kill(pid, signal.SIGKILL)
            until(lambda: not running(), 10, 0.02)
    shutil.rmtree(home(), ignore_errors=True)


def push(archive: Path, name: str | None = None) -> str:
    """Put the image of a docker-archive into the registry; gives "name:tag" as it is there."""
    if not running():
        raise Failure("the registry is not up: dev/registry up")
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))[0]
        name = name or manifest["RepoTags"][0]
        # Without the host of another registry, if the name has one.
        repository, _, tag = re.sub(r"^[^/]*[.:][^/]*/", "", name).rpartition(":")
        if not repository:
            repository, tag = tag, "latest"
        with tempfile.TemporaryDirectory(prefix="gantry-push-") as folder:
            config = _blob(tar, manifest["Config"], repository, folder,
                           "application/vnd.oci.image.config.v1+json")
            layers = [_blob(tar, layer, repository, folder, "application/vnd.oci.image.layer.v1.tar")
                      for layer in manifest["Layers"]]
    body = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                       "config": config, "layers": layers}).encode()
    _request("PUT", f"/v2/{repository}/manifests/{tag}", body,
             {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}, 201)
    return f"{repository}:{tag}"


def _blob(tar: tarfile.TarFile, member: str, repository: str, folder: str, kind: str) -> dict:
    """Send one file of the archive, unless the registry has it."""
    path = Path(folder, "blob")
    with open(path, "wb") as out:
        shutil.copyfileobj(tar.extractfile(member), out)
    with open(path, "rb") as file:
        digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    size = path.stat().st_size
    if _request("HEAD", f"/v2/{repository}/blobs/{digest}").status != 200:
        place = _request("POST", f"/v2/{repository}/blobs/uploads/", b"", {}, 202).getheader("Location")
        place += ("&" if "?" in place else "?") + f"digest={digest}"
        with open(path, "rb") as file:
            _request("PUT", place, file, {"Content-Length": str(size),
                                          "Content-Type": "application/octet-stream"}, 201)
    return {"mediaType": kind, "digest": digest, "size": size}


def _request(method: str, path: str, body=None, headers=None, expect: int = 0):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        words = answer.read()
    finally:
        connection.close()
    if expect and answer.status != expect:
        raise Failure(f"the registry answered {answer.status} to {method} {path}: "
                      f"{words.decode(errors='replace')[:500]}")
    return answer
