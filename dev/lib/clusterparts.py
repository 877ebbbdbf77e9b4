"""What runs in a cluster: the command line and the configuration files of every part.

Everything listens inside the cluster's own network namespace, so the usual ports are free in every
cluster. The result is a plan that lib/supervisor.py carries out.
"""

import json
import os
import shutil
from pathlib import Path

import ociimage
from clusternet import Net
from devlib import Failure, REPO

DOMAIN = "cluster.local"
PAUSE = "gantry.local/pause:1"
CONTAINERD = "/run/containerd/containerd.sock"
ETCD = "http://127.0.0.1:2379"
SIMNODE = "gantry-simnode"
SIMNODE_BUILD = "cargo build --release -p gantry-simnode"
# Many objects are made at once in tests; the defaults (20 requests/s) would be what is measured.
FAST = ["--kube-api-qps=300", "--kube-api-burst=500"]


def find_simnode() -> Path | None:
    """Our own program for cluster DNS, metrics and simulated nodes, wherever it was built."""
    if os.environ.get("GANTRY_SIMNODE"):
        path = Path(os.environ["GANTRY_SIMNODE"]).absolute()
        if not path.is_file():
            raise Failure(f"GANTRY_SIMNODE is {path}, and that is not a file")
        return path
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    for profile in ("release", "debug"):
        path = REPO / target / profile / SIMNODE
        if path.is_file():
            return path
    return None


