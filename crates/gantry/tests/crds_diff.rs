//! `gantry crds diff` as a pipeline runs it: what it reads, what it prints, and with which code it ends.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use rstest::rstest;
use serde_json::Value;

fn definition(properties: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: things.example.com}}
spec:
  group: example.com
  scope: Namespaced
  names: {{plural: things, kind: Thing}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: {properties}}}}}}}}}
"
    )
}

const OLD: &str = "{size: {type: integer}, colour: {type: string}}";
const WIDER: &str = "{size: {type: integer}, colour: {type: string}, shape: {type: string}}";
const NARROWER: &str = "{size: {type: integer}}";

struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

fn diff(folder: &Path, arguments: &[&str], stdin: &str) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gantry"))
        .args(["crds", "diff"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended without reading any of it.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let done = child.wait_with_output().unwrap();
    Ended {
        code: done.status.code().unwrap(),
        stdout: String::from_utf8(done.stdout).unwrap(),
        stderr: String::from_utf8(done.stderr).unwrap(),
    }
}

/// Files, a folder, an unpacked and a packed chart, all with the same definitions.
fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (name, properties) in [("old", OLD), ("wider", WIDER), ("narrower", NARROWER)] {
        write(&format!("{name}.yaml"), &definition(properties));
        write(&format!("{name}/things.yaml"), &definition(properties));
        write(
            &format!("{name}-chart/Chart.yaml"),
            "{apiVersion: v2, name: x, version: 1.0.0}",
        );
        write(&format!("{name}-chart/crds/things.yaml"), &definition(properties));
    }
    write("none.yaml", "a: 1\n");
    write(
        "others.yaml",
        &definition(OLD)
            .replace("things", "others")
            .replace("Thing", "Other"),
    );
    write("broken.yaml", "a: [\n");
    write(
        "object.yaml",
        "{apiVersion: example.com/v1, kind: Thing, metadata: {name: a, namespace: b}, spec: {size: 1}}",
    );
    write(
        "hurt.yaml",
        "{apiVersion: example.com/v1, kind: Thing, metadata: {name: c, namespace: b}, spec: {colour: red}}",
    );
    // As this project's own chart does it: a template reads them from a folder of its own.
    for (name, properties) in [("old", OLD), ("narrower", NARROWER)] {
        let chart = format!("{name}-reading");
        write(
            &format!("{chart}/Chart.yaml"),
            "{apiVersion: v2, name: x, version: 1.0.0}",
        );
        write(
            &format!("{chart}/files/crds/things.yaml"),
            &definition(properties),
        );
        write(
            &format!("{chart}/templates/crds.yaml"),
            "{{ range $path, $_ := .Files.Glob \"files/crds/*\" }}{{ $.Files.Get $path }}{{ end }}",
        );
    }
    let packed = Command::new("tar")
        .args(["-czf", "narrower.tgz", "narrower-chart"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(packed.success());
    folder
}

#[rstest]
#[case::equal(&["old.yaml", "old.yaml"], 0)]
#[case::wider(&["old.yaml", "wider.yaml"], 0)]
#[case::narrower(&["old.yaml", "narrower.yaml"], 1)]
#[case::folders(&["old", "narrower"], 1)]
#[case::a_chart(&["old-chart", "narrower-chart"], 1)]
#[case::a_packed_chart(&["old.yaml", "narrower.tgz"], 1)]
#[case::standard_input(&["old.yaml", "-"], 1)]
#[case::the_way_back(&["old.yaml", "wider.yaml", "--direction=backward"], 1)]
#[case::both_ways_speak_of_the_upgrade(&["old.yaml", "wider.yaml", "--direction=both"], 0)]
#[case::told_only(&["old.yaml", "narrower.yaml", "--fail-on=never"], 0)]
#[case::hurts_nobody(&["old.yaml", "narrower.yaml", "--fail-on=harm", "--objects=object.yaml"], 0)]
#[case::hurts_one(&["old.yaml", "narrower.yaml", "--fail-on=harm", "--objects=hurt.yaml"], 1)]
#[case::hurts_one_there(&["old.yaml", "narrower.yaml", "--fail-on=harm", "--objects=hurt.yaml", "--objects=object.yaml"], 1)]
#[case::a_chart_that_reads_them(&["old-reading", "narrower-reading"], 1)]
#[case::another_one(&["old.yaml", "narrower.yaml", "--only=others.example.com"], 2)]
#[case::nothing_in_it(&["old.yaml", "none.yaml"], 2)]
#[case::a_file_that_is_not_there(&["old.yaml", "absent.yaml"], 2)]
#[case::no_yaml(&["old.yaml", "broken.yaml"], 2)]
#[case::wrong_arguments(&["old.yaml"], 2)]
#[case::no_cluster(&["old.yaml", "cluster:there-is-no-such-context"], 2)]
fn ends_with(#[case] arguments: &[&str], #[case] code: i32) {
    let folder = files();
    let ended = diff(folder.path(), arguments, &definition(NARROWER));
    assert_eq!(ended.code, code, "{}\n{}", ended.stdout, ended.stderr);
    if code == 2 {
        assert!(!ended.stderr.is_empty(), "it says why");
    }
}

#[test]
fn one_that_is_gone_is_data_loss() {
    let folder = files();
    let ended = diff(folder.path(), &["old.yaml", "others.yaml", "--output=json"], "");
    assert_eq!(ended.code, 1, "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("things.example.com"), "{}", ended.stdout);
}

#[test]
fn a_waiver_counts_for_its_finding_until_its_day() {
    let folder = files();
    let told = diff(folder.path(), &["old.yaml", "narrower.yaml", "--output=json"], "");
    let report: Value = serde_json::from_str(&told.stdout).unwrap();
    let fingerprint = find(&report, "fingerprint").unwrap();
    let waived = |expires: &str| {
        let text = format!(
            "waivers:\n- {{fingerprint: {fingerprint}, approver: ada, reason: nobody has it, expires: {expires}}}\n"
        );
        fs::write(folder.path().join("waivers.yaml"), text).unwrap();
        diff(
            folder.path(),
            &["old.yaml", "narrower.yaml", "--waivers=waivers.yaml"],
            "",
        )
        .code
    };
    assert_eq!(waived("2999-12-31"), 0);
    assert_eq!(waived("2001-01-01"), 1);
}

/// The first text under this name, wherever it is.
fn find(value: &Value, name: &str) -> Option<String> {
    match value {
        Value::Object(fields) => fields
            .get(name)
            .and_then(Value::as_str)
            .map(str::to_owned)
            .or_else(|| fields.values().find_map(|value| find(value, name))),
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

#[rstest]
#[case::table("table", "colour")]
#[case::json("json", "\"fingerprint\"")]
#[case::sarif("sarif", "\"2.1.0\"")]
#[case::markdown("markdown", "| ")]
fn prints(#[case] output: &str, #[case] has: &str) {
    let folder = files();
    let ended = diff(
        folder.path(),
        &["old.yaml", "narrower.yaml", "--output", output],
        "",
    );
    assert!(ended.stdout.contains(has), "{}", ended.stdout);
    if ["json", "sarif"].contains(&output) {
        serde_json::from_str::<Value>(&ended.stdout).unwrap();
    }
}
