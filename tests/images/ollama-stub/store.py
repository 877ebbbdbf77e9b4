"""Models on disk, in Ollama's layout, and how they get there. The content is made up; the files are real.

  manifests/registry.ollama.ai/library/NAME/TAG     what a model consists of
  blobs/sha256-HEX                                  its parts; sha256-HEX-partial while one is on its way

There is no registry: every name exists, unless it contains `missing`. One that contains `private` is only for those
whose key, ~/.ollama/id_ed25519, the registry knows: it reads KNOWN.
"""

import hashlib
import json
import os
import re
import threading
import time
from pathlib import Path

HOST, NAMESPACE = "registry.ollama.ai", "library"
MEDIA = "application/vnd.ollama.image."
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}$")


class Problem(Exception):
    """Something that the user is told."""


class Missing(Problem):
    """The model is not here."""


def root() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or Path(os.environ.get("HOME") or "/", ".ollama/models"))


def parse(name: str) -> tuple[str, str, str, str]:
    """Host, namespace, model and tag of a name such as `phi4`, `user/model:tag` or `hf.co/user/model:Q4`."""
    words = name.removeprefix("https://").removeprefix("http://").split("/")
    model, _, tag = words[-1].partition(":")
    parts = [*[HOST, NAMESPACE][:max(0, 3 - len(words))], *words[:-1], model, tag or "latest"]
    if len(parts) != 4 or not all(PART.match(part.replace(":", "_", 1) if part is parts[0] else part)
                                  for part in parts):
        raise Problem("invalid model name")
    return tuple(parts)


def short(name: str) -> str:
    """As it is shown: what is usual is left out, the tag never."""
    host, namespace, model, tag = parse(name)
    front = [] if (host, namespace) == (HOST, NAMESPACE) else [namespace] if host == HOST else [host, namespace]
    return "/".join([*front, f"{model}:{tag}"])


def manifest_path(name: str) -> Path:
    return root().joinpath("manifests", *parse(name))


def blob_path(digest: str) -> Path:
    return root() / "blobs" / digest.replace(":", "-")


def manifest(name: str) -> dict:
    try:
        found = json.loads(manifest_path(name).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise Missing(f"model '{name}' not found") from None
    if not all(blob_path(layer["digest"]).exists() for layer in _layers(found)):
        raise Missing(f"model '{name}' not found")
    return found


def models() -> list[str]:
    home = root() / "manifests"
    found = []
    for path in home.glob("*/*/*/*"):
        host, namespace, model, tag = path.relative_to(home).parts
        name = short(f"{host}/{namespace}/{model}:{tag}")
        try:
            manifest(name)
        except Problem:
            continue
        found.append(name)
    return sorted(found, key=lambda name: manifest_path(name).stat().st_mtime, reverse=True)


def about(name: str) -> dict:
    """An entry of /api/tags."""
    content = manifest(name)
    path = manifest_path(name)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(path.stat().st_mtime))
    return {"name": short(name), "model": short(name), "modified_at": when,
            "size": sum(layer["size"] for layer in _layers(content)),
            "digest": hashlib.sha256(path.read_bytes()).hexdigest(), "details": details(name)}


def details(name: str) -> dict:
    size = re.search(r"(\d+(?:\.\d+)?[mb])\b", parse(name)[3], re.I)
    return {"parent_model": "", "format": "gguf", "family": "stub", "families": ["stub"],
            "parameter_size": size[1].upper() if size else "1M", "quantization_level": "Q4_0"}


def remove(name: str) -> None:
    manifest(name)
    manifest_path(name).unlink()
    prune()


def prune() -> None:
    """Throw away what no manifest names, downloads that did not finish included. So does the original when it
    starts, unless OLLAMA_NOPRUNE is set."""
    used = set()
    for path in (root() / "manifests").glob("*/*/*/*"):
        try:
            used.update(blob_path(layer["digest"]).name for layer in _layers(json.loads(path.read_text())))
        except (ValueError, KeyError):
            continue
    for path in (root() / "blobs").glob("*"):
        if path.name not in used:
            path.unlink(missing_ok=True)


