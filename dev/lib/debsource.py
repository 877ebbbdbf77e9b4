"""Fetch a Debian source package with the machine's own package sources.

apt-get source needs a deb-src entry, which machines seldom have. So a private copy of the machine's
sources is made with "deb" turned into "deb-src", and apt keeps the lists for it in a private folder
as well: nothing of the machine's own apt changes, and no mirror is named here.
"""

import re
import subprocess
from pathlib import Path

from devlib import Failure

APT = Path("/etc/apt")


class DebSource:
    """apt with private deb-src lists under `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.parts = folder / "sources.list.d"
        self.options = [
            "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={self.parts}",
            "-o", f"Dir::State::Lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}",
            # Root's private folders are closed to apt's download user.
            "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3",
        ]

    def update(self) -> None:
        """Write the private sources and get their lists."""
        for part in (self.parts, self.folder / "lists/partial", self.folder / "cache/archives/partial"):
            part.mkdir(parents=True, exist_ok=True)
        found = 0
        machine = [APT / "sources.list", *sorted((APT / "sources.list.d").glob("*"))]
        for file in machine:
            if not file.is_file():
                continue
            text = file.read_text(errors="replace")
            if file.suffix == ".sources":
                text = re.sub(r"(?mi)^Types:.*$", "Types: deb-src", text)
                found += 1
            elif file.suffix == ".list":
                text, count = re.subn(r"(?m)^\s*deb\s", "deb-src ", text)
                found += count
            else:
                continue
            (self.parts / file.name).write_text(text)
        if not found:
            raise Failure("apt has no package sources on this machine (see /etc/apt)")
        # A third-party source without source packages makes this fail; what counts is whether the
        # package is found afterwards, so its words are kept for that message.
        done = self._apt("apt-get", "-q", "update")
        self.words = done.stdout

    def version(self, package: str) -> str:
        """The newest version of the source package that the machine's sources offer."""
        answer = self._apt("apt-cache", "showsrc", "--only-source", package).stdout
        versions = re.findall(r"(?m)^Version: (\S+)$", answer)
        if not versions:
            raise Failure(f"no Debian source package '{package}' in this machine's package sources:\n"
                          f"{getattr(self, 'words', '')[-2000:]}")
        newest = versions[0]
        for other in versions[1:]:
            if subprocess.run(["dpkg", "--compare-versions", other, "gt", newest],
                              check=False).returncode == 0:
                newest = other
        return newest

    def download(self, package: str, version: str, target: Path) -> Path:
        """Download (checked by apt against its signed lists); gives the .dsc file."""
        target.mkdir(parents=True, exist_ok=True)
        done = self._apt("apt-get", "-q", "source", "--download-only", f"{package}={version}",
                         cwd=target)
        files = list(target.glob("*.dsc"))
        if done.returncode or not files:
            raise Failure(f"apt-get source {package}={version} failed:\n{done.stdout[-2000:]}")
        return files[0]

    def _apt(self, tool: str, *arguments: str, cwd: Path | None = None):
        return subprocess.run([tool, *self.options, *arguments], cwd=cwd, text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
