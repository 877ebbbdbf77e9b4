//! The examples of the guide, run as they stand there.

use std::process::Command;

use super::support::{Running, charts::Repository, definition, kube::StandIn, token};
use gantry_fleet_domain::access::Role;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_the_guide_works() {
    let (running, repository, cluster) = (
        Running::start().await,
        Repository::start().await,
        StandIn::start().await,
    );
    let crd = definition("widgets.example.com", serde_json::json!({})).to_string();
    repository.chart("widget", "1.0.0", &[("crds/widget.json", crd)]);
    repository.chart("widget", "1.1.0", &[]);
    let kubeconfig = running.folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, cluster.kubeconfig("t").to_string()).unwrap();
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/fleet.md")).unwrap();
    let blocks: Vec<&str> = guide
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split_once("```").expect("a block ends").0)
        .collect();
    assert!(blocks.len() >= 8, "only {} examples", blocks.len());
    for block in blocks {
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", block])
            .current_dir(running.folder.path())
            .env("FLEET", format!("http://{}", running.server.address))
            .env("TOKEN", token("admin", Role::Admin))
            .env("REPOSITORY", &repository.url)
            .env("KUBECONFIG_FILE", &kubeconfig);
        let done = tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .expect("bash and curl are installed");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(done.status.success(), "{block}\n{said}");
        let has_file = block.contains(" -o fleet-api.html ");
        assert!(said.contains('{') || has_file, "{block}\n{said}");
    }
    let page = std::fs::read_to_string(running.folder.path().join("fleet-api.html")).unwrap();
    assert!(page.contains("/operators/{name}"), "{page}");
    // And they did what they are there for.
    for action in [
        "operator.registered",
        "operator.changed",
        "cluster.registered",
        "crd.registered",
        "crd.rejected",
        "crd.proof-asked",
        "crd.finding-waived",
        "user.created",
    ] {
        let audit = running.admin.get(&format!("/audit?action={action}")).await;
        assert_ne!(audit.expect(200).body["total"], 0, "{action}");
    }
    running.server.stop().await;
}
