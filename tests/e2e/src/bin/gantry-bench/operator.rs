//! The operator under measurement.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use gantry_e2e::measured;

/// The operator as a process of its own, so that its memory is its own.
pub struct Operator {
    child: Child,
    port: u16,
}

impl Operator {
    pub fn start(binary: &str, namespace: &str) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(binary)
            .args([
                "operator",
                "--watch-namespace",
                namespace,
                "--namespace",
                namespace,
            ])
            .args(["--admin-address", &format!("127.0.0.1:{port}")])
            .env("KUBECONFIG", std::env::var("GANTRY_TEST_SIM")?)
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, port })
    }

    pub fn resident_mib(&self) -> anyhow::Result<f64> {
        measured::resident_mib(self.child.id())
    }

    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        measured::cpu_seconds(self.child.id())
    }

    /// Sum of a counter over its labels.
    pub async fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let text = self.scrape().await?;
        Ok(text
            .lines()
            .filter(|line| line.starts_with(name))
            .filter_map(value)
            .sum())
    }

    /// The time that this share of all visits of a kind took at most.
    pub async fn visit_seconds(&self, kind: &str, share: f64) -> anyhow::Result<f64> {
        let kind = kind.to_lowercase();
        quantile(&self.scrape().await?, &kind, share).with_context(|| format!("no visit of a {kind}"))
    }

    /// All requests that it sent, reads and watches included.
    pub async fn requests(&self) -> anyhow::Result<f64> {
        Ok(self.metric("gantry_api_requests_total").await? as f64)
    }

    /// The server's own controllers go on for a while after the last child is there.
    pub async fn wait_until_quiet(&self) -> anyhow::Result<()> {
        let mut writes = self.writes().await?;
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let now = self.writes().await?;
            if now == writes {
                return Ok(());
            }
            writes = now;
        }
        anyhow::bail!("the operator wrote for ten minutes without an end")
    }

    pub async fn writes(&self) -> anyhow::Result<u64> {
        let text = self.scrape().await?;
        Ok(text.lines().filter(|line| is_write(line)).filter_map(value).sum())
    }

    /// What tells why it wrote.
    pub async fn writes_and_errors(&self) -> anyhow::Result<String> {
        let text = self.scrape().await?;
        let is_error = |line: &str| {
            line.starts_with("gantry_reconcile_errors_total") || line.starts_with("gantry_watch_errors_total")
        };
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| is_write(line) || is_error(line))
            .collect();
        Ok(lines.join("\n"))
    }

    async fn scrape(&self) -> anyhow::Result<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As Prometheus' `histogram_quantile` has it: evenly spread within a bucket. In the last one, its lower end.
fn quantile(metrics: &str, kind: &str, share: f64) -> Option<f64> {
    let start = "gantry_reconcile_duration_seconds_bucket{";
    let kind = format!("kind=\"{kind}\"");
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(start));
    let buckets = lines.filter(|labels| labels.contains(&kind)).filter_map(|line| {
        let upper = line.split_once("le=\"")?.1.split_once('"')?.0;
        Some((upper.parse().unwrap_or(f64::INFINITY), value(line)? as f64))
    });
    let buckets: Vec<(f64, f64)> = buckets.collect();
    let wanted = buckets.last().filter(|(_, all)| *all > 0.0)?.1 * share;
    let (mut lower, mut below) = (0.0, 0.0);
    for (upper, count) in buckets {
        if count >= wanted && upper.is_finite() {
            return Some(lower + (upper - lower) * (wanted - below) / (count - below).max(1.0));
        }
        if upper.is_finite() {
            (lower, below) = (upper, count);
        }
    }
    Some(lower)
}

fn is_write(line: &str) -> bool {
    line.starts_with("gantry_api_requests_total") && !line.contains("method=\"GET\"")
}

fn value(line: &str) -> Option<u64> {
    line.rsplit(' ').next()?.parse().ok()
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_read_from_buckets() {
        let bucket = |kind: &str, upper: &str, count: u32| {
            format!("gantry_reconcile_duration_seconds_bucket{{le=\"{upper}\",kind=\"{kind}\"}} {count}\n")
        };
        let text = [
            bucket("model", "0.5", 7),
            bucket("mcpserver", "0.5", 0),
            bucket("mcpserver", "1.0", 50),
            bucket("mcpserver", "2.0", 98),
            bucket("mcpserver", "+Inf", 100),
        ]
        .concat();
        assert_eq!(quantile(&text, "mcpserver", 0.25), Some(0.75));
        assert_eq!(quantile(&text, "mcpserver", 0.5), Some(1.0));
        assert_eq!(quantile(&text, "mcpserver", 0.74), Some(1.5));
        assert_eq!(quantile(&text, "mcpserver", 0.99), Some(2.0));
        assert_eq!(quantile(&text, "agent", 0.5), None);
    }
}
