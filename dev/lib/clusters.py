"""Starting, stopping and looking at local clusters, from the host's side.

The state of cluster NAME is the folder clusters/NAME of the state folder. It is made anew at every
start; nothing in it outlives the cluster.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import cgroups
import clusternet
import clusterparts
import clusterpki
import kubebuild
import packages
from clusternet import Net
from devlib import Failure, locked, say, start_of, state_dir, until, warn
from kubeapi import Api, dns_answers

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
    "metadata": {"name": "standard",
                 "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/host-path",
}


def home() -> Path:
    return state_dir() / "clusters"


def names() -> list[str]:
    """Every cluster there is something of, be it half made or crashed."""
    return sorted(folder.name for folder in home().glob("[!.]*") if folder.is_dir())


@dataclass
class Cluster:
    """A cluster that was started: what cluster.json says about it."""

    name: str
    number: int
    nodes: str  # "real" or a number
    pid: int
    started: str  # when `pid` started, as the kernel tells it: tells it from a later process
    created: float
    simnode: bool

    @property
    def folder(self) -> Path:
        return home() / self.name

    @property
    def net(self) -> Net:
        return Net(self.number)

    @property
    def cgroup(self) -> str:
        return f"gantry-{self.name}-{self.number}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "pki/admin.kubeconfig"

    @cached_property
    def api(self) -> Api:
        return Api(self.net.api, self.folder / "pki")

    def alive(self) -> bool:
        return start_of(self.pid) == self.started

    def save(self) -> None:
        part = self.folder / "cluster.json.part"
        part.write_text(json.dumps(asdict(self), indent=1))
        part.rename(self.folder / "cluster.json")

    def not_ready(self) -> str:
        """What is still missing for the cluster to be usable; "" when nothing is."""
        if not (self.folder / "plan.json").exists():
            return "it is still being made"
        api = self.api
        if not api.ready():
            return "the API server is not ready"
        if not api.get("/api/v1/namespaces/default/serviceaccounts/default"):
            return "the default ServiceAccount is not there"
        wanted = 1 if self.nodes == "real" else int(self.nodes)
        ready = count_ready(api) if wanted else 0
        if ready < wanted:
            return f"{ready} of {wanted} nodes are ready"
        if self.nodes == "real":
            if not _connects(self.net.first_service, 443):
                return "kube-proxy does not forward to Services yet"
            if self.simnode and not dns_answers(self.net.node, "kubernetes.default.svc.cluster.local"):
                return "cluster DNS does not answer"
        return ""


def load(name: str) -> Cluster | None:
    try:
        return Cluster(**json.loads((home() / name / "cluster.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def get(name: str) -> Cluster:
    """The running cluster of this name, or a message for the user."""
    cluster = load(name)
    if not cluster:
        raise Failure(f"there is no cluster '{name}'; start it with: dev/cluster up {name}")
    if not cluster.alive():
        raise Failure(f"cluster '{name}' is not running any more; start it with: dev/cluster up {name}")
    return cluster


def count_ready(api: Api) -> int:
    """Nodes that pods can be put on: Ready, and the taint of a new node taken off."""
    answer = api.get("/api/v1/nodes?resourceVersion=0", timeout=10) or {"items": []}
    return sum(
        any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
        and not any(t["key"].startswith("node.kubernetes.io/not-ready")
                    for t in node["spec"].get("taints", []))
        for node in answer["items"])


def up(name: str, nodes: str, wait: float) -> None:
    """Start a cluster, or see that it is already up. Data of a crashed one is not kept."""
    if not NAME.fullmatch(name):
        raise Failure(f"'{name}' is no good name: small letters, digits and '-', at most 30")
    if os.geteuid() != 0:
        raise Failure("a cluster needs root (namespaces, mounts, control groups): run it with sudo -E")
    packages.ensure("cluster")
    programs = kubebuild.ensure()
    with locked(home() / f".{name}.lock", f"waiting for another dev/cluster at work on '{name}'"):
        old = load(name)
        if old and old.alive():
            if old.nodes != nodes:
                raise Failure(f"cluster '{name}' is up with --nodes {old.nodes}; "
                              f"to change that: dev/cluster down {name}")
            if _recovers(old, min(wait, 30)):
                _make_basics(old)
                say(f"cluster {name} is already up: {old.net.api}")
                return
            warn(f"cluster {name} does not recover ({old.not_ready()}): starting it afresh")
        elif old:
            say(f"cluster {name} has crashed: clearing what it left and starting afresh")
        _clear(name, old)
        _start(name, nodes, programs, wait)


def _recovers(cluster: Cluster, wait: float) -> bool:
    """Slow is not dead: a busy machine gets its time before a cluster is thrown away."""
    missing = cluster.not_ready()
    if missing:
        say(f"cluster {cluster.name} runs, but {missing}; waiting")
    return until(lambda: not cluster.not_ready(), wait)


def _make_basics(cluster: Cluster) -> None:
    """The objects a cluster has from the start. Made by whoever saw it ready, as often as needed."""
    status, answer = cluster.api.request("POST", "/apis/storage.k8s.io/v1/storageclasses", STORAGE_CLASS)
    if status not in (201, 409):
        raise Failure(f"cluster {cluster.name} refuses its StorageClass: {answer}")


def _start(name: str, nodes: str, programs: Path, wait: float) -> None:
    begin = time.monotonic()
    simnode = clusterparts.find_simnode()
    if not simnode and nodes not in ("real", "0"):
        raise Failure(f"simulated nodes need our program {clusterparts.SIMNODE}, which is not built: "
                      f"run `{clusterparts.SIMNODE_BUILD}`, or say where it is in GANTRY_SIMNODE")
    if not simnode and nodes == "real":
        warn(f"{clusterparts.SIMNODE} is not built, so cluster {name} has NO DNS and NO metrics.k8s.io; "
             f"build it with: {clusterparts.SIMNODE_BUILD}")
    if nodes == "real":
        clusternet.filter_bridges()
    folder = home() / name
    folder.mkdir(parents=True, mode=0o700)
    pid, go = _spawn(folder)
    try:
        net = clusternet.connect(pid, folder)
        cluster = Cluster(name, net.number, nodes, pid, start_of(pid), time.time(), bool(simnode))
        cluster.save()
        node_name = f"{name}-node"
        clusterpki.make(folder / "pki", net, node_name)
        if nodes == "real":
            cgroups.create(cluster.cgroup)
        clusterparts.Plan(folder, net, nodes, node_name, cluster.cgroup, programs, simnode).write()
        os.write(go, b"go\n")
    finally:
        os.close(go)  # without "go", the supervisor ends itself at this
    _wait_ready(cluster, begin, wait)
    _make_basics(cluster)
    if simnode and nodes != "0" and not until(
            lambda: _available(cluster.api, "v1beta1.metrics.k8s.io"), 10):
        # Not worth failing for: most of what a cluster is used for does not need it.
        warn(f"metrics.k8s.io of cluster {name} is not available; see: dev/cluster logs {name} metrics")
    say(f"cluster {name} up in {time.monotonic() - begin:.1f} s: {net.api}, "
        f"KUBECONFIG={cluster.kubeconfig}")


def _spawn(folder: Path) -> tuple[int, int]:
    """Start the supervisor; gives its process id and the pipe to let it go on with."""
    pid_read, pid_write = os.pipe()
    go_read, go_write = os.pipe()
    (folder / "logs").mkdir()
    with open(folder / "logs/supervisor.log", "ab") as log:
        starter = subprocess.Popen(
            [sys.executable, "-B", str(Path(__file__).with_name("supervisor.py")), str(folder),
             str(pid_write), str(go_read)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            pass_fds=[pid_write, go_read])
    os.close(pid_write)
    os.close(go_read)
    with os.fdopen(pid_read) as answer:
        line = answer.readline().strip()
    if starter.wait() or not line:
        os.close(go_write)
        raise Failure(f"the supervisor did not start:\n{_tail(folder / 'logs/supervisor.log')}")
    return int(line), go_write


def _wait_ready(cluster: Cluster, begin: float, wait: float) -> None:
    shown = begin
    while True:
        missing = cluster.not_ready()
        if not missing:
            return
        if not cluster.alive():
            raise Failure(f"the supervisor of cluster {cluster.name} ended:\n"
                          f"{_tail(cluster.folder / 'logs/supervisor.log')}")
        if time.monotonic() - begin > wait:
            raise Failure(f"cluster {cluster.name} is not ready after {wait:g} s: {missing}\n"
                          f"{trouble(cluster)}It is left running to be looked at: "
                          f"dev/cluster logs {cluster.name} COMPONENT")
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            say(f"  [{shown - begin:3.0f} s] {missing}")
        time.sleep(0.1)


def trouble(cluster: Cluster) -> str:
    """The last words of the parts that do not run or had to be started again."""
    try:
        status = json.loads((cluster.folder / "status.json").read_text())
    except (FileNotFoundError, ValueError):
        return _tail(cluster.folder / "logs/supervisor.log")
    text = ""
    for name, part in status.items():
        if part["restarts"] or not (part["pid"] or part["done"]):
            state = f"restarted {part['restarts']} times" if part["restarts"] else "not started"
            text += f"--- {name}: {state}\n{_tail(cluster.folder / f'logs/{name}.log', 5)}"
    return text


def down(name: str) -> bool:
    """End a cluster and remove all it made; False when there was none."""
    lock = home() / f".{name}.lock"
    if not (home() / name).exists() and not lock.exists():
        return False
    with locked(lock, f"waiting for another dev/cluster at work on '{name}'",
                remove=True):
        _clear(name, load(name))
    return True


def _clear(name: str, cluster: Cluster | None) -> None:
    """Remove whatever there is of this cluster, running, crashed or half made."""
    folder = home() / name
    if cluster:
        if cluster.alive():
            os.kill(cluster.pid, signal.SIGKILL)
        # The first process of a namespace ends after all the others.
        if not until(lambda: not cluster.alive(), 30, 0.02):
            raise Failure(f"process {cluster.pid} of cluster {name} does not end, killed as it is")
        clusternet.disconnect(cluster.net, folder)
        left = cgroups.remove(cluster.cgroup)
        if left:
            raise Failure(f"control groups of cluster {name} cannot be removed: {left}")
    if folder.exists():
        for target in _mounts_below(folder):
            subprocess.run(["umount", "--lazy", target], check=False)
        shutil.rmtree(folder)


def _mounts_below(folder: Path) -> list[str]:
    """Mounts of the machine inside the folder, the deepest first. There should be none, ever; but
    the folder is about to be deleted with all that is in it."""
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((t for t in targets if Path(t).is_relative_to(folder)), key=len, reverse=True)


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=0.3).close()
        return True
    except OSError:
        return False


def _available(api: Api, name: str) -> bool:
    answer = api.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{name}") or {}
    return any(c["type"] == "Available" and c["status"] == "True"
               for c in answer.get("status", {}).get("conditions", []))


def _tail(path: Path, lines: int = 20) -> str:
    try:
        text = path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return ""
    return "".join(f"    {line}\n" for line in text)
