"""Parts of dev/lib that need no cluster: python3 -B -m unittest discover --start-directory dev/tests"""

import ipaddress
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import cgroups  # noqa: E402
import clusternet  # noqa: E402
import fleetrun  # noqa: E402
import localrun  # noqa: E402
from devlib import Failure  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="gantry-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)


class ControlGroups(Folder):
    def test_every_controller_of_the_machine_is_handed_down(self):
        (self.folder / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma\n")
        handed: dict[str, list[str]] = {}

        def write(path: Path, text: str) -> None:
            handed.setdefault(str(path.relative_to(self.folder)), []).append(text)
            if text == "+rdma":
                raise OSError("a kernel may refuse one")

        with mock.patch.object(cgroups, "ROOT", self.folder), mock.patch.object(Path, "write_text", write):
            cgroups.create("one")
        expected = ["+cpuset", "+cpu", "+io", "+memory", "+hugetlb", "+pids", "+rdma"]
        self.assertEqual(handed, {"cgroup.subtree_control": expected, "one/cgroup.subtree_control": expected})
        self.assertTrue((self.folder / "one").is_dir())


class Addresses(unittest.TestCase):
    def test_the_wide_route_of_a_vpn_takes_nothing(self):
        routes = [{"dst": "default"}, {"dst": "10.0.0.0/8"}, {"dst": "10.128.0.0/9"}, {"dst": "10.199.3.1"}]
        answer = subprocess.CompletedProcess([], 0, stdout=json.dumps(routes))
        with mock.patch.object(clusternet.subprocess, "run", return_value=answer):
            taken = clusternet._taken()
        self.assertEqual(taken, [ipaddress.ip_network("10.128.0.0/9"), ipaddress.ip_network("10.199.3.1/32")])


class Runs(Folder):
    def test_each_state_folder_has_a_database_of_its_own(self):
        def folder(state: str) -> Path:
            with mock.patch.dict(os.environ, {"GANTRY_STATE": state}):
                return fleetrun.folder()

        self.assertNotEqual(folder("/tmp/one"), folder("/tmp/two"))
        self.assertEqual(folder("/tmp/one"), folder("/tmp/one"))

    def test_a_kubeconfig_that_is_not_there_is_told(self):
        with mock.patch.dict(os.environ, {"GANTRY_STATE": str(self.folder)}):
            with self.assertRaisesRegex(Failure, "KUBECONFIG=/none is not a file"):
                localrun.keep("/none")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_note_that_cannot_be_read_is_none(self):
        with mock.patch.dict(os.environ, {"GANTRY_STATE": str(self.folder)}):
            (self.folder / "up").mkdir()
            (self.folder / "up/run.json").write_text("{\"local\": tr")
            self.assertIsNone(localrun.load())


class Bridges(Folder):
    def load(self, works: bool) -> dict[str, str]:
        file = self.folder / "bridge-nf-call-iptables"

        def modprobe(_command, check):
            self.assertFalse(check)
            if works:
                file.write_text("1")

        with mock.patch.object(clusternet, "BRIDGES", file), mock.patch.object(subprocess, "run", modprobe):
            clusternet.filter_bridges()
        return {path.name.removeprefix("bridge-nf-call-"): path.read_text() for path in self.folder.iterdir()}

    def test_the_module_is_loaded_and_leaves_the_machines_own_bridges_alone(self):
        self.assertEqual(self.load(works=True), {"iptables": "0", "ip6tables": "0", "arptables": "0"})

    def test_what_was_there_stays_as_it_was(self):
        (self.folder / "bridge-nf-call-iptables").write_text("1")
        self.assertEqual(self.load(works=False), {"iptables": "1"})

    def test_a_kernel_without_it_is_told(self):
        with self.assertRaisesRegex(Failure, "br_netfilter"):
            self.load(works=False)


if __name__ == "__main__":
    unittest.main()
