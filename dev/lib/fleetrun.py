"""The fleet server of dev/up: started beside the cluster, with the cluster registered in it."""

import base64
import hashlib
import http.client
import json
import os
import shutil
import subprocess
from pathlib import Path

import background
from devlib import Failure, state_dir, until, warn

CLUSTER = "local"
SHARED = Path("/var/lib/gantry")


def folder() -> Path:
    """Its keys and its database. Root gives PostgreSQL to another user, who cannot enter root's home; each state folder
    has its own there."""
    if os.geteuid() != 0:
        return background.home() / "fleet"
    return SHARED / f"up-{hashlib.sha256(str(state_dir()).encode()).hexdigest()[:8]}"


def forget() -> None:
    shutil.rmtree(folder(), ignore_errors=True)
    try:
        SHARED.rmdir()
    except OSError:
        pass  # somebody else's is in it, or it is not there


def database() -> str:
    """The address of the database that the user names, "" when they name none."""
    return os.environ.get("DATABASE_URL", "")


def has_postgres() -> bool:
    """Where the fleet server itself looks for one."""
    given = os.environ.get("GANTRY_POSTGRES_BIN")
    places = [Path(given)] if given else []
    places += [*Path("/usr/lib/postgresql").glob("*/bin"), *map(Path, os.get_exec_path())]
    return any(all((place / name).is_file() for name in ("initdb", "postgres", "pg_ctl")) for place in places)


class FleetRun:
    def __init__(self, program: Path, tools: str):
        self.program, self.tools = program, tools
        self.process = background.Background("fleet")
        self.port = 0

    def start(self, port: int, admin_port: int, environment: dict[str, str]) -> None:
        self.port = port
        command = [self.program, "fleet", "serve", f"--address=127.0.0.1:{port}",
                   f"--admin-address=127.0.0.1:{admin_port}", f"--state-dir={folder()}", "--log-format=text"]
        words = [*map(str, command), database()]
        key = hashlib.sha256(self.program.read_bytes() + json.dumps(words).encode())
        environment = {"NO_COLOR": "1", "PATH": f"{self.tools}:{os.environ.get('PATH', '')}", **environment}
        self.process.start(command, key.hexdigest(), environment)
        if not until(lambda: not self.process.about() or self.ask("GET", "/health", token=""), 90, 0.2):
            raise Failure(f"the fleet server does not answer:\n{self.process.tail()}")
        if not self.process.about():
            raise Failure(f"the fleet server ended:\n{self.process.tail()}")

    def token(self) -> str:
        made = subprocess.run(
            [self.program, "fleet", "token", f"--state-dir={folder()}", "--subject=admin", "--role=Admin", "--hours=24"],
            text=True, capture_output=True, check=False)
        if made.returncode:
            raise Failure(f"no token of the fleet server: {made.stderr.strip()}")
        return made.stdout.strip()

    def register(self, token: str, kubeconfig: str) -> None:
        """The cluster of dev/up; one that is registered is given its present credentials."""
        document = base64.b64encode(Path(kubeconfig).read_bytes()).decode()
        known = self.ask("GET", f"/api/v1/clusters/{CLUSTER}", token)
        if known:
            answer = self.ask("PUT", f"/api/v1/clusters/{CLUSTER}", token, {"kubeconfig": document})
        else:
            answer = self.ask("POST", "/api/v1/clusters", token,
                              {"name": CLUSTER, "environment": "Development", "kubeconfig": document})
        if not answer:
            warn("the cluster could not be registered in the fleet server (a kubeconfig that runs a program cannot)")

    def ask(self, method: str, path: str, token: str, body: dict | None = None) -> dict:
        """What it answers, {} when that is nothing good."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
            return json.loads(text) if answer.status < 300 else {}
        except (OSError, ValueError):
            return {}
        finally:
            connection.close()
