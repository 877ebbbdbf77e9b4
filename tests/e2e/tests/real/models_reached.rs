//! Models from outside: through an Ingress that a real nginx serves, and with `gantry model`.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, eventually_for, fixtures::model_resource};
use k8s_openapi::api::core::v1::Secret;
use kube::core::ApiResource;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::{
    models::{PATIENCE, is_ready, until},
    start,
};

const HOST: &str = "phi.example.org";

/// `dev/ingress` for one class; its nginx ends with it.
struct Ingress {
    process: Child,
    http: u16,
    https: u16,
}

impl Ingress {
    fn start(class: &str) -> anyhow::Result<Self> {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/ingress");
        let (http, https) = (free_port()?, free_port()?);
        let process = Command::new(tool)
            .args([
                "--kubeconfig",
                &std::env::var("GANTRY_TEST_REAL")?,
                "--class",
                class,
            ])
            .args(["--http", &http.to_string(), "--https", &https.to_string()])
            .spawn()?;
        Ok(Self { process, http, https })
    }
}

impl Drop for Ingress {
    fn drop(&mut self) {
        // Politely, so that it clears up.
        if let Some(id) = self.process.id() {
            let _ = std::process::Command::new("kill").arg(id.to_string()).status();
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn run(program: &str, words: &[&str]) -> anyhow::Result<Output> {
    Ok(Command::new(program).args(words).output().await?)
}

/// What curl gets: the status, or the number of its own error.
async fn get(
    host: &str,
    port: u16,
    scheme: &str,
    path: &str,
    more: &[&str],
) -> anyhow::Result<(String, String)> {
    let resolve = format!("{host}:{port}:127.0.0.1");
    let url = format!("{scheme}://{host}:{port}{path}");
    let mut words = vec![
        "-sS",
        "--max-time",
        "20",
        "--resolve",
        &resolve,
        "-w",
        "\n%{http_code}",
        &url,
    ];
    words.extend(more);
    let output = run("curl", &words).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or(("", &text));
    if output.status.success() {
        Ok((status.to_owned(), body.to_owned()))
    } else {
        Ok((
            format!("curl {}", output.status.code().unwrap_or(-1)),
            String::new(),
        ))
    }
}

/// A certificate for the host, signed by itself, and the Secret with it.
async fn certificate(cluster: &Cluster) -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("gantry-{}", cluster.namespace));
    std::fs::create_dir_all(&folder)?;
    let (key, certificate) = (folder.join("tls.key"), folder.join("tls.crt"));
    let words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        &format!("/CN={HOST}"),
        "-addext",
        &format!("subjectAltName=DNS:{HOST}"),
        "-keyout",
        &key.to_string_lossy(),
        "-out",
        &certificate.to_string_lossy(),
    ];
    let made = run("openssl", &words).await?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert"}, "type": "kubernetes.io/tls",
        "stringData": {
            "tls.crt": std::fs::read_to_string(&certificate)?, "tls.key": std::fs::read_to_string(&key)?,
        },
    });
    cluster.apply(&ApiResource::erase::<Secret>(&()), &secret).await?;
    Ok(certificate)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_through_an_ingress_with_host_path_and_certificate() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let operator = start(&cluster).await?;
    let trusted = certificate(&cluster).await?;
    let trusted = trusted.to_string_lossy();
    let class = format!("nginx-{}", cluster.namespace);
    let model = |path: &str| {
        json!({
            "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": "phi"},
            "spec": {
                "image": "phi3", "store": {"size": "1Gi", "deletionPolicy": "Delete"},
                "ingress": {"className": class, "host": HOST, "path": path, "tls": {"secretName": "cert"}},
            },
        })
    };
    cluster.apply(&model_resource(), &model("/v1")).await?;
    let ingress = Ingress::start(&class)?;
    until(&cluster, "phi", is_ready).await?;
    let question = json!({"model": "phi3", "messages": [{"role": "user", "content": "hello"}]}).to_string();
    let answered = eventually_for(PATIENCE, async || {
        let more = ["--cacert", &trusted, "-d", &question];
        let (status, body) = get(HOST, ingress.https, "https", "/v1/chat/completions", &more).await?;
        ensure!(status == "200", "{status}: {body}");
        Ok(body)
    })
    .await?;
    let answer: Value = serde_json::from_str(&answered).context("no JSON")?;
    let said = answer["choices"][0]["message"]["content"].to_string();
    ensure!(said.contains("hello"), "{said}");

    let seen =
        async |host: &str, port: u16, scheme: &str, path: &str, more: &[&str]| -> anyhow::Result<String> {
            Ok(get(host, port, scheme, path, more).await?.0)
        };
    let safe = ["--cacert", trusted.as_ref()];
    ensure!(
        seen(HOST, ingress.http, "http", "/v1/models", &[]).await? == "200",
        "plain HTTP too"
    );
    ensure!(
        seen(HOST, ingress.https, "https", "/api/tags", &safe).await? == "404",
        "only what is below the path"
    );
    ensure!(
        seen("other.example.org", ingress.http, "http", "/v1/models", &[]).await? == "404",
        "only this host"
    );
    ensure!(
        seen(HOST, ingress.https, "https", "/v1/models", &[]).await? == "curl 60",
        "the certificate is the Secret's, which nobody else trusts"
    );
    let stream =
        json!({"model": "phi3", "stream": true, "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let (status, body) = get(
        HOST,
        ingress.https,
        "https",
        "/v1/chat/completions",
        &["--cacert", &trusted, "-N", "-d", &stream],
    )
    .await?;
    ensure!(
        status == "200" && body.contains("data: [DONE]"),
        "{status}: {body}"
    );

    cluster.apply(&model_resource(), &model("/")).await?;
    eventually_for(Duration::from_secs(60), async || {
        let status = seen(HOST, ingress.https, "https", "/api/tags", &safe).await?;
        ensure!(status == "200", "a new path arrives: {status}");
        Ok(())
    })
    .await?;
    operator.stop().await;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn deployed_exposed_and_undeployed_by_command() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let operator = start(&cluster).await?;
    let binary = std::env::var("GANTRY_BIN").context("GANTRY_BIN must name the gantry binary")?;
    let kubeconfig = std::env::var("GANTRY_TEST_REAL")?;
    let namespace = cluster.namespace.clone();
    let gantry = async |words: &str| -> anyhow::Result<(bool, String)> {
        let output = Command::new(&binary)
            .arg("model")
            .args(words.split(' '))
            .args(["--namespace", &namespace])
            .env("KUBECONFIG", &kubeconfig)
            .output()
            .await?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    };
    let (good, said) = gantry("deploy phi --image phi3 --limit memory=1Gi --timeout 240").await?;
    ensure!(good, "{said}");
    let inside = format!("http://ollama-model-phi.{namespace}.svc.cluster.local:11434");
    ensure!(said.contains("Ready") && said.contains(&inside), "{said}");
    let (good, said) = gantry("expose phi --timeout 120").await?;
    ensure!(good && said.contains("of every node"), "{said}");
    let service = cluster
        .api(&gantry_e2e::snapshot::child_kinds()[1])
        .get("ollama-model-phi")
        .await?;
    let port = service.data["spec"]["ports"][0]["nodePort"]
        .as_u64()
        .context("no port")?;
    let node = cluster.admin.cluster_url.host().context("no host")?.to_owned();
    let (status, body) = {
        let url = format!("http://{node}:{port}/v1/models");
        let output = run("curl", &["-sS", "--max-time", "20", "-w", "\n%{http_code}", &url]).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').context("no answer")?;
        (status.to_owned(), body.to_owned())
    };
    ensure!(status == "200" && body.contains("phi3"), "{status}: {body}");
    let (good, said) = gantry("deploy bad --image missing-model --timeout 240").await?;
    ensure!(
        !good && said.contains("file does not exist"),
        "Ollama's words: {said}"
    );
    for name in ["phi", "bad"] {
        let (good, said) = gantry(&format!("undeploy {name} --timeout 120")).await?;
        ensure!(good && said.contains("deleted"), "{said}");
    }
    let (good, said) = gantry("undeploy phi").await?;
    ensure!(!good && said.contains("there is no Model phi"), "{said}");
    operator.stop().await;
    cluster.done().await
}