class Plan:
    """The plan of one cluster with its folder, addresses and kind of nodes."""

    def __init__(self, folder: Path, net: Net, nodes, node_name: str, cgroup: str, programs: Path,
                 simnode: Path | None):
        self.folder, self.net, self.nodes, self.node_name = folder, net, nodes, node_name
        self.cgroup, self.programs = cgroup, programs
        self.pki, self.config = folder / "pki", folder / "config"
        self.components: list[dict] = []
        self.simnode = ""
        if simnode:
            # A copy: a rebuild must not pull the program from under a running cluster.
            self.simnode = str(folder / SIMNODE)
            shutil.copy2(simnode, self.simnode)

    def write(self) -> None:
        for part in ("config", "tmp", "etcd", "var/lib", "var/log", "var/cache", "var/tmp"):
            (self.folder / part).mkdir(parents=True)
        for part in ("tmp", "var/tmp"):
            (self.folder / part).chmod(0o1777)
        (self.folder / "var/run").symlink_to("/run")
        self._control_plane()
        if self.nodes == "real":
            self._container_runtime()
            self._node()
        elif int(self.nodes):
            self._simulated_nodes()
        (self.folder / "plan.json").write_text(json.dumps({
            "node": self.net.node, "services": self.net.services, "hostname": self.node_name,
            "expose": [str(self.folder), str(self.programs)], "environment": self.environment(),
            "components": self.components,
        }, indent=1))

    def environment(self) -> dict[str, str]:
        """For the parts, and for `dev/cluster exec`."""
        return {
            "PATH": f"{self.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/tmp", "LANG": "C.UTF-8", "KUBECONFIG": str(self.pki / "admin.kubeconfig"),
            "CONTAINERD_ADDRESS": CONTAINERD, "CONTAINERD_NAMESPACE": "k8s.io",
            "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": ETCD,
            # All parts are Go: some hundred megabytes more, for less of the few cores.
            "GOGC": "300",
        }

    def _add(self, name: str, *command: str, after=(), oneshot=False) -> None:
        self.components.append({"name": name, "command": [str(part) for part in command],
                                "after": list(after), "oneshot": oneshot})

    def _file(self, name: str, content) -> Path:
        """Kubernetes reads JSON wherever it reads YAML."""
        path = self.config / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    def _control_plane(self) -> None:
        net, pki = self.net, self.pki
        self._add("etcd", "etcd", f"--data-dir={self.folder / 'etcd'}",
                  f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}",
                  "--listen-peer-urls=http://127.0.0.1:2380", "--logger=zap", "--log-level=warn",
                  # Nothing here has to survive a power cut, and syncing is most of etcd's time.
                  "--unsafe-no-fsync", "--quota-backend-bytes=6442450944")
        self._add(
            "kube-apiserver", "kube-apiserver", f"--etcd-servers={ETCD}",
            "--bind-address=0.0.0.0", "--secure-port=6443", f"--advertise-address={net.node}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}", "--anonymous-auth=true",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true", f"--service-cluster-ip-range={net.services}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-account-key-file={pki / 'service-account.pub'}",
            f"--service-account-signing-key-file={pki / 'service-account.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            # The aggregation layer (metrics.k8s.io), going to Endpoints because the control plane
            # of a cluster with simulated nodes has no kube-proxy.
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
            "--max-requests-inflight=1200", "--max-mutating-requests-inflight=600",
            after=["tcp:127.0.0.1:2379"])
        # It listens long before it serves, and RBAC's own roles come later still: a controller
        # manager that asks too early is told "forbidden" and gives up.
        server = self.api_ready = [f"ok:{net.api}/readyz"]
        manager = pki / "controller-manager.kubeconfig"
        self._add(
            "kube-controller-manager", "kube-controller-manager", f"--kubeconfig={manager}",
            f"--authentication-kubeconfig={manager}", f"--authorization-kubeconfig={manager}",
            "--leader-elect=false", "--use-service-account-credentials=true",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'service-account.key'}",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            # Handing out pod ranges would make it wait 10 s at its start. The real node has its range
            # in the CNI configuration, and simnode takes care of its nodes itself.
            "--allocate-node-cidrs=false", f"--cluster-cidr={net.pods}",
            f"--service-cluster-ip-range={net.services}",
            "--horizontal-pod-autoscaler-sync-period=5s",
            "--horizontal-pod-autoscaler-downscale-stabilization=10s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=5s",
            "--horizontal-pod-autoscaler-cpu-initialization-period=10s",
            # Volumes for claims: folders below /tmp/hostpath_pv, and /tmp is the cluster's own.
            "--enable-hostpath-provisioner=true",
            "--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20",
            "--concurrent-statefulset-syncs=10", "--concurrent-endpoint-syncs=20",
            "--concurrent-service-endpoint-syncs=20", "--concurrent-gc-syncs=30",
            "--concurrent-namespace-syncs=20", *FAST, after=server)
        scheduler = pki / "scheduler.kubeconfig"
        self._add("kube-scheduler", "kube-scheduler", f"--kubeconfig={scheduler}",
                  f"--authentication-kubeconfig={scheduler}",
                  f"--authorization-kubeconfig={scheduler}", "--leader-elect=false", *FAST,
                  after=server)

    def _container_runtime(self) -> None:
        # Without CAP_SYS_RESOURCE no process can lower its OOM score, and runc would fail on it.
        restrict = "false" if _has_capability(24) else "true"
        networks = self.config / "cni"
        networks.mkdir()
        (networks / "10-gantry.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": "gantry", "plugins": [
                {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True,
                 # The host has a route to the pods, so what it sees is the pod's own address.
                 "ipMasq": False,
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": self.net.node_pods}]],
                          "routes": [{"dst": "0.0.0.0/0"}]}},
                {"type": "portmap", "capabilities": {"portMappings": True}}]}, indent=1))
        # A registry on the host (dev/registry) is plain HTTP; containerd reads this at every pull.
        registries = self.config / "registries"
        hosts = registries / f"{self.net.host}:5000/hosts.toml"
        hosts.parent.mkdir(parents=True)
        # Debian's containerd refuses a file without a `host` tree and then insists on HTTPS.
        registry = f"http://{self.net.host}:5000"
        hosts.write_text(f'server = "{registry}"\n[host."{registry}"]\n  capabilities = ["pull", "resolve"]\n')
        # An overlay cannot lie on an overlay (a development container's root often is one).
        snapshotter = "native" if _on_overlay(self.folder) else "overlayfs"
        # Its plugin "opt" would make folders in /opt, which is the machine's.
        config = self._file("containerd.toml", f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = {restrict}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
""")
        self._add("containerd", "containerd", f"--config={config}", "--log-level=warn")
        root = self.folder / "pause"
        root.mkdir()
        shutil.copy2(self.programs / "pause", root / "pause")
        archive = self.folder / "pause.tar"
        ociimage.write_docker_archive(root, PAUSE, archive, entrypoint=["/pause"], user="65535:65535")
        self._add("pause-image", "ctr", f"--address={CONTAINERD}", "--namespace=k8s.io", "images",
                  "import", str(archive), after=[f"unix:{CONTAINERD}"], oneshot=True)

    def _node(self) -> None:
        net, pki = self.net, self.pki
        resolver = self._file("resolv.conf", f"nameserver {net.node}\n")
        kubelet = self._file("kubelet.json", {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": str(pki / "ca.crt")}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet-server.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet-server.key"),
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.cgroup}", "oomScoreAdj": 0,
            "clusterDNS": [net.node], "clusterDomain": DOMAIN, "resolvConf": str(resolver),
            # Look often, so that the node is seen Ready as soon as it is; write only changes.
            "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "5m",
            "failSwapOn": False, "maxPods": 200, "serializeImagePulls": False,
            "kubeAPIQPS": 100, "kubeAPIBurst": 200, "eventRecordQPS": 50, "eventBurst": 100,
            # The disk is the developer's own: its filling up is no reason to evict pods, and an
            # image that was loaded by hand must never be collected (100 switches that off).
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%",
                             "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        })
        self._add("kubelet", "kubelet", f"--config={kubelet}",
                  f"--kubeconfig={pki / 'kubelet.kubeconfig'}", "--container-runtime=remote",
                  f"--container-runtime-endpoint=unix://{CONTAINERD}",
                  f"--hostname-override={self.node_name}", f"--node-ip={net.node}",
                  "--root-dir=/var/lib/kubelet",
                  # Not after the API server: it first looks for Docker, for 5 s, and then tries
                  # until the API server is there.
                  after=[f"unix:{CONTAINERD}"])
        proxy = self._file("kube-proxy.json", {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(pki / "kube-proxy.kubeconfig")},
            "mode": "iptables", "clusterCIDR": net.pods, "hostnameOverride": self.node_name,
            # Known from the start, it need not wait for the node to be registered.
            "bindAddress": net.node, "oomScoreAdj": 0,
            # Those limits are the machine's, not the namespace's: leave them.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s",
                          "tcpCloseWaitTimeout": "0s"},
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        })
        self._add("kube-proxy", "kube-proxy", f"--config={proxy}", after=self.api_ready)
        if self.simnode:
            self._simnode("dns", f"--listen={net.node}:53", f"--domain={DOMAIN}")
            self._metrics()

    def _simulated_nodes(self) -> None:
        self._simnode("nodes", f"--count={self.nodes}", f"--pod-cidr={self.net.pods}")
        self._metrics()

    def _metrics(self) -> None:
        self._simnode("metrics", f"--listen={self.net.node}:4443",
                      f"--service-address={self.net.node}",
                      f"--kubelet-ca={self.pki / 'ca.crt'}",
                      f"--kubelet-cert={self.pki / 'kubelet-client.crt'}",
                      f"--kubelet-key={self.pki / 'kubelet-client.key'}")

    def _simnode(self, command: str, *arguments: str) -> None:
        self._add(command, self.simnode, command,
                  f"--kubeconfig={self.pki / 'admin.kubeconfig'}", *arguments,
                  after=self.api_ready)


def _has_capability(bit: int) -> bool:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> bit & 1)


def _on_overlay(folder: Path) -> bool:
    """Is the longest mount point above this folder an overlay?"""
    best, kind_of_best = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind = line.split()[:3]
        if folder.is_relative_to(target) and len(target) >= len(best):
            best, kind_of_best = target, kind
    return kind_of_best == "overlay"
