//! The operator under measurement.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

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
        let writes = text
            .lines()
            .filter(|line| line.starts_with("gantry_api_requests_total") && !line.contains("method=\"GET\""));
        Ok(writes.filter_map(value).sum())
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

fn value(line: &str) -> Option<u64> {
    line.rsplit(' ').next()?.parse().ok()
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.stop();
    }
}
