"""What a machine has that a badly ended cluster could leave behind; for dev/selftest."""

import os
import re
import subprocess
from pathlib import Path

SYSCTLS = ["net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic",
           "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
           "net/ipv4/conf/all/route_localnet", "net/bridge/bridge-nf-call-iptables"]
FOLDERS = ["/var/lib", "/var/log", "/run", "/run/netns", "/etc/cni", "/opt"]


def _output(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return sorted(line for line in done.stdout.splitlines() if line and not line.startswith("#"))


def take() -> dict[str, list[str]]:
    """Everything of the machine that a cluster must not change."""
    groups = [str(Path(folder)) for folder, _, _ in os.walk("/sys/fs/cgroup")
              if "/gantry-" in folder]
    sysctls = [f"{name}={path.read_text().strip()}" for name in SYSCTLS
               if (path := Path("/proc/sys") / name).exists()]
    folders = [f"{folder}/{name}" for folder in FOLDERS if os.path.isdir(folder)
               for name in os.listdir(folder)]
    return {
        "mounts": sorted(line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "routes": _output("ip", "-4", "route", "show", "table", "all"),
        "rules": _output("iptables-save") + _output("ip6tables-save"),
        "control groups": sorted(groups), "sysctls": sysctls, "folders": sorted(folders),
    }


def difference(before: dict, after: dict, ours: set[str]) -> list[str]:
    """What is new or lost. Other clusters may come and go meanwhile: interfaces, their routes, and
    control groups count only if they are among `ours`."""
    def counts(kind: str, item: str) -> bool:
        if kind in ("interfaces", "routes", "control groups") and "gantry" in item:
            return any(re.search(rf"\b{re.escape(name)}\b", item) for name in ours)
        return True

    found = []
    for kind, had in before.items():
        found += [f"{kind}: new {item}" for item in after[kind]
                  if item not in had and counts(kind, item)]
        found += [f"{kind}: lost {item}" for item in had
                  if item not in after[kind] and counts(kind, item)]
    return found


def processes_of(pid: int) -> dict[int, str]:
    """The processes in the process namespace of `pid` and in those below it (pods with their own):
    its descendants, as the host numbers them."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            parents[int(entry)], names[int(entry)] = int(rest.split()[1]), name
    family = {pid} if pid in names else set()
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return {member: names[member] for member in family}
