"""Newer Debian packages than the machine's, downloaded without touching the machine's apt.

The machine's own sources name a mirror; a private copy of them asks that mirror for another suite
(sid, testing). apt gets private folders for its lists, cache and state, where nothing counts as
installed, and none of the machine's hooks run. Signatures are checked as always. No mirror is named here.
"""

import os
import re
import subprocess
from pathlib import Path

from devlib import Failure

APT = Path("/etc/apt")
# Suites that hold a whole release, not updates to one. The machine's code name is added to them.
RELEASES = {"oldoldstable", "oldstable", "stable", "testing", "unstable", "sid"}
CONFIGURATION = """\
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "{folder}/sources.list.d";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{folder}/state";
Dir::State::Lists "{folder}/lists";
Dir::State::Status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Log "{folder}/log";
// Root's private folders are closed to apt's download user.
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
Acquire::Retries "3";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-hidpi::DefaultEnabled "false";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
"""


class DebSuite:
    """One suite of the machine's mirror, with everything apt keeps for it under `folder`. Its apt
    holds the descriptor `lock` too, so that no other is let in while it is at work."""

    def __init__(self, folder: Path, suite: str, lock: int):
        self.folder, self.suite, self.lock = folder, suite, lock
        self.configuration = folder / "apt.conf"

    def update(self) -> str:
        """Write the private sources and get their lists; what apt said."""
        for part in ("sources.list.d", "state", "lists/partial", "cache/archives/partial", "log"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        self.configuration.write_text(CONFIGURATION.format(folder=self.folder))
        found = False
        for file in [APT / "sources.list", *sorted((APT / "sources.list.d").glob("*"))]:
            rewrite = {".sources": _rewrite_stanzas, ".list": _rewrite_lines}.get(file.suffix)
            if rewrite and file.is_file():
                text = rewrite(file.read_text(errors="replace"), self.suite)
                (self.folder / "sources.list.d" / file.name).write_text(text)
                found = found or bool(text)
        if not found:
            raise Failure(f"no Debian release is among this machine's package sources (see {APT})")
        # One of several mirrors may fail; what counts is whether the packages are found afterwards.
        return self._apt("apt-get", "-q", "update").stdout

    def resolve(self, packages: list[str]) -> dict[str, str]:
        """These packages with all they depend on, as if nothing was installed: name to version."""
        done = self._apt("apt-get", "-q", "--simulate", "install", *packages)
        if done.returncode:
            problems = [line for line in done.stdout.splitlines() if line.startswith("E: ")]
            raise Failure(f"apt finds no way to get {' and '.join(packages)} from Debian {self.suite}: "
                          f"{' '.join(problems) or 'no reason given'}")
        return dict(re.findall(r"(?m)^Inst (\S+) \((\S+) ", done.stdout))

    def download_command(self, packages: dict[str, str]) -> list[str]:
        """The command that puts the files into the current folder, checked against the signed
        lists. Files that are there and right stay."""
        return ["apt-get", "-c", str(self.configuration), "-q", "download",
                *(f"{name}={version}" for name, version in packages.items())]

    def _apt(self, tool: str, *arguments: str):
        return subprocess.run([tool, "-c", str(self.configuration), *arguments], text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=_environment(),
                              pass_fds=[self.lock])


def _environment() -> dict[str, str]:
    """The caller's (it may name a proxy), with messages in English."""
    return {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}


def _is_release(suite: str) -> bool:
    names = re.findall(r"(?m)^VERSION_CODENAME=\"?([\w-]+)", Path("/etc/os-release").read_text())
    return suite in RELEASES.union(names)


def _rewrite_stanzas(text: str, suite: str) -> str:
    """The stanzas of a deb822 file that hold a release, with this suite instead."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    kept = []
    for stanza in re.split(r"\n\s*\n", lines):
        fields = dict(re.findall(r"(?mi)^([a-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza))
        fields = {key.title(): value for key, value in fields.items()}
        if ("deb" in fields.get("Types", "").split() and "main" in fields.get("Components", "").split()
                and fields.get("Enabled", "yes").lower() not in ("no", "false")
                and any(_is_release(s) for s in fields.get("Suites", "").split())):
            fields |= {"Types": "deb", "Suites": suite, "Components": "main"}
            kept.append("".join(f"{key}: {value}\n" for key, value in fields.items()))
    return "\n".join(kept)


def _rewrite_lines(text: str, suite: str) -> str:
    """The lines of a sources.list file that hold a release, with this suite instead."""
    entry = re.compile(r"(?m)^\s*deb\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+([^#\n]+)")
    return "".join(f"deb {options}{address} {suite} main\n"
                   for options, address, old, components in entry.findall(text)
                   if _is_release(old) and "main" in components.split())
