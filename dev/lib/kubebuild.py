"""Kubernetes, built from Debian's source package into the cache.

The work folder is kept until the result is published, so an interrupted build goes on where it was:
every step either is done again in no time or is skipped because its result is there. The result is
published with one rename, so a folder with the final name is always complete.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import packages
from debsource import DebSource
from devlib import DEV, Failure, cache_dir, locked, say

PACKAGE = "kubernetes"
PROGRAMS = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"]
# Raise it when the way of building changes in a way that older results must not be used for.
RECIPE = 1
REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
MANIFEST = "build.json"
PROGRESS_EVERY = 15


def home() -> Path:
    return cache_dir() / "kubernetes"


def built() -> Path | None:
    """The newest complete build in the cache. Asks neither apt nor the network."""
    found = []
    for manifest in home().glob(f"*/{MANIFEST}"):
        if manifest.parent.name.startswith("work-"):
            continue
        try:
            recipe = json.loads(manifest.read_text()).get("recipe")
        except ValueError:
            continue
        if recipe == RECIPE and all((manifest.parent / p).exists() for p in [*PROGRAMS, "pause"]):
            found.append(manifest)
    return max(found, key=lambda m: m.stat().st_mtime).parent if found else None


def ensure() -> Path:
    """The folder with the programs, building them first if they are not there."""
    ready = built()
    if ready:
        return ready
    with locked(home() / ".lock", "another process is building Kubernetes; waiting for it") as lock:
        ready = built()
        return ready or _build(lock.fileno())


def _build(lock: int) -> Path:
    start = time.monotonic()
    packages.ensure("kubernetes-build")
    source = DebSource(home() / "work-apt")
    say("building Kubernetes from Debian's source package (about 10 min on 2 cores, once)")
    source.update()
    version = source.version(PACKAGE)
    work = home() / f"work-{version}"
    tree = work / "tree"
    if tree.exists():
        say(f"going on with the interrupted build in {work}")
    else:
        _step("downloading", start)
        shutil.rmtree(work / "unpacking", ignore_errors=True)
        dsc = source.download(PACKAGE, version, work / "source")
        _step("unpacking", start)
        # apt checked the files against its signed lists; dpkg-source checks their sums again.
        _run(["dpkg-source", "--no-check", "-x", str(dsc), str(work / "unpacking")], work, "unpack")
        (work / "unpacking").rename(tree)
    _replace_reflect2(tree)
    environment = _environment(work, tree, version)
    _compile(work, environment, lock, start)
    _step("checking and publishing", start)
    result = _publish(work, tree, version, environment)
    for leftover in home().glob("work-*"):
        _remove_tree(leftover)
    say(f"Kubernetes {version} is in {result} after {_clock(start)}")
    return result


def _replace_reflect2(tree: Path) -> None:
    """The vendored reflect2 is too old for Go 1.18 and later: an API server built with it crashes in
    mapiternext at the first custom resource. Debian packages the fixed one."""
    vendored = tree / "vendor/github.com/modern-go/reflect2"
    fixed = sorted(f for f in REFLECT2.iterdir() if f.suffix in (".go", ".s"))
    if not any(f.name == "go_above_118.go" for f in fixed):
        raise Failure(f"{REFLECT2} is not the reflect2 that knows Go 1.18: "
                      "golang-github-modern-go-reflect2-dev 1.0.2 or later is needed")
    for old in vendored.iterdir():
        if old.suffix in (".go", ".s"):
            old.unlink()
    for file in fixed:
        if not file.name.endswith("_test.go"):
            shutil.copyfile(file, vendored / file.name)


def _environment(work: Path, tree: Path, version: str) -> dict[str, str]:
    # As debian/rules does it: the tree has to be inside a GOPATH under its own import path.
    link = work / "go/src/k8s.io/kubernetes"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(tree)
    # There is no git history to ask, so the version is told, or the server would call itself
    # v0.0.0-master. "1.20.5+really1.20.2-1.1+deb12u1" is Debian's way to say 1.20.2.
    upstream = re.split(r"\+really", version)[-1].split("-")[0]
    major, minor = upstream.split(".")[:2]
    (work / "version").write_text(
        f"KUBE_GIT_COMMIT='{'0' * 40}'\nKUBE_GIT_TREE_STATE='archive'\n"
        f"KUBE_GIT_VERSION='v{upstream}'\nKUBE_GIT_MAJOR='{major}'\nKUBE_GIT_MINOR='{minor}'\n")
    (work / "tmp").mkdir(exist_ok=True)
    # A clean environment: a GOFLAGS, GOROOT or MAKEFLAGS of the caller must not change the result.
    return {
        "PATH": "/usr/lib/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(work), "TMPDIR": str(work / "tmp"), "LANG": "C.UTF-8",
        "GOPATH": str(work / "go"), "GOCACHE": str(work / "gocache"), "GO111MODULE": "off",
        "GOPROXY": "off", "CGO_ENABLED": "0",
        # -v names each package in the log, for the progress line. The tag means nothing, but
        # without one hack/lib/golang.sh takes the whole of GOFLAGS for a tag.
        "GOFLAGS": "-v -tags=gantry",
        "KUBE_GIT_VERSION_FILE": str(work / "version"),
        # The programs are the same on every machine whatever folder they were built in.
        "SOURCE_DATE_EPOCH": "1610000000",
    }


def _compile(work: Path, environment: dict[str, str], lock: int, start: float) -> None:
    """Run Kubernetes' own make (which generates code first), with a line of progress now and then."""
    log = work / "build.log"
    what = " ".join(f"cmd/{program}" for program in PROGRAMS)
    _step(f"compiling; the log is {log}", start)
    # make and all its children hold the build lock too: if this process is killed outright, they go
    # on, and the next caller waits for them instead of building in the same folder.
    with open(log, "w", encoding="utf-8") as output:
        make = subprocess.Popen(
            ["make", f"WHAT={what}"], cwd=work / "go/src/k8s.io/kubernetes",
            env={**environment, "PWD": str(work / "go/src/k8s.io/kubernetes")},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, pass_fds=[lock])
    try:
        shown = time.monotonic()
        while make.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - shown >= PROGRESS_EVERY:
                shown = time.monotonic()
                _step(_where(log), start)
    except BaseException:
        # make has children of its own (go, compile): they share its session and end with it, so
        # that the next run does not meet them in the same folder.
        os.killpg(make.pid, signal.SIGTERM)
        make.wait()
        raise
    if make.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise Failure(f"building Kubernetes failed (make: {make.returncode}); the log is {log}:\n{tail}")


