//! `gantry audit verify`, as somebody runs it who wants to know, and as a script does that only looks at its exit code.

use std::process::Output;

use gantry_ledger::Signer;
use serde_json::json;

use super::{
    process::Process,
    support::{database, definition, key_line, pool},
};

/// What it says is on both streams: what it found, and why it could not look.
fn verify(database_url: &str, more: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = std::process::Command::new(env!("CARGO_BIN_EXE_gantry"))
        .args(["audit", "verify"])
        .args(more)
        .env("DATABASE_URL", database_url)
        .env_remove("GANTRY_FLEET_STATE")
        .output()
        .unwrap();
    (
        status.code(),
        String::from_utf8([stdout, stderr].concat()).unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_tampered_with_is_told_by_words_and_exit_code() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (signer, other) = (Signer::generate().unwrap(), Signer::generate().unwrap());
    std::fs::write(path("audit.key"), signer.to_pem().unwrap()).unwrap();
    std::fs::write(path("audit.pub"), signer.public_key().to_pem()).unwrap();
    std::fs::write(path("other.pub"), other.public_key().to_pem()).unwrap();
    let server = Process::start(
        &url,
        &key,
        folder.path(),
        &["--audit-key-file", &path("audit.key")],
    )
    .await;
    let write = async |number: usize| {
        let name = format!("n{number}s.example.com");
        let body = json!({"schemaDefinition": definition(&name, json!({})), "operatorVersion": "1.0.0"});
        server.admin().post("/crds", &body).await.expect(201);
    };
    for number in 0..3 {
        write(number).await;
    }

    let (code, said) = verify(&url, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("is whole: 3 entries"), "{said}");
    let kept = said.split_whitespace().last().unwrap().to_owned();
    assert!(kept.starts_with("3:"), "{said}");
    write(3).await;
    server.stop().await;
    // The head that was printed is taken back as it is.
    let (code, said) = verify(&url, &["--since", &kept, "--public-key", &path("audit.pub")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("is whole: 4 entries") && said.contains("is signed by that key"),
        "{said}"
    );

    // It could not be found out, which is something else.
    for (what, more) in [
        (
            "no database",
            &["--database-url", "postgresql://nobody@127.0.0.1:1/none"][..],
        ),
        ("no key", &["--public-key", &path("none.pub")]),
        ("no head", &["--since", "three"]),
    ] {
        let (code, said) = verify(&url, more);
        assert_eq!(code, Some(2), "{what}: {said}");
        assert!(!said.contains("whole"), "{what}: {said}");
    }

    let (code, said) = verify(&url, &["--public-key", &path("other.pub")]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("not signed by that key"), "{said}");

    // By somebody with the rights of the database itself.
    let pool = pool(&url).await;
    let tamper = async |statements: &'static str| {
        let statements = format!("set session_replication_role = replica; {statements}");
        let mut connection = pool.acquire().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
            .execute(&mut *connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
    };
    // Nobody sees that from the log alone: it is shorter, and whole.
    tamper(
        "create table before as select * from audit;
         delete from audit_details where seq > 2; delete from audit where seq > 2;
         update audit_head set seq = 2, signed = null,
             hash = (select line::json->>'hash' from audit where seq = 2);",
    )
    .await;
    let (code, said) = verify(&url, &[]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = verify(&url, &["--since", &kept]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("NOT whole") && said.contains('3'), "{said}");
    let (code, said) = verify(&url, &["--public-key", &path("audit.pub")]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("NOT whole") && said.contains("no signature"),
        "{said}"
    );

    tamper("update audit set line = replace(line, 'Succeeded', 'Denied') where seq = 2;").await;
    let (code, said) = verify(&url, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("NOT whole") && said.contains('2'), "{said}");
}
