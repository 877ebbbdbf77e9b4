#!/usr/bin/env python3
"""The first process of one local cluster; started by dev/cluster, not by hand.

It makes namespaces for processes, mounts and network, and runs every part of the cluster in them.
So the kernel does the cleaning: when this one process ends, by whatever signal, all processes of the
cluster end with it (containers too), and its mounts, interfaces and firewall rules are gone.

In the namespaces /var, /run and /tmp are the cluster's own, since the kubelet, containerd and CNI
plugins have fixed paths there; the rest of the file system is the machine's.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 0x1000, 0x4000, 0x40000, 0x100000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MNT_DETACH = 2, 4, 8, 2

# The kubelet insists on these values and would set them for the whole machine. Here it finds them
# as it wants them, in files put over the real ones, in its own view only.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000,
}
# These are per network namespace: they do not touch the machine's own.
NET_SYSCTLS = {
    "net/ipv4/ip_forward": 1,
    # Pod to Service to pod on one bridge: the answer must pass the firewall to be translated back.
    "net/bridge/bridge-nf-call-iptables": 1,
}
BACKOFF_FIRST, BACKOFF_MOST, HEALTHY_AFTER = 0.5, 10.0, 30.0
LOG_LIMIT = 64 << 20

# Only whether the API server is ready is asked this way; no secret is told and none is learnt.
UNVERIFIED = ssl._create_unverified_context()
libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments) -> None:
    if getattr(libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    call("mount", os.fsencode(source), os.fsencode(target), kind.encode() if kind else None,
         ctypes.c_ulong(flags), data.encode() if data else None)


def note(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)


def set_up_mounts(folder: Path, expose: list[str]) -> None:
    """Everything here is seen in this namespace only."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    # A sysfs shows the network of the namespace it was mounted in, so a new one is needed, with the
    # control groups put back into it.
    kept = folder / "cgroup"
    kept.mkdir()
    mount("/sys/fs/cgroup", str(kept), flags=MS_BIND | MS_REC)
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount(str(kept), "/sys/fs/cgroup", flags=MS_BIND | MS_REC)
    call("umount2", os.fsencode(kept), MNT_DETACH)
    kept.rmdir()
    # What is needed inside and may lie below one of the hidden folders is held open and bound to
    # its old path afterwards.
    held = [(path, os.open(path, os.O_PATH)) for path in map(os.path.realpath, expose)]
    for own in ("var", "tmp"):
        mount(str(folder / own), f"/{own}", flags=MS_BIND)
        # `folder` itself is out of sight now if it is below; the second round must still find it.
        _restore(held, f"/{own}/")
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    _restore(held, "/run/")
    for _, descriptor in held:
        os.close(descriptor)
    for name, value in KUBELET_SYSCTLS.items():
        target = Path("/proc/sys") / name
        if target.exists():
            source = Path("/run/sysctl") / name
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(f"{value}\n")
            mount(str(source), str(target), flags=MS_BIND)
    # Pods may ask for mount propagation; it ends at this namespace.
    mount("none", "/", flags=MS_REC | MS_SHARED)


def _restore(held: list[tuple[str, int]], hidden: str) -> None:
    for path, descriptor in held:
        if path.startswith(hidden):
            os.makedirs(path, exist_ok=True)
            mount(f"/proc/self/fd/{descriptor}", path, flags=MS_BIND | MS_REC)


def set_up_network(plan: dict) -> None:
    commands = [
        "link set lo up", f"addr add {plan['node']}/30 dev eth0", "link set eth0 up",
        # There is nothing beyond the host. Saying so at once is better than silence: programs that
        # look for a cloud's metadata or for updates would wait for their timeouts.
        "route add unreachable default",
        # Routing comes before translation for what starts here, so Services need some route.
        f"route add {plan['services']} dev eth0",
    ]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
    for name, value in NET_SYSCTLS.items():
        path = Path("/proc/sys") / name
        if path.exists():
            path.write_text(str(value))


