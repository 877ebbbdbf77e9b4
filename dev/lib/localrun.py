"""What dev/up and dev/down share: which cluster, what was started, and asking it with kubectl."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import background
import clusters
from devlib import DEV, REPO, Failure, locked, state_dir

CLUSTER = "gantry"
NAMESPACE = "gantry-system"
# One object per file. kubectl takes the files of a folder, and not those of folders in it.
EXAMPLES = [REPO / "examples", REPO / "examples/kaos", REPO / "examples/ollama"]


def example_files() -> list[str]:
    """As arguments of kubectl."""
    return [word for folder in EXAMPLES for word in ("-f", str(folder))]


def lock():
    return locked(state_dir() / ".up.lock", "waiting for another dev/up or dev/down", remove=True)


@dataclass
class Run:
    """What dev/up notes before it starts anything, so that dev/down knows it however up ended."""

    local: bool
    kubeconfig: str
    port: int = 0
    fleet_port: int = 0
    fleet_admin_port: int = 0
    namespace_made: bool = False

    def save(self) -> None:
        background.home().mkdir(parents=True, exist_ok=True, mode=0o700)
        part = background.home() / "run.part"
        part.write_text(json.dumps(asdict(self)))
        part.rename(background.home() / "run.json")


def load() -> Run | None:
    try:
        return Run(**json.loads((background.home() / "run.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def forget() -> None:
    shutil.rmtree(background.home(), ignore_errors=True)


def foreign() -> str:
    """The KUBECONFIG of the user, "" when there is none. That of our own cluster is not foreign: it is what
    dev/up tells people to export."""
    given = os.environ.get("KUBECONFIG", "")
    own = clusters.home() / CLUSTER / "pki/admin.kubeconfig"
    return "" if not given or Path(given).absolute() == own else given


def tools() -> str:
    asked = subprocess.run([DEV / "tools", "path"], text=True, stdout=subprocess.PIPE, check=False)
    if asked.returncode:
        raise Failure("kubectl could not be installed")
    return asked.stdout.strip()


class Kubectl:
    def __init__(self, kubeconfig: str):
        self.program = Path(tools()) / "kubectl"
        self.environment = {**os.environ, "KUBECONFIG": kubeconfig}

    def __call__(self, *arguments, stdin: str | None = None, ok: bool = True, timeout: float = 60) -> str:
        try:
            done = subprocess.run(
                [self.program, *arguments], env=self.environment, text=True, capture_output=True, check=False,
                timeout=timeout, **({"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}))
        except subprocess.TimeoutExpired:
            raise Failure(f"kubectl {arguments[0]}: no answer in {timeout:g} s") from None
        if ok and done.returncode:
            raise Failure(f"kubectl {' '.join(map(str, arguments[:4]))}: {done.stderr.strip()}")
        return done.stdout if done.returncode == 0 else ""

    def apply(self, thing: dict) -> None:
        self("apply", "--server-side", "--force-conflicts", "--field-manager=gantry-up", "-f", "-",
             stdin=json.dumps(thing))
