"""Debian packages, by group: which are missing, and installing them without starting daemons."""

import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from devlib import Failure, locked, say

# "a|b": either will do (b is what another vendor calls it); a is what gets installed.
GROUPS = {
    "kubernetes-build": [
        "dpkg-dev", "make", "gcc", "libc6-dev", "golang-go", "jq", "rsync", "bash-completion",
        "golang-github-modern-go-reflect2-dev", "ca-certificates",
    ],
    "tools": ["python3-pip", "ca-certificates"],
    "cluster": [
        "etcd-server", "containerd|containerd.io", "runc|containerd.io",
        "containernetworking-plugins", "iptables", "iproute2", "conntrack", "socat", "ebtables",
        "openssl", "busybox-static", "util-linux", "mount", "kmod", "procps", "ethtool",
    ],
    "image": [
        "buildah", "runc|crun|containerd.io", "fuse-overlayfs", "docker-registry", "busybox-static",
        "ca-certificates", "tzdata", "python3", "python3-pip", "python3-venv", "python3-distutils",
    ],
    "ingress": ["nginx"],
    "redis": ["redis-server"],
    "chart": ["python3-yaml"],
    "database": ["postgresql", "openssl", "curl", "util-linux"],
    "check": ["git", "make", "shellcheck", "gcc", "libc6-dev", "pkg-config"],
    # The newest of Debian 12: it reads what newer compilers count.
    "coverage": ["llvm-19"],
}
USUAL = [group for group in GROUPS if group != "coverage"]

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_MARK = "written by Gantry's dev/setup for one apt run"


def missing(groups: list[str]) -> list[str]:
    """The packages of these groups that are not installed, asked from dpkg (no network)."""
    wanted = list(dict.fromkeys(p for group in groups for p in GROUPS[group]))
    names = sorted({name for p in wanted for name in p.split("|")})
    # dpkg-query exits 1 as soon as one name is unknown, and still prints the others.
    answer = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    have = {line.split()[0] for line in answer.stdout.splitlines() if line.endswith(" installed")}
    return [p.split("|")[0] for p in wanted if not have & set(p.split("|"))]


def ensure(*groups: str) -> None:
    """Install what is missing of these groups; does nothing, quickly, when nothing is."""
    if not shutil.which("dpkg-query"):
        raise Failure("dpkg-query is not here: Gantry's dev/ scripts set up Debian machines only; "
                      "elsewhere, point KUBECONFIG at a cluster of your own")
    if not missing(list(groups)):
        return
    lock = Path("/tmp") / f"gantry-setup.{os.getuid()}.lock"
    with locked(lock, "waiting for another dev/setup", remove=True):
        todo = missing(list(groups))
        if todo:
            _install(todo)


def _install(todo: list[str]) -> None:
    become_root = _become_root(todo)
    say(f"installing Debian packages ({', '.join(todo)})")
    environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
    # Another apt may be at work on the machine: wait for it instead of failing.
    apt = [*become_root, *environment, "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600",
           "-o", "Acquire::Retries=3"]
    before = installed()
    with _no_daemons(become_root):
        for command in (["update"], ["install", "--no-install-recommends", *todo]):
            _apt([*apt, *command], command[0])
    _disable(become_root, units(installed() - before))
    left = missing_names(todo)
    if left:
        raise Failure(f"apt-get said it was done, but these are not installed: {', '.join(left)}")


def _apt(words: list[str], name: str) -> None:
    """Run apt-get; every few seconds a line tells how far it is."""
    begin = shown = time.monotonic()
    lines = []
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as apt:
        for line in apt.stdout:
            lines.append(line.rstrip())
            if time.monotonic() - shown >= 5:
                shown = time.monotonic()
                say(f"  [{shown - begin:3.0f} s] {lines[-1][:100]}")
    if apt.returncode:
        tail = "\n".join(lines[-25:])
        raise Failure(f"apt-get {name} failed ({apt.returncode}):\n{tail}")


def installed() -> set[str]:
    """The names of all installed packages."""
    answer = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"],
                            stdout=subprocess.PIPE, text=True, check=True)
    return {line.split()[0] for line in answer.stdout.splitlines() if line.endswith(" installed")}


def units(names: set[str]) -> list[str]:
    """The services that these packages bring."""
    if not names:
        return []
    answer = subprocess.run(["dpkg-query", "-L", *sorted(names)], stdout=subprocess.PIPE, text=True, check=False)
    found = re.findall(r"^(?:/usr)?/lib/systemd/system/([^/@]+\.(?:service|socket))$", answer.stdout, re.MULTILINE)
    return sorted(set(found))


def _disable(become_root: list[str], names: list[str]) -> None:
    """Keep daemons that nobody asked for from starting at the next boot: one would take a port of ours
    (docker-registry's), and none is used as it is. Those that were here before are left alone."""
    if not shutil.which("systemctl"):
        return
    for name in names:
        asked = subprocess.run(["systemctl", "is-enabled", name], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == "enabled":
            say(f"not to be started with the machine: {name}")
            subprocess.run([*become_root, "systemctl", "disable", "--quiet", name], capture_output=True, check=False)


def missing_names(names: list[str]) -> list[str]:
    """Those of the named packages that are not installed."""
    GROUPS["_asked"] = names
    try:
        return missing(["_asked"])
    finally:
        del GROUPS["_asked"]


def _become_root(todo: list[str]) -> list[str]:
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        return ["sudo"]
    raise Failure("these Debian packages are missing and only root can install them (there is no "
                  f"sudo here): apt-get install {' '.join(todo)}")


@contextmanager
def _no_daemons(become_root: list[str]):
    """Keep packages (etcd, containerd, docker-registry) from starting their daemons.

    Debian asks /usr/sbin/policy-rc.d before a package starts a service: 101 means "do not". The
    path is fixed, so it is there only for the time of the install. One that the machine already
    has is its administrator's decision and stays; the daemons would be harmless anyway, since the
    clusters use folders, sockets and a network of their own.
    """
    stale = POLICY.exists() and POLICY_MARK in POLICY.read_text(errors="replace")
    if POLICY.exists() and not stale:
        yield
        return
    script = f"#!/bin/sh\n# {POLICY_MARK}; can be deleted.\nexit 101\n"
    subprocess.run([*become_root, "sh", "-c", f"cat >{POLICY} && chmod 755 {POLICY}"],
                   input=script, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run([*become_root, "rm", "-f", str(POLICY)], check=False)
