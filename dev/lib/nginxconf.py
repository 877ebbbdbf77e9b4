"""An nginx configuration from Ingress objects. Pure: objects in, text and files out.

What an Ingress controller has to do with the fields of networking.k8s.io/v1: hosts, paths by their type, certificates
by Secret, Services by number or name of a port. Annotations of other controllers mean nothing here.
"""

import base64
from dataclasses import dataclass, field

CLASS = "kubernetes.io/ingress.class"  # how classes were named before ingressClassName


@dataclass
class Configuration:
    text: str
    files: dict[str, bytes] = field(default_factory=dict)  # certificates and keys, by name
    problems: list[str] = field(default_factory=list)  # what is asked for and cannot be done
    served: list[tuple[str, str]] = field(default_factory=list)  # namespace and name of what is


def build(ingresses: list[dict], services: list[dict], secrets: list[dict], class_name: str, folder: str,
          http: str, https: str, user: str = "") -> Configuration:
    """`http` and `https` are addresses to listen on, `user` a line that says under whose name."""
    by_name = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in services}
    certificates = {(one["metadata"]["namespace"], one["metadata"]["name"]): one.get("data") or {} for one in secrets}
    outcome = Configuration("")
    plain: dict[str, dict[str, str]] = {}  # locations by host
    secure: dict[str, str] = {}  # certificate by host
    for ingress in sorted(ingresses, key=lambda one: one["metadata"]["creationTimestamp"]):
        metadata, spec = ingress["metadata"], ingress["spec"]
        asked = spec.get("ingressClassName") or (metadata.get("annotations") or {}).get(CLASS)
        if asked not in (None, class_name):
            continue
        who = f"Ingress {metadata['namespace']}/{metadata['name']}"
        outcome.served.append((metadata["namespace"], metadata["name"]))
        for entry in spec.get("tls") or []:
            name = _certificate(outcome, certificates, metadata["namespace"], entry.get("secretName"), who)
            for host in entry.get("hosts") or []:
                if name:
                    secure.setdefault(host, name)
        for rule in spec.get("rules") or []:
            locations = plain.setdefault(rule.get("host") or "_", {})
            for path in (rule.get("http") or {}).get("paths") or []:
                target = _target(outcome, by_name, metadata["namespace"], path["backend"].get("service"), who)
                if target:
                    for location in _locations(path.get("path") or "/", path.get("pathType")):
                        locations.setdefault(location, target)  # the oldest wins, as everywhere
    # Where no host fits, a rule without one does, and else nothing.
    if "_" not in plain:
        plain["_"] = {}
    servers = [_server(f"listen {http}{' default_server' if host == '_' else ''};", host, locations) for host, locations in plain.items()]
    for host, name in secure.items():
        listen = (f"listen {https} ssl; ssl_certificate {folder}/{name}.crt; ssl_certificate_key {folder}/{name}.key;")
        servers.append(_server(listen, host, plain.get(host) or plain.get("_") or {}))
    outcome.text = _MAIN.format(user=user, folder=folder, servers="\n".join(servers))
    return outcome


def _certificate(outcome: Configuration, known: dict, namespace: str, secret: str | None, who: str) -> str:
    data = known.get((namespace, secret or ""), {})
    if not ("tls.crt" in data and "tls.key" in data):
        outcome.problems.append(f"{who}: no Secret {secret} with tls.crt and tls.key")
        return ""
    name = f"{namespace}.{secret}"
    outcome.files[f"{name}.crt"] = base64.b64decode(data["tls.crt"])
    outcome.files[f"{name}.key"] = base64.b64decode(data["tls.key"])
    return name


def _target(outcome: Configuration, known: dict, namespace: str, backend: dict | None, who: str) -> str:
    service = known.get((namespace, (backend or {}).get("name")))
    if not service:
        outcome.problems.append(f"{who}: no Service {(backend or {}).get('name')}")
        return ""
    asked = backend.get("port") or {}
    for port in service["spec"].get("ports") or []:
        if port["port"] == asked.get("number") or (asked.get("name") and port.get("name") == asked["name"]):
            return f"http://{service['spec']['clusterIP']}:{port['port']}"
    outcome.problems.append(f"{who}: Service {backend['name']} has no port {asked}")
    return ""


def _locations(path: str, path_type: str | None) -> list[str]:
    """nginx takes the longest that fits, as Ingress wants it; but its prefixes know no elements of a path."""
    if path_type == "Exact":
        return [f"= {path}"]
    whole = path.rstrip("/")
    return [f"= {whole}", f"{whole}/"] if whole else ["/"]


def _server(listen: str, host: str, locations: dict[str, str]) -> str:
    name = f"server_name {host};"  # "_" is no name of a host: it fits where nothing else does
    lines = [f"    location {where} {{ proxy_pass {target}; }}" for where, target in locations.items()]
    if "/" not in locations:
        lines.append("    location / { return 404; }")
    return "\n".join([f"  server {{\n    {listen} {name}", *lines, "  }"])


_MAIN = """{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  # Answers of models come in pieces and take their time.
  proxy_buffering off;
  proxy_read_timeout 600s;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_set_header Host $host;
  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
  proxy_set_header X-Forwarded-Proto $scheme;
  client_max_body_size 64m;
{servers}
}}
"""
