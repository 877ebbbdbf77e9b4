"""Build a Dockerfile with Debian's buildah, without any registry.

The base images that a Dockerfile names are made here from Debian's packages (and this machine's Rust) and put under those names
into buildah's store, and nothing is ever pulled. The store is in the cache; buildah runs in a mount
namespace of its own, so that no mount of it can stay.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import cargotools
import imagecache
import ociimage
import packages
import pythontree
import rootfs
from devlib import REPO, Failure, locked, say

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build(tag: str, dockerfile: Path, context: Path, arguments: dict[str, str], out: Path,
          quiet: bool = True, volumes: list[str] | None = None, target: str | None = None) -> None:
    """Build `dockerfile` (up to the stage `target`) with this context folder as image `tag` into a docker-archive `out`."""
    packages.ensure("image")
    if os.geteuid() != 0:
        raise Failure("buildah needs root here: run it with sudo -E")
    bases = [name for name in external_images(dockerfile.read_text(), arguments) if maker(name)]
    store = imagecache.home() / "buildah"
    with locked(imagecache.home() / ".buildah.lock", "waiting for another build"):
        for name in bases:
            _ensure_base(store, name)
        say(f"building {tag} from {dockerfile.name}")
        given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        mounts = [f"--volume={volume}" for volume in volumes or []]
        stage = [f"--target={target}"] if target else []
        # The archive lists every name that the image has here, so here it gets none.
        with tempfile.NamedTemporaryFile(mode="r", prefix="gantry-id-") as identity:
            try:
                _buildah(store, "bud", "--isolation=chroot", "--pull=never", "--timestamp=0",
                         "--format=docker", "--layers=false", *given, *mounts, *stage,
                         f"--iidfile={identity.name}", f"--file={dockerfile}", str(context),
                         shown=not quiet)
                out.unlink(missing_ok=True)
                _buildah(store, "push", "--disable-compression", identity.read().strip(),
                         f"docker-archive:{out}:{tag}")
            finally:
                _buildah(store, "rmi", "--prune", "--force", checked=False)


def external_images(text: str, arguments: dict[str, str]) -> list[str]:
    """The images that a Dockerfile starts from, other than its own stages."""
    known, stages, images, before_first = {}, {"scratch"}, [], True
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0].upper() == "ARG" and before_first:
            name, _, default = " ".join(words[1:]).partition("=")
            known[name] = arguments.get(name, default.strip("\"'"))
        elif words[0].upper() == "FROM":
            before_first = False
            rest = [word for word in words[1:] if not word.startswith("--")]
            image = re.sub(r"\$\{?(\w+)(?::-([^}]*))?\}?",
                           lambda m: known.get(m[1]) or m[2] or "", rest[0])
            if image not in stages and image not in images:
                images.append(image)
            if len(rest) > 2:
                stages.add(rest[2])
    return images


def maker(image: str):
    """What makes this base image here; None when nothing does."""
    match = re.fullmatch(r"(?:docker\.io/)?(?:library/)?(debian|python|rust):[\w.-]+", image)
    return {"debian": debian_root, "python": pythontree.base, "rust": rust_root}[match[1]] if match else None


def debian_root(*more: str) -> Path:
    """The root of a small Debian: the essential packages and these, dpkg's records of them, certificates."""
    packages.ensure("image")
    names = rootfs.with_dependencies([*rootfs.essential(), "ca-certificates", "apt", *more])
    key = imagecache.key(rootfs, __import__(__name__), rootfs.package_versions(names))

    def make(root: Path) -> None:
        say(f"gathering a small Debian from {len(names)} installed packages")
        rootfs.skeleton(root)
        rootfs.add_packages(root, names, r"^/etc/apt/|^/usr/share/(zoneinfo|i18n|perl5)/|/gconv/")
        rootfs.add_certificates(root)
        for name in ("passwd.master", "group.master"):
            rootfs.add_file(root, Path("/usr/share/base-passwd", name), f"/etc/{name.split('.')[0]}")
        records = root / "var/lib/dpkg"
        (records / "info").mkdir(parents=True, exist_ok=True)
        answer = subprocess.run(["dpkg-query", "-s", *names], text=True, capture_output=True, check=True)
        (records / "status").write_text(answer.stdout)

    return imagecache.folder("debian", key, make)


