"""The control groups of a cluster's pods: made before the kubelet starts, removed at the end.

Both layouts are known: version 1 (a folder in every controller's hierarchy) and version 2 (one).
"""

import itertools
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def _version2() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if _version2():
        return [ROOT]
    mounts = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind = line.split()[:3]
        # The same hierarchy can be there twice, as cpu and cpu,cpuacct: a link, not a mount.
        if kind in ("cgroup", "cgroup2") and Path(target).is_relative_to(ROOT):
            mounts.append(Path(target))
    return mounts


def create(name: str) -> None:
    """Make the group in every hierarchy; the kubelet wants its root to be there."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if _version2():
            # The kubelet looks for each that it knows (hugetlb is one) and that the machine has.
            offered = (ROOT / "cgroup.controllers").read_text().split()
            for parent, controller in itertools.product((ROOT, group), offered):
                try:
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                except OSError:
                    pass  # not to be had here: the kubelet says so if it needs it
        # A new cpuset group of version 1 is empty, and no process can be put into it like that.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (group / file).exists() and (hierarchy / file).exists() and not _version2():
                (group / file).write_text((hierarchy / file).read_text())


def remove(name: str, timeout: float = 10) -> list[Path]:
    """Remove the group and all below it. Killed processes stay in it for a moment, so this tries
    for a while. Gives what could not be removed."""
    end = time.monotonic() + timeout
    while True:
        left = [group for group in leftovers(name) if not _remove_tree(group)]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(0.1)


def leftovers(name: str) -> list[Path]:
    return [hierarchy / name for hierarchy in _hierarchies() if (hierarchy / name).is_dir()]


def _remove_tree(group: Path) -> bool:
    # The files in a group are the kernel's; only folders are removed, the deepest first.
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            return False
    return True
