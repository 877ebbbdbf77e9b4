//! Real Helm 3 and 4, and charts in Debian's registry.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use gantry_e2e::{cluster::eventually, fleet::Fleet};
use serde_json::json;

pub const DEFINITION: &str = r#"{{- if .Values.crds.enabled }}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gizmos.{{ .Values.group }}
  labels: {{- include "gizmo.labels" . | nindent 4 }}
spec:
  group: {{ .Values.group }}
  scope: Namespaced
  names: {plural: gizmos, kind: Gizmo}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              {{- range .Values.fields }}
              {{ . }}: {type: string}
              {{- end }}
{{- end }}
"#;

pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").context("no PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .with_context(|| format!("{name} is not installed; dev/tools installs it"))
}

pub fn run(program: &Path, arguments: &[&str], folder: &Path) -> anyhow::Result<()> {
    let done = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("HOME", folder)
        .output()?;
    anyhow::ensure!(
        done.status.success(),
        "{arguments:?}: {}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}

/// A chart whose definition only Helm can tell.
pub fn chart(folder: &Path, version: &str, fields: &[&str]) -> anyhow::Result<()> {
    let chart = folder.join("gizmo");
    std::fs::create_dir_all(chart.join("templates"))?;
    std::fs::write(
        chart.join("Chart.yaml"),
        format!("apiVersion: v2\nname: gizmo\nversion: {version}\n"),
    )?;
    let values = json!({"group": "e2e.gantry.dev", "crds": {"enabled": false}, "fields": fields});
    std::fs::write(chart.join("values.yaml"), values.to_string())?;
    std::fs::write(chart.join("templates/crd.yaml"), DEFINITION)?;
    std::fs::write(
        chart.join("templates/_helpers.tpl"),
        "{{ define \"gizmo.labels\" }}\napp: {{ .Chart.Name }}\n{{ end }}",
    )?;
    Ok(())
}

/// Debian's registry on a free port; ended when dropped.
pub struct Registry {
    child: Child,
    pub address: String,
}

impl Registry {
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        Self::with(folder, "")
    }

    /// Only for one user, who knows the words.
    fn locked(folder: &Path) -> anyhow::Result<Self> {
        // Of "open sesame", by bcrypt, which is all that it takes.
        let line = "ali:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";
        std::fs::write(folder.join("users"), line)?;
        Self::with(folder, "auth: {htpasswd: {realm: charts, path: users}}\n")
    }

    fn with(folder: &Path, more: &str) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\nhttp: {{addr: '{address}', secret: x}}\n{more}",
            folder.join("registry").display()
        );
        std::fs::write(folder.join("registry.yml"), config)?;
        let child = Command::new("docker-registry")
            .args(["serve", "registry.yml"])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("docker-registry is not installed; dev/setup image installs it")?;
        Ok(Self { child, address })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn discovered_with(helm: &str) -> anyhow::Result<()> {
    let (helm, folder) = (program(helm)?, tempfile::tempdir()?);
    let registry = Registry::start(folder.path())?;
    eventually(async || Ok(std::net::TcpStream::connect(&registry.address).map(drop)?)).await?;
    let repository = format!("oci://{}/charts", registry.address);
    for (version, fields) in [("1.0.0", &["a", "b"][..]), ("1.1.0+build.5", &["a"])] {
        chart(folder.path(), version, fields)?;
        run(&helm, &["package", "gizmo"], folder.path())?;
        let archive = format!("gizmo-{version}.tgz");
        run(
            &helm,
            &["push", &archive, &repository, "--plain-http"],
            folder.path(),
        )?;
    }
    let fleet = Fleet::start(&["--helm", helm.to_str().context("path")?]).await?;
    let missing =
        json!({"name": "x", "namespace": "x", "chartRepository": repository, "chartName": "nothing"});
    let refused = fleet
        .ask("POST", "/operators", Some(&missing))
        .await?
        .expect(400)?;
    assert_eq!(refused["error"]["code"], "CHART_NOT_FOUND");
    // The chart brings its definition only when it is told to.
    let body = json!({
        "name": "gizmo", "namespace": "gizmo", "chartRepository": repository, "chartName": "gizmo",
        "defaultValues": {"crds": {"enabled": true}},
    });
    let operator = fleet.post("/operators", &body).await?;
    assert_eq!(operator["latestVersion"], "1.1.0+build.5");
    let crd = eventually(async || {
        let versions = fleet.get("/operators/gizmo/versions").await?;
        for version in versions["versions"].as_array().context("versions")? {
            anyhow::ensure!(version["crdDiscovery"] == "Discovered", "{version}");
        }
        fleet.get("/crds/gizmos.e2e.gantry.dev").await
    })
    .await?;
    let history = crd["schemaHistory"].as_array().context("history")?;
    assert_eq!(history.len(), 2, "{crd}");
    assert_eq!(history[0]["approvalStatus"], "Pending", "a field is gone");
    assert_eq!(history[0]["changes"][0]["changeType"], "Removed");
    fleet.stop().await
}

#[tokio::test]
async fn definitions_in_templates_are_found_with_helm_3() -> anyhow::Result<()> {
    discovered_with("helm3").await
}

#[tokio::test]
async fn definitions_in_templates_are_found_with_helm_4() -> anyhow::Result<()> {
    discovered_with("helm4").await
}

#[tokio::test]
async fn a_registry_that_is_locked_is_asked_with_credentials() -> anyhow::Result<()> {
    let (helm, folder) = (program("helm3")?, tempfile::tempdir()?);
    let registry = Registry::locked(folder.path())?;
    eventually(async || Ok(std::net::TcpStream::connect(&registry.address).map(drop)?)).await?;
    let repository = format!("oci://{}/charts", registry.address);
    chart(folder.path(), "1.0.0", &["a"])?;
    run(&helm, &["package", "gizmo"], folder.path())?;
    let login = [
        "registry",
        "login",
        &registry.address,
        "-u",
        "ali",
        "-p",
        "open sesame",
        "--insecure",
    ];
    run(&helm, &login, folder.path())?;
    let push = ["push", "gizmo-1.0.0.tgz", &repository, "--plain-http"];
    run(&helm, &push, folder.path())?;
    let fleet = Fleet::start(&[]).await?;
    let mut body =
        json!({"name": "gizmo", "namespace": "gizmo", "chartRepository": repository, "chartName": "gizmo"});
    let refused = fleet.ask("POST", "/operators", Some(&body)).await?.expect(400)?;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("credentials"), "{refused}");
    body["chartRepositoryCredentials"] = json!({"username": "ali", "password": "open sesame"});
    assert_eq!(fleet.post("/operators", &body).await?["latestVersion"], "1.0.0");
    fleet.stop().await
}

