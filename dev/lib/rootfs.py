"""The files of small images, gathered from the Debian packages of this machine.

No registry is asked for anything: a program brings the libraries it links, a base image is the files
of installed packages. What only this machine has (its own certificates, users, package sources) stays
out of the images.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from devlib import Failure

MERGED = ["bin", "lib", "lib32", "lib64", "libx32", "sbin"]
CERTIFICATES = "/usr/share/ca-certificates/mozilla"
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
NOBODY = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
ROOT = "root:x:0:0:root:/root:/bin/sh\n"
# Nobody reads these in an image.
UNREAD = re.compile(r"/usr/share/(doc|man|info|lintian|locale|bug|applications|pixmaps|menu)/")


def skeleton(root: Path, user: int | None = None) -> None:
    """What any program may expect: merged folders, a /tmp for all, users, and how names resolve."""
    for name in MERGED:
        if Path("/", name).is_symlink():
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
    for name in ("etc", "root", "run", "usr/local/bin", "var/tmp", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    (root / "root").chmod(0o700)
    own = f"nonroot:x:{user}:{user}:nonroot:/tmp:/sbin/nologin\n" if user else ""
    (root / "etc/passwd").write_text(ROOT + NOBODY + own)
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n" + (f"nonroot:x:{user}:\n" if own else ""))
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def add_file(root: Path, source: Path, target: str) -> Path:
    """Copy a file (what it leads to, if it is a link) to this path of the image."""
    path = root / target.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    path.chmod(source.stat().st_mode & 0o755 | 0o444)
    return path


def add_program(root: Path, program: Path, target: str) -> None:
    """A program and all that it links."""
    add_file(root, program, target).chmod(0o755)
    add_libraries(root, [program])


def add_libraries(root: Path, programs: list[Path]) -> None:
    """The shared libraries of these programs, under the names that they ask for."""
    for library in libraries(programs):
        if not (root / str(library).lstrip("/")).exists():
            add_file(root, library, str(library))


def libraries(programs: list[Path]) -> list[Path]:
    """What the loader would load for these programs; nothing for a static one."""
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"}
    done = subprocess.run(["ldd", *map(str, programs)], env=environment, text=True,
                          capture_output=True, check=False)
    found = set()
    for line in done.stdout.splitlines():
        if "=> not found" in line:
            raise Failure(f"library {line.split()[0]} is not on this machine, but one of "
                          f"{', '.join(p.name for p in programs[:5])} links it")
        match = re.match(r"\t(?:\S+ => )?(/\S+) \(0x", line)
        if match:
            found.add(Path(match[1]))
    if done.returncode and not re.search("not a dynamic executable|statically linked",
                                         done.stdout + done.stderr):
        raise Failure(f"ldd {programs[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return sorted(found)


def add_certificates(root: Path) -> None:
    """Debian's certificate authorities, without those that were added to this machine."""
    files = sorted(Path(CERTIFICATES).glob("*.crt"))
    if not files:
        raise Failure(f"there are no certificates in {CERTIFICATES}: apt-get install ca-certificates")
    path = root / BUNDLE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(file.read_text().rstrip("\n") + "\n" for file in files))
    # Where OpenSSL looks when nobody tells it.
    link = root / "usr/lib/ssl/cert.pem"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(f"/{BUNDLE}")


def add_busybox(root: Path) -> None:
    """busybox, under the name of every tool it has that is not there yet."""
    busybox = Path("/usr/bin/busybox") if Path("/usr/bin/busybox").exists() else Path("/bin/busybox")
    add_file(root, busybox, "/usr/bin/busybox").chmod(0o755)
    answer = subprocess.run([str(busybox), "--list"], text=True, capture_output=True, check=True)
    for name in answer.stdout.split():
        path = root / "usr/bin" / name
        if not (path.exists() or path.is_symlink()):
            path.symlink_to("busybox")


def package_files(names: list[str]) -> list[str]:
    """The paths of these installed packages, folders left out."""
    done = subprocess.run(["dpkg-query", "-L", *names], text=True, capture_output=True, check=False)
    if done.returncode:
        raise Failure(f"dpkg-query -L: {done.stderr.strip()}")
    return sorted({line for line in done.stdout.splitlines()
                   if line.startswith("/") and (os.path.islink(line) or os.path.isfile(line))})


def package_versions(names: list[str]) -> str:
    """The installed versions, for the keys of what is made from them."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Package}=${Version}\n", *names], text=True,
                          capture_output=True, check=False)
    return "".join(sorted(done.stdout.splitlines(keepends=True)))


def add_packages(root: Path, names: list[str], leave_out: str = "(?!)") -> None:
    """The files of installed packages, as they came: pages of the manual and such are left out."""
    skip = re.compile(leave_out)
    for path in package_files(names):
        if UNREAD.match(path) or skip.search(path):
            continue
        target = root / path.lstrip("/")
        # A package says /bin/x, the machine and the image have /usr/bin/x.
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink() or target.exists():
            continue
        if os.path.islink(path):
            target.symlink_to(os.readlink(path))
        else:
            shutil.copyfile(path, target)
            target.chmod(os.stat(path).st_mode & 0o7777)


def with_dependencies(names: list[str]) -> list[str]:
    """These packages and all installed ones that they depend on, and so on."""
    answer = subprocess.run(
        ["dpkg-query", "-W", "-f",
         "${db:Status-Status}\t${Package}\t${Provides}\t${Pre-Depends},${Depends}\n"],
        text=True, capture_output=True, check=True)
    provides: dict[str, str] = {}
    depends: dict[str, list[list[str]]] = {}
    for line in answer.stdout.splitlines():
        status, package, provided, needs = line.split("\t")
        if status != "installed":
            continue
        depends[package] = [[_name(word) for word in either.split("|")]
                            for either in needs.split(",") if either.strip()]
        for word in filter(None, provided.split(",")):
            provides.setdefault(_name(word), package)
    todo, done = list(names), []
    while todo:
        name = todo.pop()
        name = name if name in depends else provides.get(name, "")
        if name and name not in done:
            done.append(name)
            for either in depends[name]:
                todo += [n for n in either if n in depends or n in provides][:1]
    return sorted(done)


def essential() -> list[str]:
    """The packages that any Debian has."""
    answer = subprocess.run(["dpkg-query", "-W", "-f", "${Essential} ${Package}\n"], text=True,
                            capture_output=True, check=True)
    return [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("yes ")]


def _name(word: str) -> str:
    return re.split(r"[\s:(]", word.strip())[0]
