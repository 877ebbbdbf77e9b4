"""What dev/up and dev/down share: which cluster, what was started, and asking it with kubectl."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

import background
import clusters
from devlib import DEV, REPO, Failure, locked, state_dir

CLUSTER = "gantry"
NAMESPACE = "gantry-system"
# One object per file. kubectl takes the files of a folder, and not those of folders in it.
EXAMPLES = ["examples", "examples/kaos", "examples/ollama"]
# What any cluster with the Internet can run: a public image of Python and packages from PyPI.
EXAMPLES_ANYWHERE = ["examples/mcpserver-package-http.yaml", "examples/mcpserver-package-stdio.yaml"]
# These need an image of ours besides, which a ConfigMap of the cluster has to name.
EXAMPLES_RUNTIME = ["examples/mcpserver-python-string.yaml", "examples/mcpserver-tools-string.yaml"]
RUNTIMES = "kaos-mcp-runtimes"
# Who is told to have applied what dev/up applies.
MANAGER = "gantry-up"
APPLY = ["--server-side", "--force-conflicts", f"--field-manager={MANAGER}"]


def as_files(examples: list[str]) -> list[str]:
    """As arguments of kubectl."""
    return [word for path in examples for word in ("-f", str(REPO / path))]


def not_ours(kubectl: "Kubectl", example: str) -> str:
    """The object of an example, if one by its name is there that dev/up did not make: it must not be changed, nor deleted by
    dev/down."""
    found = kubectl("get", "--ignore-not-found", "--show-managed-fields", "-o", "json", *as_files([example]))
    about = json.loads(found)["metadata"] if found else {}
    managers = [entry.get("manager") for entry in about.get("managedFields", [])]
    return "" if not found or MANAGER in managers else f"{json.loads(found)['kind']} {about['name']}"


def lock():
    return locked(state_dir() / ".up.lock", "waiting for another dev/up or dev/down", remove=True)


@dataclass
class Run:
    """What dev/up notes before it starts anything, so that dev/down knows it however up ended."""

    local: bool
    kubeconfig: str  # what is used: of a cluster of the user's a copy, see `keep`
    given: str = ""  # the user's KUBECONFIG, "" for the local cluster
    context: str = ""
    examples: list[str] = field(default_factory=list)
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


def keep(given: str) -> tuple[str, str]:
    """Copy what KUBECONFIG says of its current context; gives the file and the context. All later calls use the copy:
    when the user has turned to another cluster meanwhile, dev/down must not clear that one."""
    if not any(Path(file).is_file() for file in given.split(os.pathsep) if file):
        raise Failure(f"KUBECONFIG={given} is not a file; without KUBECONFIG a local cluster is started")
    text = Kubectl(given, local=False)("config", "view", "--minify", "--flatten", "--raw", "-o", "json")
    background.home().mkdir(parents=True, exist_ok=True, mode=0o700)
    file = background.home() / "kubeconfig"
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as copy:
        copy.write(text)
    return str(file), json.loads(text)["current-context"]


def tools() -> str:
    asked = subprocess.run([DEV / "tools", "path"], text=True, stdout=subprocess.PIPE, check=False)
    if asked.returncode:
        raise Failure("kubectl could not be installed")
    return asked.stdout.strip()


class Kubectl:
    def __init__(self, kubeconfig: str, local: bool):
        # For a cluster of the user's their own, which fits it; and ours is for x86_64 only.
        theirs = None if local else shutil.which("kubectl")
        self.program = Path(theirs or Path(tools()) / "kubectl")
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
        self("apply", *APPLY, "-f", "-", stdin=json.dumps(thing))