/// Files of a folder over HTTP, as any web server gives them out; ended when dropped.
struct Web {
    child: Child,
    address: String,
}

impl Web {
    fn start(folder: &Path) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("python3")
            .args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let address = format!("127.0.0.1:{port}");
        Ok(Self { child, address })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was made of one version: whether it was found, and what is said about it.
pub struct Version<'a> {
    pub number: &'a str,
    /// Before the definition of the good chart.
    pub template: &'a str,
    pub found: &'a str,
    pub said: &'a str,
}

pub const VERSIONS: &[Version] = &[
    Version {
        number: "1.0.0",
        template: "",
        found: "Discovered",
        said: "",
    },
    // Eight billion letters at once.
    Version {
        number: "1.0.1",
        template: "{{ $x := repeat 8000000000 \"x\" }}",
        found: "Failed",
        said: "memory",
    },
    // Little enough for the addresses that Go reserves and uses, and far more than a chart should take.
    Version {
        number: "1.0.11",
        template: "{{ $x := repeat 1600000000 \"x\" }}",
        found: "Failed",
        said: "memory",
    },
    Version {
        number: "1.0.2",
        template: "{{ range until 90000 }}{{ range until 90000 }}{{ end }}{{ end }}",
        found: "Failed",
        said: "too long",
    },
    Version {
        number: "1.0.3",
        template: "{{ range until 700000 }}# {{ repeat 60 \"x\" }}\n{{ end }}",
        found: "Failed",
        said: "than a chart should",
    },
    Version {
        number: "1.0.4",
        template: "{{ define \"again\" }}{{ include \"again\" . }}{{ end }}{{ include \"again\" . }}",
        found: "Failed",
        said: "nested reference",
    },
    // What is not in the chart is not there for it.
    Version {
        number: "1.0.5",
        template: "# {{ .Files.Get \"/etc/passwd\" }}{{ .Files.Get \"../values.json\" }}{{ lookup \"v1\" \"Secret\" \"\" \"\" }}\n\
                   {{ if getHostByName \"localhost\" }}{{ fail \"it may ask for names\" }}{{ end }}\n",
        found: "Discovered",
        said: "",
    },
    Version {
        number: "1.0.6",
        template: "{{ env \"HOME\" }}",
        found: "Failed",
        said: "function \"env\" not defined",
    },
    Version {
        number: "1.0.7",
        template: "{{ if }}",
        found: "Failed",
        said: "missing value for if",
    },
    // These three are spoilt after they were packed.
    Version {
        number: "1.0.8",
        template: "",
        found: "Failed",
        said: "digest differs",
    },
    Version {
        number: "1.0.9",
        template: "",
        found: "Failed",
        said: "404",
    },
    Version {
        number: "1.0.10",
        template: "",
        found: "Failed",
        said: "links",
    },
];

