//! Helm itself, for definitions that depend on values. It runs in an empty folder, with no environment of ours, no
//! cluster, and no time to spare; templates cannot do more than compute text, and that is bounded too.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{io::AsyncReadExt, process::Command};

use super::{ChartError, documents};
use crate::infrastructure::yaml;

const PATIENCE: Duration = Duration::from_secs(30);
const MAX_OUTPUT: u64 = 32 << 20;

pub async fn template(helm: &Path, archive: Vec<u8>, values: &Value) -> Result<Vec<Value>, ChartError> {
    let failed = |why: &str| ChartError::Helm(why.to_owned());
    let folder = tempfile::Builder::new()
        .prefix("gantry-chart-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .tempdir()
        .map_err(|_| failed("no folder for it"))?;
    let chart = folder.path().join("chart.tgz");
    let file = folder.path().join("values.json");
    tokio::fs::write(&chart, archive)
        .await
        .map_err(|_| failed("no room for it"))?;
    tokio::fs::write(&file, values.to_string())
        .await
        .map_err(|_| failed("no room for it"))?;
    let mut child = Command::new(helm)
        .args(["template", "gantry"])
        .arg(&chart)
        .arg("--values")
        .arg(&file)
        .args([
            "--include-crds",
            "--skip-tests",
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
        .map_err(|_| failed("it cannot be started"))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("it cannot be read"));
    };
    let (mut output, mut said) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (stdout.take(MAX_OUTPUT + 1), stderr.take(64 << 10));
    let work = async {
        let (read, _) = tokio::join!(stdout.read_to_end(&mut output), stderr.read_to_end(&mut said));
        read.map_err(|_| failed("it cannot be read"))?;
        child.wait().await.map_err(|_| failed("it cannot be waited for"))
    };
    let status = tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(|_| failed("it took too long"))??;
    if output.len() as u64 > MAX_OUTPUT {
        return Err(failed("it rendered more than a chart should"));
    }
    if !status.success() {
        let said = String::from_utf8_lossy(&said);
        let last: String = said
            .lines()
            .last()
            .unwrap_or("it said nothing")
            .chars()
            .take(400)
            .collect();
        return Err(ChartError::Helm(last));
    }
    let text = String::from_utf8(output).map_err(|_| failed("what it rendered is not text"))?;
    tokio::task::spawn_blocking(move || documents::parse(&text, yaml::CHART))
        .await
        .map_err(|_| failed("what it rendered cannot be read"))?
        .map_err(|error| ChartError::Helm(format!("what it rendered {error}")))
}
