//! Helm itself, for definitions that depend on values. It runs in an empty folder, with no environment of ours and no
//! cluster. Templates can only compute text, and have little time, memory and room for that.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
};

use super::{ChartError, documents};
use crate::infrastructure::yaml;

const PATIENCE: Duration = Duration::from_secs(30);
const MAX_OUTPUT: u64 = 32 << 20;
/// Addresses that Go takes before it begins, of which it uses few: 1.25 GiB, and a little more where there are many cores.
#[cfg(target_os = "linux")]
const RESERVED: u64 = 1408 << 20;
/// How often, and with what pauses, it is tried to say which process goes first when memory ends.
#[cfg(target_os = "linux")]
const TRIES: usize = 100;
#[cfg(target_os = "linux")]
const PAUSE: Duration = Duration::from_millis(10);
/// More than any good chart takes.
const MOST: u64 = 1 << 30;
/// As much as a large one takes; where there is less, only one is rendered at a time.
const USUAL: u64 = 512 << 20;
const AT_ONCE: usize = 4;

/// How much memory one Helm may take, and how many there may be at once. A template may ask for a text of any length, and
/// where the memory of a container ends, the kernel may end all that is in it, the server too. So all of them together have
/// half of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub bytes: u64,
    pub at_once: usize,
}

impl Share {
    pub fn of(limit: Option<u64>) -> Self {
        let Some(limit) = limit else {
            return Self {
                bytes: MOST,
                at_once: AT_ONCE,
            };
        };
        let half = limit / 2;
        let at_once = usize::try_from(half / USUAL).unwrap_or(AT_ONCE).clamp(1, AT_ONCE);
        Self {
            bytes: (half / at_once as u64).min(MOST),
            at_once,
        }
    }
}

pub async fn template(
    helm: &Path,
    archive: Vec<u8>,
    values: &Value,
    most: u64,
) -> Result<Vec<Value>, ChartError> {
    let failed = |why: &str| ChartError::Helm(why.to_owned());
    let folder = tempfile::Builder::new()
        .prefix("gantry-chart-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .tempdir()
        .map_err(|_| ChartError::NoHelm("no folder for it"))?;
    let chart = folder.path().join("chart.tgz");
    let file = folder.path().join("values.json");
    tokio::fs::write(&chart, archive)
        .await
        .map_err(|_| ChartError::NoHelm("no room for the chart"))?;
    tokio::fs::write(&file, values.to_string())
        .await
        .map_err(|_| ChartError::NoHelm("no room for the chart"))?;
    let mut child = Command::new(helm)
        .args(["template", "gantry"])
        .arg(&chart)
        .arg("--values")
        .arg(&file)
        .args([
            "--include-crds",
            "--skip-tests",
            // A schema of values may lead to any address and any file (Helm follows it), and values are not the point.
            "--skip-schema-validation",
            "--namespace",
            "gantry-discovery",
        ])
        .env_clear()
        .env("HOME", folder.path())
        .env("PATH", "/usr/bin:/bin")
        // It tidies up before it is refused more.
        .env("GOMEMLIMIT", (most / 4 * 3).to_string())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0)
        .spawn()
        .map_err(|_| ChartError::NoHelm("it cannot be started"))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(ChartError::NoHelm("it cannot be read"));
    };
    confine(&child, most)
        .await
        .map_err(|_| ChartError::NoHelm("it cannot be kept within limits"))?;
    let (mut output, mut said) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (stdout.take(MAX_OUTPUT + 1), stderr.take(1 << 20));
    // Its output is let go of as soon as it is too long, and with that Helm ends.
    let rendered = async move { stdout.read_to_end(&mut output).await.map(|_| output) };
    let work = async {
        let (read, _) = tokio::join!(rendered, stderr.read_to_end(&mut said));
        let output = read.map_err(|_| failed("it cannot be read"))?;
        if output.len() as u64 > MAX_OUTPUT {
            return Err(failed("it rendered more than a chart should"));
        }
        let status = child.wait().await;
        Ok((output, status.map_err(|_| failed("it cannot be waited for"))?))
    };
    let (output, status) = tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(|_| failed("it took too long"))??;
    if !status.success() {
        return Err(ChartError::Helm(cause(&String::from_utf8_lossy(&said))));
    }
    let text = String::from_utf8(output).map_err(|_| failed("what it rendered is not text"))?;
    tokio::task::spawn_blocking(move || documents::parse(&text, yaml::CHART))
        .await
        .map_err(|_| failed("what it rendered cannot be read"))?
        .map_err(|error| ChartError::Helm(format!("what it rendered {error}")))
}

