"""Certificates, keys and kubeconfig files of one cluster, made with the openssl command.

Elliptic-curve keys, because making them takes no time; only the ServiceAccount key is RSA, as
clusters usually have it. Everything is new at every start and lives as long as the cluster.
"""

import base64
import subprocess
from pathlib import Path

from clusternet import Net
from devlib import Failure

DAYS = "365"
CONFIG = """
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign,digitalSignature
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature,keyEncipherment
extendedKeyUsage = serverAuth,clientAuth
"""
# file name: subject. "system:masters" is bound to cluster-admin by every API server.
CLIENTS = {
    "admin": "/O=system:masters/CN=gantry-admin",
    "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
}


def make(folder: Path, net: Net, node_name: str) -> None:
    """Write everything into `folder`."""
    folder.mkdir(mode=0o700)
    config = folder / "openssl.cnf"
    config.write_text(CONFIG)
    for authority, name in (("ca", "gantry-ca"), ("front-proxy-ca", "gantry-front-proxy-ca")):
        _certificate(folder, authority, f"/CN={name}", ["-extensions", "ca"])
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc",
             "kubernetes.default.svc.cluster.local", "localhost"]
    addresses = [net.node, net.first_service, "127.0.0.1"]
    _leaf(folder, "apiserver", "/CN=kube-apiserver", names, addresses)
    _leaf(folder, "kubelet-server", f"/CN={node_name}", [node_name], [net.node, "127.0.0.1"])
    _leaf(folder, "front-proxy-client", "/CN=front-proxy-client", authority="front-proxy-ca")
    # The Node authorizer wants exactly this name and group.
    clients = {**CLIENTS, "kubelet": f"/O=system:nodes/CN=system:node:{node_name}"}
    for name, subject in clients.items():
        _leaf(folder, name, subject)
        _kubeconfig(folder, name, net)
    _openssl("genrsa", "-out", str(folder / "service-account.key"), "2048")
    _openssl("rsa", "-in", str(folder / "service-account.key"), "-pubout",
             "-out", str(folder / "service-account.pub"))


def _leaf(folder: Path, name: str, subject: str, names=(), addresses=(), authority="ca") -> None:
    alternatives = [f"DNS:{n}" for n in names] + [f"IP:{a}" for a in addresses]
    extra = ["-addext", f"subjectAltName={','.join(alternatives)}"] if alternatives else []
    _certificate(folder, name, subject, [
        "-extensions", "leaf", "-CA", str(folder / f"{authority}.crt"),
        "-CAkey", str(folder / f"{authority}.key"), *extra])


def _certificate(folder: Path, name: str, subject: str, extra: list[str]) -> None:
    _openssl("req", "-x509", "-config", str(folder / "openssl.cnf"), "-newkey", "ec",
             "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256", "-days", DAYS,
             "-subj", subject, "-keyout", str(folder / f"{name}.key"),
             "-out", str(folder / f"{name}.crt"), *extra)


def _kubeconfig(folder: Path, name: str, net: Net) -> None:
    def content(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    path = folder / f"{name}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(f"""apiVersion: v1
kind: Config
clusters:
- name: gantry
  cluster:
    server: {net.api}
    certificate-authority-data: {content("ca.crt")}
users:
- name: {name}
  user:
    client-certificate-data: {content(f"{name}.crt")}
    client-key-data: {content(f"{name}.key")}
contexts:
- name: gantry
  context:
    cluster: gantry
    user: {name}
current-context: gantry
""")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
