"""Write a container image from a folder, without any container tool.

The format is a docker-archive (what `docker save` writes), which `ctr images import`, docker, podman
and buildah all read. The same folder always gives the same bytes: entries are sorted, and times and
owners are fixed.
"""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_docker_archive(rootfs_dir, tag, out, entrypoint=None, cmd=None, env=None, user=None,
                         workdir=None, labels=None, ports=None, stop_signal=None):
    """Pack `rootfs_dir` as the one layer of image `tag` ("name:version") into the tar file `out`.

    A list of folders makes one layer each, the later ones on top: images that share a folder then
    share a layer, and a node unpacks it once. entrypoint and cmd are lists, env is a dict, user is
    "uid" or "uid:gid" (numbers, so that runAsNonRoot can be checked), ports is a list of numbers.
    Every file belongs to root in the image; modes are kept. `out` appears only when it is complete. Gives the image's config digest.
    """
    out = Path(out)
    config = {"Entrypoint": entrypoint, "Cmd": cmd, "User": user, "WorkingDir": workdir,
              "Env": [f"{key}={value}" for key, value in (env or {}).items()] or None,
              "Labels": labels, "StopSignal": stop_signal,
              "ExposedPorts": {f"{port}/tcp": {} for port in ports or []} or None}
    folders = rootfs_dir if isinstance(rootfs_dir, (list, tuple)) else [rootfs_dir]
    with ExitStack() as files:
        layers = {}
        for folder in folders:
            layer = files.enter_context(tempfile.TemporaryFile(dir=out.parent))
            _write_layer(Path(folder), layer)
            layers[_digest(layer)] = layer
        image = json.dumps({
            "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine),
            "os": "linux", "created": "1970-01-01T00:00:00Z",
            "config": {key: value for key, value in config.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "gantry dev/lib/ociimage.py"}
                        for _ in layers],
        }, sort_keys=True).encode()
        image_digest = hashlib.sha256(image).hexdigest()
        manifest = json.dumps([{"Config": f"{image_digest}.json", "RepoTags": [tag],
                                "Layers": [f"{digest}/layer.tar" for digest in layers]}]).encode()
        part = out.with_name(out.name + f".{os.getpid()}.part")
        try:
            with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
                for digest, layer in layers.items():
                    size = layer.seek(0, io.SEEK_END)
                    layer.seek(0)
                    _add(archive, f"{digest}/layer.tar", layer, size)
                _add(archive, f"{image_digest}.json", io.BytesIO(image), len(image))
                # Last, as docker save does.
                _add(archive, "manifest.json", io.BytesIO(manifest), len(manifest))
            part.rename(out)
        finally:
            part.unlink(missing_ok=True)
    return f"sha256:{image_digest}"


def _write_layer(rootfs: Path, layer) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    if not rootfs.is_dir():
        raise NotADirectoryError(f"{rootfs} is not a folder")
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder, folders, files in os.walk(rootfs):
            folders.sort()  # os.walk goes on in this order
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in sorted([*files, *links]):
                path = Path(folder, name)
                tar.add(path, path.relative_to(rootfs), recursive=False, filter=plain)
            for name in folders:
                if name not in links:
                    path = Path(folder, name)
                    tar.add(path, path.relative_to(rootfs), recursive=False, filter=plain)


def _digest(file) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, content, size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    archive.addfile(entry, content)