/// An index as Helm writes it, with versions that are good, broken and meant to do harm.
async fn survived_with(helm: &str) -> anyhow::Result<()> {
    let (helm, folder) = (program(helm)?, tempfile::tempdir()?);
    let (work, repository) = (folder.path().join("work"), folder.path().join("repository"));
    std::fs::create_dir_all(&repository)?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    for version in VERSIONS {
        chart(&work, version.number, &["a"])?;
        let chart = work.join("gizmo");
        std::fs::write(
            chart.join("templates/crd.yaml"),
            format!("{}{DEFINITION}", version.template),
        )?;
        // A schema that leads elsewhere, and to a file without an end.
        let elsewhere = format!("http://{}/schema.json", listener.local_addr()?);
        let schema =
            json!({"properties": {"group": {"$ref": elsewhere}, "fields": {"$ref": "file:///dev/zero"}}});
        std::fs::write(chart.join("values.schema.json"), schema.to_string())?;
        let archive = repository.join(format!("gizmo-{}.tgz", version.number));
        if version.number == "1.0.10" {
            std::os::unix::fs::symlink("/etc/passwd", chart.join("templates/people.yaml"))?;
        }
        // Not by Helm, which would look into the schema.
        run(
            Path::new("tar"),
            &["czf", archive.to_str().context("path")?, "gizmo"],
            &work,
        )?;
    }
    run(&helm, &["repo", "index", "."], &repository)?;
    let spoilt = repository.join("gizmo-1.0.8.tgz");
    let bytes = std::fs::read(&spoilt)?;
    std::fs::write(&spoilt, &bytes[..bytes.len() / 2])?;
    std::fs::remove_file(repository.join("gizmo-1.0.9.tgz"))?;
    let web = Web::start(&repository)?;
    eventually(async || Ok(std::net::TcpStream::connect(&web.address).map(drop)?)).await?;

    let fleet = Fleet::start(&["--helm", helm.to_str().context("path")?]).await?;
    let body = json!({
        "name": "gizmo", "namespace": "gizmo", "chartRepository": format!("http://{}", web.address), "chartName": "gizmo",
        "defaultValues": {"crds": {"enabled": true}},
    });
    // One that is not in the index; what is there instead may be what was meant.
    let mut unknown = body.clone();
    unknown["chartName"] = json!("gizmos");
    let refused = fleet
        .ask("POST", "/operators", Some(&unknown))
        .await?
        .expect(400)?;
    assert_eq!(refused["error"]["code"], "CHART_NOT_FOUND", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("has no chart \"gizmos\"; it has gizmo"),
        "{refused}"
    );
    let begin = std::time::Instant::now();
    fleet.post("/operators", &body).await?;
    let versions = loop {
        let versions = fleet.get("/operators/gizmo/versions").await?["versions"].clone();
        let rows = versions.as_array().context("versions")?;
        if rows.iter().all(|row| row["crdDiscovery"] != "Pending") {
            break versions;
        }
        anyhow::ensure!(begin.elapsed().as_secs() < 150, "still reading: {versions}");
        // Others are served while charts are read.
        let asked = std::time::Instant::now();
        fleet.get("/operators").await?;
        anyhow::ensure!(asked.elapsed().as_secs() < 5, "{:?} for a list", asked.elapsed());
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    };
    for expected in VERSIONS {
        let row = versions
            .as_array()
            .and_then(|rows| rows.iter().find(|row| row["version"] == expected.number))
            .with_context(|| format!("no {}: {versions}", expected.number))?;
        assert_eq!(row["crdDiscovery"], expected.found, "{row}");
        let said = row["crdDiscoveryMessage"].as_str().unwrap_or_default();
        assert!(said.contains(expected.said), "{row}");
    }
    assert!(listener.accept().is_err(), "a schema of values was followed");
    let crd = fleet.get("/crds/gizmos.e2e.gantry.dev").await?;
    assert!(!crd.to_string().contains("root:"), "{crd}");
    fleet.stop().await
}

#[tokio::test]
async fn charts_that_are_broken_or_mean_harm_hurt_nobody_with_helm_3() -> anyhow::Result<()> {
    survived_with("helm3").await
}

#[tokio::test]
async fn charts_that_are_broken_or_mean_harm_hurt_nobody_with_helm_4() -> anyhow::Result<()> {
    survived_with("helm4").await
}
