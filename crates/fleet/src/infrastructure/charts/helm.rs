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
/// Of addresses, of which Go takes up to 1.5 GiB before it begins. A template may ask for a text of any length.
#[cfg(target_os = "linux")]
const MAX_MEMORY: u64 = 3 << 30;

pub async fn template(helm: &Path, archive: Vec<u8>, values: &Value) -> Result<Vec<Value>, ChartError> {
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
    confine(&child).map_err(|_| ChartError::NoHelm("it cannot be kept within limits"))?;
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
fn confine(child: &Child) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        for (resource, most) in [
            (Resource::As, MAX_MEMORY),
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
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000")?;
    }
    Ok(())
}

/// Why Helm failed, of all that it said. When memory ends, Go tells what it was doing everywhere.
fn cause(said: &str) -> String {
    if said
        .lines()
        .any(|line| line.starts_with("fatal error: ") && line.contains("out of memory"))
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