def _where(log: Path) -> str:
    """What make is doing, from its log: go -v names each package as it begins to compile it."""
    lines = log.read_text(errors="replace").splitlines()
    compiled = [line for line in lines if re.fullmatch(r"[\w./+~-]+/[\w./+~-]+", line)]
    notes = [line for line in lines if line.startswith("+++")]
    note = re.sub(r"^\+\+\+ (\[[^]]*\] )?", "", notes[-1]) if notes else "starting make"
    if len(note) > 70:
        note = note[:67] + "..."
    return f"{note}; {len(compiled)} packages compiled" + (f", now {compiled[-1]}" if compiled else "")


def _publish(work: Path, tree: Path, version: str, environment: dict[str, str]) -> Path:
    result = work / "result"
    shutil.rmtree(result, ignore_errors=True)
    result.mkdir()
    for program in PROGRAMS:
        binary = tree / "_output/bin" / program
        if not binary.exists():
            raise Failure(f"make ended well but {binary} is not there")
        shutil.copy2(binary, result / program)
    _run(["gcc", "-static", "-Os", "-s", "-Wall", "-Werror", "-o", str(result / "pause"),
          str(DEV / "lib/pause.c")], work, "pause")
    _check_reflect2(tree, result)
    answer = _run([str(result / "kube-apiserver"), "--version"], work, "version").strip()
    manifest = {
        "package": PACKAGE, "version": version, "recipe": RECIPE, "reports": answer,
        "go": _run(["go", "version"], work, "go", environment).strip(),
        "sha256": {f.name: _sha256(f) for f in sorted(result.iterdir())},
    }
    (result / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    final = home() / version
    if final.exists():  # an older recipe, or a folder someone damaged
        final.rename(work / "replaced")
    os.sync()  # so that a power cut cannot leave the name with half of the content
    result.rename(final)
    return final


def _check_reflect2(tree: Path, result: Path) -> None:
    """Make sure the fixed reflect2 is what got compiled in, not only what lies in the tree: it has
    symbols the old one lacks, kept in the binary's line table even when it is stripped."""
    if not (tree / "vendor/github.com/modern-go/reflect2/go_above_118.go").exists():
        raise Failure("the vendored reflect2 was not replaced")
    for program in PROGRAMS:
        content = (result / program).read_bytes()
        if b"modern-go/reflect2" in content and b"reflect2/go_above_118.go" not in content:
            raise Failure(f"{program} was linked with the old reflect2, which crashes on Go 1.18 and "
                          f"later; delete {tree.parent} and build again")


def _run(command: list[str], work: Path, name: str, environment=None) -> str:
    done = subprocess.run(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        (work / f"{name}.log").write_text(done.stdout)
        raise Failure(f"{command[0]} failed ({done.returncode}):\n{done.stdout[-2000:]}")
    return done.stdout


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_tree(folder: Path) -> None:
    """Go's caches are read-only in places; rmtree as a plain user needs them writable."""
    def again(function, path, _):
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700)
        function(path)
    shutil.rmtree(folder, onerror=again)


def _step(text: str, start: float) -> None:
    say(f"  [{_clock(start)}] {text}")


def _clock(start: float) -> str:
    seconds = int(time.monotonic() - start)
    return f"{seconds // 60:2}:{seconds % 60:02}"


if __name__ == "__main__":
    sys.exit("run dev/kubernetes")