class Component:
    """One program of the cluster: started when what it needs is there, and again when it ends."""

    def __init__(self, spec: dict, logs: Path):
        self.name, self.command, self.after = spec["name"], spec["command"], spec.get("after", [])
        self.oneshot = spec.get("oneshot", False)
        self.environment = {**os.environ, **spec.get("env", {})}
        self.log = logs / f"{self.name}.log"
        self.pid, self.restarts, self.done = 0, 0, False
        self.started, self.next_start, self.backoff = 0.0, 0.0, BACKOFF_FIRST

    def wanted(self, known: dict[str, bool]) -> bool:
        if self.pid or self.done or time.monotonic() < self.next_start:
            return False
        for condition in self.after:
            if condition not in known:  # each is asked once in a round, however many wait for it
                known[condition] = _there(condition)
            if not known[condition]:
                return False
        return True

    def start(self) -> None:
        program = shutil.which(self.command[0], path=self.environment["PATH"])
        if not program:
            raise FileNotFoundError(f"{self.name}: no program {self.command[0]}")
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.pid = os.posix_spawn(
            program, self.command, self.environment, setsid=True, setsigdef=[signal.SIGTERM],
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                          (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
                          (os.POSIX_SPAWN_DUP2, 1, 2)])
        self.started = time.monotonic()
        note(f"started {self.name}, process {self.pid}")

    def ended(self, status: int) -> None:
        self.pid = 0
        code = os.waitstatus_to_exitcode(status)
        if self.oneshot and code == 0:
            self.done = True
            note(f"{self.name} is done")
            return
        if time.monotonic() - self.started > HEALTHY_AFTER:
            self.backoff = BACKOFF_FIRST
        self.failed(f"ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})")

    def failed(self, how: str) -> None:
        self.restarts += 1
        self.next_start = time.monotonic() + self.backoff
        note(f"{self.name} {how}; starting it again in {self.backoff:.1f} s")
        self.backoff = min(self.backoff * 2, BACKOFF_MOST)

    def limit_log(self) -> None:
        """Keep the last log and the one before. The program appends, so it may be cut under it."""
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)


def _there(condition: str) -> bool:
    """"tcp:HOST:PORT", "unix:PATH": something listens; "ok:URL": it answers 200."""
    kind, _, what = condition.partition(":")
    if kind == "ok":
        try:
            with urllib.request.urlopen(what, timeout=1, context=UNVERIFIED) as answer:
                return answer.status == 200
        except OSError:
            return False
    host, _, port = what.rpartition(":")
    family, address = ((socket.AF_INET, (host, int(port))) if kind == "tcp"
                       else (socket.AF_UNIX, what))
    with socket.socket(family) as link:
        link.settimeout(0.2)
        return link.connect_ex(address) == 0


def supervise(folder: Path, components: list[Component]) -> None:
    status, ticks = None, 0
    while True:
        _reap(components)
        known: dict[str, bool] = {f"done:{c.name}": c.done for c in components}
        for component in components:
            if component.wanted(known):
                try:
                    component.start()
                except OSError as error:
                    component.failed(f"could not be started: {error}")
        now = {c.name: {"pid": c.pid, "restarts": c.restarts, "done": c.done} for c in components}
        if now != status:
            status = now
            _write_status(folder, status)
        _open_volumes()
        ticks += 1
        if ticks % 300 == 0:
            try:
                for component in components:
                    component.limit_log()
            except OSError as error:  # a full disk must not end the cluster
                note(f"cannot cut the logs: {error}")
        settled = all(c.pid or c.done for c in components)
        time.sleep(0.2 if settled else 0.05)


def _write_status(folder: Path, status: dict) -> None:
    part = folder / "status.json.part"
    try:
        part.write_text(json.dumps(status, indent=1))
        part.rename(folder / "status.json")
    except OSError as error:
        note(f"cannot write the status: {error}")


def _reap(components: list[Component]) -> None:
    """As process 1 it inherits every orphan (containerd's shims are), so all of them are reaped."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for component in components:
            if component.pid == pid:
                component.ended(status)


def _open_volumes() -> None:
    """The controller manager's host-path volumes are made for root alone (0750), and pods seldom run
    as root. No fsGroup is applied to them, so they are opened here, as real provisioners do."""
    try:
        for volume in os.scandir("/tmp/hostpath_pv"):
            if volume.stat().st_mode & 0o777 != 0o777:
                os.chmod(volume.path, 0o777)
    except FileNotFoundError:
        pass  # none yet, or one was deleted meanwhile


def main() -> None:
    folder, told_pid, told_go = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    call("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET)
    # Only children are in the new process namespace; the first of them is its process 1.
    child = os.fork()
    if child:
        os.write(told_pid, f"{child}\n".encode())
        os._exit(0)
    os.close(told_pid)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # Wait until the link and the plan are there. If dev/cluster dies before, the pipe closes and
    # the namespaces end with this process.
    if os.read(told_go, 16) != b"go\n":
        sys.exit("the process that started this cluster has gone")
    os.close(told_go)
    plan = json.loads((folder / "plan.json").read_text())
    os.environ.clear()
    os.environ.update(plan["environment"])
    os.chdir("/")
    socket.sethostname(plan["hostname"])
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    set_up_mounts(folder, plan["expose"])
    set_up_network(plan)
    supervise(folder, [Component(spec, folder / "logs") for spec in plan["components"]])


if __name__ == "__main__":
    main()
