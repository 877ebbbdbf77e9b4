"""A Python for images: Debian's Python with pip and a small userland, and wheels to put on top.

It stands in for the official python image, which is out of reach without a registry: `python`, `pip`,
`sh`, `timeout` and the usual tools, usable by any user and with a read-only root.
"""

import re
import shutil
import subprocess
from pathlib import Path

import imagecache
import packages
import rootfs
from devlib import Failure, say

PYTHON = "/usr/bin/python3"
# Tests of Python itself, windows to draw, and what only compiling an extension needs.
LEFT_OUT = (r"/python3(\.\d+)?/(test|idlelib|tkinter|turtledemo|lib2to3/tests|config-[^/]+|pydoc_data)/"
            r"|/__pycache__/|EXTERNALLY-MANAGED|\.(a|prf)$"
            r"|/(2to3|pdb|pydoc|pygettext|py3(clean|compile|versions))[^/]*$"
            r"|^/usr/share/(python3|binfmts|perl5)/|^/usr/lib/valgrind|^/etc/")
# What the official image has beyond Python's own needs: scripts and wheels count on it. (busybox, which
# does the rest, has a `timeout` with other exit codes, for one.)
ALSO = ["libc6", "dash", "coreutils", "libgcc-s1", "libstdc++6"]


def version() -> str:
    """Of Debian's Python, as "3.11"."""
    done = subprocess.run([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                          text=True, capture_output=True, check=False)
    if done.returncode:
        raise Failure(f"{PYTHON} does not run: {done.stderr.strip()}")
    return done.stdout.strip()


def base() -> Path:
    """The folder with the root of the Python image, made when it is not in the cache."""
    packages.ensure("image")
    number = version()
    names = [f"python{number}", f"python{number}-minimal", f"libpython{number}-minimal",
             f"libpython{number}-stdlib", f"python{number}-venv", "python3-minimal", "python3-distutils",
             "python3-lib2to3", "python3-pip", "python3-pip-whl", "python3-setuptools-whl", "tzdata", "media-types"]
    names = [name for name in names if not packages.missing_names([name])]
    libraries = ["libc6", "libssl3", "libsqlite3-0", "zlib1g", "libexpat1", "libffi8", "busybox-static",
                 "ca-certificates", "base-files", *ALSO]
    key = imagecache.key(rootfs, __import__(__name__), rootfs.package_versions([*names, *libraries]))

    def make(root: Path) -> None:
        say(f"gathering Python {number} from Debian's packages")
        rootfs.skeleton(root)
        rootfs.add_packages(root, names, LEFT_OUT)
        rootfs.add_packages(root, ALSO, "/__pycache__/|/gdb/|/gconv/")
        rootfs.add_file(root, Path("/usr/lib/os-release"), "/usr/lib/os-release")
        (root / "etc/os-release").symlink_to("../usr/lib/os-release")
        programs = [path for path in (root / "usr/bin").iterdir()
                    if not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"]
        rootfs.add_libraries(root, [*programs,
                                    *(root / f"usr/lib/python{number}/lib-dynload").glob("*.so")])
        rootfs.add_certificates(root)
        rootfs.add_busybox(root)
        for name in ("python", "python3"):
            (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/python{number}")
        compile_all([root / f"usr/lib/python{number}", root / "usr/lib/python3"], root)

    return imagecache.folder("python", key, make)


def wheels(requirements: list[str], leave_out: list[str] = []) -> Path:  # noqa: B006: only read
    """A folder with these requirements installed where the Python of `base` finds them. Each is a
    requirement as pip takes it, or a requirements file. What is left out are names of packages as they are
    imported, for those that are demanded and never used."""
    packages.ensure("image")
    number = version()
    files = [item for item in requirements if Path(item).is_file()]
    content = [Path(item).read_text() if item in files else item for item in requirements]
    key = imagecache.key(__import__(__name__), number, *content, *(f"without {name}" for name in sorted(leave_out)))

    def make(root: Path) -> None:
        say(f"installing {', '.join(Path(r).name if r in files else r for r in requirements)} with pip")
        site = root / f"usr/local/lib/python{number}/dist-packages"
        site.mkdir(parents=True)
        asked = [word for item in requirements
                 for word in (["--requirement", item] if item in files else [item])]
        done = subprocess.run(
            [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
             "--only-binary=:all:", "--root-user-action=ignore", f"--target={site}", *asked],
            stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False)
        if done.returncode:
            raise Failure(f"pip install failed:\n{done.stdout[-3000:]}")
        for name in leave_out:
            found = [site / name, site / f"{name}.libs"]
            if not found[0].is_dir():
                raise Failure(f"there is no package {name} to leave out")
            for path in found:
                shutil.rmtree(path, ignore_errors=True)
        if (site / "bin").is_dir():
            _move_scripts(site / "bin", root / "usr/local/bin")
        compile_all([site], root)

    return imagecache.folder("wheels", key, make)


def _move_scripts(source: Path, target: Path) -> None:
    """pip wrote scripts for the Python that ran it; in the image it has the usual name."""
    target.mkdir(parents=True, exist_ok=True)
    for script in source.iterdir():
        text = script.read_bytes()
        if text.startswith(b"#!"):
            text = re.sub(rb"\A#![^\n]*", b"#!/usr/local/bin/python3", text, count=1)
        (target / script.name).write_bytes(text)
        (target / script.name).chmod(0o755)
    shutil.rmtree(source)


def compile_all(folders: list[Path], root: Path) -> None:
    """Byte code beforehand: the root is read-only in a pod. By hash and unchecked, because times in
    the image are not those of here."""
    done = subprocess.run(
        [PYTHON, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash",
         "-s", str(root), "-p", "/", *map(str, folders)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode and "SyntaxError" not in done.stdout:
        # Some packages carry templates that are not meant to compile; anything else is news.
        raise Failure(f"compiling Python files failed:\n{done.stdout[-2000:]}")
