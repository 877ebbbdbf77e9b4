"""Addresses of the local clusters, and the link between the host and a cluster.

Every cluster has a number, and all its addresses follow from it, so clusters never overlap:

    link      10.199.K.0/30     host 10.199.K.1 on interface gantryK, cluster 10.199.K.2 on eth0
    pods      10.(128+K).0.0/16
    services  10.(160+K).0.0/16

The interface gantryK is the claim on number K: it is made with its other end already inside the
cluster's network namespace, so it vanishes with the cluster however that ends, and with it the
routes through it. Its alias names the state folder of the cluster it belongs to.
"""

import ipaddress
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devlib import Failure, locked

NUMBERS = range(32)
BRIDGES = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
# Not in the state folder: the numbers belong to the machine, and state folders can be many.
LOCK = Path("/run/lock/gantry-clusters.lock")


@dataclass(frozen=True)
class Net:
    """The addresses of cluster number K."""

    number: int

    @property
    def interface(self) -> str:
        return f"gantry{self.number}"

    @property
    def host(self) -> str:
        return f"10.199.{self.number}.1"

    @property
    def node(self) -> str:
        """The cluster's own address: API server, node, DNS."""
        return f"10.199.{self.number}.2"

    @property
    def link(self) -> str:
        return f"10.199.{self.number}.0/30"

    @property
    def pods(self) -> str:
        return f"10.{128 + self.number}.0.0/16"

    @property
    def node_pods(self) -> str:
        """The part of `pods` that the one real node gets."""
        return f"10.{128 + self.number}.0.0/24"

    @property
    def services(self) -> str:
        return f"10.{160 + self.number}.0.0/16"

    @property
    def first_service(self) -> str:
        """What kubernetes.default.svc gets."""
        return f"10.{160 + self.number}.0.1"

    @property
    def api(self) -> str:
        return f"https://{self.node}:6443"


def filter_bridges() -> None:
    """Pods on one bridge that speak through a Service need the kernel to show bridged packets to the firewall. That is a
    module, which nobody loads by itself; for the machine's own bridges it stays switched off. It cannot be unloaded safely,
    so it stays."""
    if BRIDGES.exists():
        return
    subprocess.run(["modprobe", "br_netfilter"], check=False)
    if not BRIDGES.exists():
        raise Failure("this kernel has no module br_netfilter: pods of a real node could not reach each other by Services. "
                      "Install the kernel's modules, or use simulated nodes (--nodes 1)")
    for name in ("iptables", "ip6tables", "arptables"):
        BRIDGES.with_name(f"bridge-nf-call-{name}").write_text("0")


def connect(pid: int, owner: Path) -> Net:
    """Pick a free number for the cluster whose first process is `pid`, make its link and routes."""
    with locked(LOCK, remove=True):
        taken = _taken()
        for number in NUMBERS:
            net = Net(number)
            ranges = [ipaddress.ip_network(text) for text in (net.link, net.pods, net.services)]
            if _exists(net.interface) or any(a.overlaps(b) for a in ranges for b in taken):
                continue
            _ip("link", "add", net.interface, "type", "veth", "peer", "name", "eth0",
                "netns", str(pid))
            _ip("link", "set", net.interface, "alias", f"gantry cluster {owner}", "up")
            _ip("addr", "add", f"{net.host}/30", "dev", net.interface)
            # So that the host reaches pods and Services too.
            for target in (net.pods, net.services):
                _ip("route", "add", target, "via", net.node, "dev", net.interface)
            return net
    raise Failure(f"all {len(NUMBERS)} address ranges for clusters (10.128-191, 10.199) are taken; "
                  "see `ip route`, and `dev/cluster list`")


def disconnect(net: Net, owner: Path) -> None:
    """Remove the link if it is still this cluster's. (It goes by itself with the namespace, but a
    moment later than the last process.)"""
    if alias(net) == f"gantry cluster {owner}":
        subprocess.run(["ip", "link", "del", net.interface], capture_output=True, check=False)


def alias(net: Net) -> str:
    try:
        return Path(f"/sys/class/net/{net.interface}/ifalias").read_text().strip()
    except OSError:
        return ""


def _exists(interface: str) -> bool:
    return Path(f"/sys/class/net/{interface}").exists()


def _taken() -> list[ipaddress.IPv4Network]:
    """Networks that this machine has addresses in or routes to, the default route apart."""
    answer = subprocess.run(["ip", "-json", "-4", "route", "show", "table", "all"],
                            capture_output=True, text=True, check=True).stdout
    networks = []
    for entry in json.loads(answer or "[]"):
        try:
            network = ipaddress.ip_network(entry.get("dst", ""), strict=False)
        except ValueError:
            continue  # "default"
        # Ours are more specific than the wide route of a VPN, and win over it.
        if network.prefixlen > 8:
            networks.append(network)
    return networks


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
