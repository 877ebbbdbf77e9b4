//! How much memory this process may have: what the cgroups that it is in allow, of version 1 or 2.

use std::{fs, path::Path};

/// The least that any of our cgroups allows; nothing where none has a limit, or elsewhere than on Linux.
pub fn limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_of(Path::new("/sys/fs/cgroup"), &own)
}

/// `own` is what `/proc/self/cgroup` says. In a container the path in it may be that of the host, of which only the end is
/// there, as the root: so the root always counts too.
fn limit_of(root: &Path, own: &str) -> Option<u64> {
    let mut limits = Vec::new();
    for line in own.lines() {
        // NUMBER:CONTROLLERS:PATH; version 2 has no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut folder = root.join(path.trim_start_matches('/'));
        loop {
            limits.extend(read(&folder.join(file)));
            if folder == root || !folder.pop() {
                break;
            }
        }
    }
    limits.into_iter().min()
}

/// Version 2 says `max` where there is none, version 1 a number that no machine has.
fn read(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 50)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_the_pod("0::/pod/c\n", &[("pod/memory.max", "1000"), ("pod/c/memory.max", "max")], Some(1000))]
    #[case::of_the_container("0::/pod/c\n", &[("pod/memory.max", "1000"), ("pod/c/memory.max", "900")], Some(900))]
    #[case::as_the_container_sees_it("0::/\n", &[("memory.max", "1073741824\n")], Some(1 << 30))]
    #[case::none("0::/\n", &[("memory.max", "max\n")], None)]
    #[case::nowhere("", &[], None)]
    #[case::version_1("5:cpu,cpuacct:/x\n4:memory:/docker/x\n", &[("memory/memory.limit_in_bytes", "536870912\n")], Some(512 << 20))]
    #[case::version_1_without("4:memory:/x\n", &[("memory/x/memory.limit_in_bytes", "9223372036854771712\n")], None)]
    fn limits(#[case] own: &str, #[case] files: &[(&str, &str)], #[case] expected: Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(limit_of(root.path(), own), expected);
    }
}