def rust_root() -> Path:
    """As the official image for Rust, the slim one: a compiler for C beside the toolchain that this repository uses."""
    packages.ensure("image", "check")
    debian = debian_root("gcc", "libc6-dev")
    toolchain = Path(_rustc("--print", "sysroot").strip())
    key = imagecache.key(__import__(__name__), debian.name, _rustc("--version", "--verbose"))

    def make(root: Path) -> None:
        say(f"adding {_rustc('--version').strip()}")
        shutil.copytree(debian, root, symlinks=True, dirs_exist_ok=True)
        (root / "usr/bin/cc").symlink_to("gcc")
        for name in ("cargo", "rustc"):
            shutil.copy2(toolchain / "bin" / name, root / "usr/local/bin" / name)
        shutil.copytree(toolchain / "lib", root / "usr/local/lib", symlinks=True, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("src", "gdb*", "lldb*"))

    return imagecache.folder("rust", key, make)


def _rustc(*arguments: str) -> str:
    # In the repository, whose rust-toolchain.toml says which one.
    done = subprocess.run(["rustc", *arguments], cwd=REPO, text=True, capture_output=True, check=False,
                          env={**os.environ, "PATH": cargotools.path()})
    if done.returncode:
        raise Failure(f"rustc {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _environment(root: Path) -> dict[str, str]:
    if root.parent.name != "rust":
        return {"PATH": PATH}
    return {"PATH": PATH, "CARGO_HOME": "/usr/local/cargo", "RUST_VERSION": _rustc("--version").split()[1]}


def _ensure_base(store: Path, image: str) -> None:
    root = maker(image)()
    name = image if image.startswith("docker.io/") else f"docker.io/library/{image.split('/')[-1]}"
    label = f"{root.parent.name}-{root.name}"
    have = _buildah(store, "inspect", "--type=image",
                    "--format={{index .Docker.Config.Labels \"dev.gantry.base\"}}", name, checked=False)
    if have.strip() == label:
        return
    with tempfile.TemporaryDirectory(prefix="gantry-base-") as folder:
        archive = Path(folder, "base.tar")
        ociimage.write_docker_archive(root, name, archive, cmd=["/bin/sh"], env=_environment(root),
                                      labels={"dev.gantry.base": label})
        _buildah(store, "rmi", "--force", name, checked=False)
        _buildah(store, "pull", f"docker-archive:{archive}")


def _buildah(store: Path, *arguments: str, checked: bool = True, shown: bool = False) -> str:
    driver = "vfs" if _on_overlay(store) else "overlay"
    command = ["unshare", "--mount", "--propagation=private", "buildah", f"--root={store / driver}",
               f"--runroot={store / 'run'}", f"--storage-driver={driver}", *arguments]
    # Settings of the machine's own containers have no say here.
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("BUILDAH_", "STORAGE_", "CONTAINERS_", "REGISTRY_"))}
    # Where it keeps what a build's cache mounts hold, else in /var/tmp.
    environment["TMPDIR"] = str(store / "tmp")
    (store / "tmp").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, env=environment, text=True, check=False, stdin=subprocess.DEVNULL,
                          stdout=None if shown else subprocess.PIPE,
                          stderr=None if shown else subprocess.STDOUT)
    words = done.stdout or ""
    if done.returncode and checked:
        missing = re.search(r"(\S+): image not known|no such image: (\S+)", words)
        hint = (f"\nThere is no image {next(filter(None, missing.groups()))} here, and nothing is pulled; "
                "dev/image makes debian:*, python:* and rust:* only" if missing else "")
        raise Failure(f"buildah {arguments[0]} failed:\n{words[-4000:].rstrip()}{hint}")
    return words


def _on_overlay(folder: Path) -> bool:
    """An overlay cannot lie on an overlay (a development container's root often is one)."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = subprocess.run(["stat", "--file-system", "--format=%T", str(folder)], text=True,
                          capture_output=True, check=False).stdout.strip()
    return kind in ("overlayfs", "aufs")


def fresh_context(additions: list[tuple[Path, str]], folder: Path) -> Path:
    """A context folder with only these files and folders, each under its name in there."""
    for source, target in additions:
        path = folder / target.strip("/")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise Failure(f"{target} leads out of the context")
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, path, symlinks=True, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copy2(source, path)
        else:
            raise Failure(f"{source} is not there")
    return folder