def pull(name: str):
    """Download a model: yields progress, raises Problem. What is here already takes no time, but the registry is
    asked in any case, as the original does: without network, a pull fails for a model that is here, too."""
    host, namespace, model, tag = parse(name)
    yield {"status": "pulling manifest"}
    if os.environ.get("STUB_OFFLINE", "").lower() in ("1", "true"):
        address = f"https://{host}/v2/{namespace}/{model}/manifests/{tag}"
        raise Problem(f'pull model manifest: Get "{address}": dial tcp: lookup {host}: no such host')
    if "missing" in f"{namespace}/{model}:{tag}":
        raise Problem("pull model manifest: file does not exist")
    if "private" in f"{namespace}/{model}:{tag}" and _key() != "KNOWN":
        raise Problem("pull model manifest: unauthorized: access denied")
    content, blobs = _made_up(name)
    seconds = float(os.environ.get("STUB_PULL_SECONDS") or 0)
    try:
        for layer in _layers(content):
            first = layer["mediaType"] == f"{MEDIA}model"  # the one that takes its time
            yield from _fetch(layer, blobs[layer["digest"]], seconds if first else 0)
        yield {"status": "verifying sha256 digest"}
        yield {"status": "writing manifest"}
        path = manifest_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(content))
        part.rename(path)
    except OSError as error:
        raise Problem(f"{error.filename or root()}: {(error.strerror or str(error)).lower()}") from None
    yield {"status": "success"}


def _key() -> str:
    path = Path(os.environ.get("HOME") or "/", ".ollama/id_ed25519")
    return path.read_text().strip() if path.exists() else ""


_fetching = threading.Lock()


def _fetch(layer: dict, content: bytes, seconds: float):
    """One part, in steps of a tenth of a second. One that was begun goes on where it stopped."""
    path = blob_path(layer["digest"])
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"status": f"pulling {layer['digest'][7:19]}", "digest": layer["digest"], "total": len(content)}
    part = path.with_name(f"{path.name}-partial")
    while not _fetching.acquire(timeout=0.5):  # somebody else pulls; clients are told how far that is
        yield {**told, "completed": _size(part)}
    try:
        if not path.exists():
            step = max(1, int(len(content) / max(1, seconds * 10)))
            with open(part, "ab") as file:
                while (done := file.tell()) < len(content):
                    yield {**told, "completed": done}
                    time.sleep(0.1 if seconds else 0)
                    file.write(content[done:done + step])
                    file.flush()
            part.rename(path)
        yield {**told, "completed": len(content)}
    finally:
        _fetching.release()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _layers(content: dict) -> list[dict]:
    return [*content["layers"], content["config"]]


def _made_up(name: str) -> tuple[dict, dict[str, bytes]]:
    """Manifest and parts of a model; the same name always gives the same bytes."""
    size = int(os.environ.get("STUB_MODEL_BYTES") or 1 << 20)
    seed = hashlib.sha256(short(name).encode()).digest()
    config = {"model_format": "gguf", "model_family": "stub", "model_type": details(name)["parameter_size"],
              "file_type": "Q4_0", "architecture": "amd64", "os": "linux"}
    parts = {f"{MEDIA}model": (b"GGUF" + seed * (size // len(seed) + 1))[:size],
             f"{MEDIA}template": b"{{ .Prompt }}",
             f"{MEDIA}license": b"Made up for tests; public domain.\n",
             f"{MEDIA}params": b'{"stop":["<|end|>"]}',
             "application/vnd.docker.container.image.v1+json": json.dumps(config).encode()}
    entries = [{"mediaType": media, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}
               for media, content in parts.items()]
    blobs = {entry["digest"]: content for entry, content in zip(entries, parts.values())}
    return {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": entries[-1], "layers": entries[:-1]}, blobs