/// Before it has read its first file. Elsewhere than on Linux only its time is limited.
#[cfg_attr(
    not(target_os = "linux"),
    allow(unused_variables, reason = "there is no such limit")
)]
async fn confine(child: &Child, most: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        for (resource, most) in [
            // Against one text of a huge length, whose addresses Go reserves first.
            (Resource::As, RESERVED + most),
            // Against many small ones. A large piece of what was reserved can still go past it, in one step.
            (Resource::Data, most),
            (Resource::Fsize, MAX_OUTPUT),
            (Resource::Core, 0),
        ] {
            let limit = Rlimit {
                current: Some(most),
                maximum: Some(most),
            };
            prlimit(Pid::from_raw(pid), resource, limit)?;
        }
        // Where memory ends before that, it is not the server that goes.
        let score = format!("/proc/{pid}/oom_score_adj");
        for _ in 0..TRIES {
            match tokio::fs::write(&score, "1000").await {
                // For a moment the new program is as closed to others as the server, which leaves no core dumps.
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

/// Why Helm failed, of all that it said. When memory ends, Go tells what it was doing everywhere.
fn cause(said: &str) -> String {
    let is_memory = |line: &str| {
        ["out of memory", "cannot allocate memory", "cannot map pages"]
            .iter()
            .any(|words| line.contains(words))
    };
    if said
        .lines()
        .any(|line| (line.starts_with("fatal error: ") || line.starts_with("runtime: ")) && is_memory(line))
    {
        return "it takes more memory than a chart should".to_owned();
    }
    let error = said.lines().find_map(|line| line.strip_prefix("Error: "));
    let last = || said.lines().rfind(|line| !line.trim().is_empty());
    let cause = error.or_else(last).unwrap_or("it said nothing");
    // It begins with the place, and ends with what is wrong there.
    let letters = cause.chars().count();
    if letters <= 400 {
        return cause.to_owned();
    }
    let (begin, end) = (cause.chars().take(150), cause.chars().skip(letters - 240));
    begin.chain(" … ".chars()).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(None, MOST, 4)]
    #[case::a_small_pod(Some(512 << 20), 256 << 20, 1)]
    #[case::as_the_chart_gives(Some(1 << 30), 512 << 20, 1)]
    #[case::two(Some(2 << 30), 512 << 20, 2)]
    #[case::large(Some(64 << 30), MOST, 4)]
    fn shares(#[case] limit: Option<u64>, #[case] bytes: u64, #[case] at_once: usize) {
        let share = Share::of(limit);
        assert_eq!((share.bytes, share.at_once), (bytes, at_once));
        if let Some(limit) = limit {
            assert!(share.bytes * share.at_once as u64 <= limit / 2);
        }
    }

    #[test]
    fn out_of_memory_is_told_in_one_way() {
        for said in [
            "fatal error: runtime: out of memory\n\ngoroutine 1",
            "runtime: cannot allocate memory\n",
            "fatal error: runtime: cannot map pages in arena address space",
        ] {
            assert!(cause(said).contains("more memory than a chart should"), "{said}");
        }
        assert_eq!(cause("Error: no memory for it\n"), "no memory for it");
    }

    /// Something in Helm's place that takes as much as a chart that means harm.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn what_takes_more_than_its_share_ends_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let helm = folder.path().join("helm");
        // A copy needs its block in memory.
        let script = "#!/bin/sh\nexec dd if=/dev/zero of=/dev/null bs=600M count=1\n";
        std::fs::write(&helm, script).unwrap();
        std::fs::set_permissions(&helm, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = async |most: u64| template(&helm, Vec::new(), &Value::Null, most).await;
        let refused = run(256 << 20).await.unwrap_err().to_string();
        assert!(refused.contains("memory"), "{refused}");
        run(1 << 30).await.unwrap();
    }
}
