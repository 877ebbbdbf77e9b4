//! The limits that hold unless others are set, as callers meet them.

use gantry_fleet::settings::Rates;
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::support::{Asker, Running, token_in};

/// A server with the usual limits, whose clock stands still: what is left does not depend on how long requests take.
async fn started(proxies: &[&str]) -> Running {
    let now = Timestamp::now();
    Running::with(|settings| {
        settings.rates = Rates::default();
        settings.clock = std::sync::Arc::new(move || now);
        settings.trusted_proxies = proxies.iter().map(|text| text.parse().unwrap()).collect();
    })
    .await
}

/// So many are let in, and the next one is not.
async fn let_in(asker: &Asker, method: &str, path: &str, body: Option<&Value>, most: u32) {
    for number in 1..=most {
        let got = asker.ask(method, path, body, &[]).await;
        assert_ne!(got.status, 429, "{method} {path}: number {number} of {most}");
        assert_eq!(got.header("x-ratelimit-limit"), most.to_string());
        assert_eq!(got.header("x-ratelimit-remaining"), (most - number).to_string());
    }
    let refused = asker.ask(method, path, body, &[]).await;
    let refused = refused.refused(429, "RATE_LIMIT_EXCEEDED");
    let wait: u32 = refused.header("retry-after").parse().unwrap();
    assert_eq!(wait, 60_u32.div_ceil(most), "{method} {path}");
}

#[tokio::test]
async fn the_limits_of_the_specification_hold_unless_others_are_set() {
    let running = started(&[]).await;
    let admin = running.role(Role::Admin);
    let nothing = json!({});
    let_in(&admin, "get", "/operators", None, 60).await;
    let_in(&admin, "get", "/clusters", None, 60).await;
    let_in(&admin, "post", "/clusters", Some(&nothing), 5).await;
    let_in(&admin, "post", "/operators", Some(&nothing), 30).await;
    let login = json!({"username": "jo", "password": "wrong"});
    let_in(
        &running.asker(None),
        "post",
        "/authentication/login",
        Some(&login),
        10,
    )
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn behind_a_proxy_of_ours_logins_are_counted_by_who_is_behind_it() {
    let login = json!({"username": "jo", "password": "wrong"});
    let ask = async |running: &Running, forwarded: &str| {
        let header = [("x-forwarded-for", forwarded)];
        let stranger = running.asker(None);
        let got = stranger
            .ask("post", "/authentication/login", Some(&login), &header)
            .await;
        got.status
    };
    let running = started(&["127.0.0.0/8", "10.0.0.0/8"]).await;
    for number in 0..10 {
        // What the sender adds by themselves changes nothing.
        let forwarded = format!("192.0.2.{number}, 198.51.100.1, 10.0.0.7");
        assert_eq!(ask(&running, &forwarded).await, 401);
    }
    assert_eq!(ask(&running, "198.51.100.1").await, 429);
    assert_eq!(ask(&running, "198.51.100.2").await, 401, "somebody else may");
    running.server.stop().await;
    // Nobody is believed who was not named.
    let running = started(&[]).await;
    for number in 0..10 {
        assert_eq!(ask(&running, &format!("198.51.100.{number}")).await, 401);
    }
    assert_eq!(ask(&running, "198.51.100.99").await, 429);
    running.server.stop().await;
}

#[tokio::test]
async fn those_whom_nobody_knows_are_counted_and_nobody_else_for_them() {
    let running = started(&["127.0.0.0/8"]).await;
    let ask = async |token: Option<String>, path: &str, from: &str| {
        let header = [("x-forwarded-for", from)];
        running.asker(token).ask("get", path, None, &header).await
    };
    let made_up = || Some("x.y.z".to_owned());
    for number in 0..60 {
        let token = (number % 2 == 0).then(made_up).flatten();
        let path = ["/operators", "/clusters", "/no-such-path"][number % 3];
        let got = ask(token, path, "198.51.100.1").await;
        got.refused(401, "UNAUTHORIZED");
    }
    for path in ["/operators", "/no-such-path"] {
        let refused = ask(made_up(), path, "198.51.100.1").await;
        let refused = refused.refused(429, "RATE_LIMIT_EXCEEDED");
        assert_eq!(refused.header("retry-after"), "1");
        assert_eq!(refused.header("x-ratelimit-limit"), "60");
        assert_eq!(refused.header("x-ratelimit-remaining"), "0");
        assert!(refused.header("x-ratelimit-reset").parse::<i64>().is_ok());
    }
    ask(made_up(), "/operators", "198.51.100.2")
        .await
        .refused(401, "UNAUTHORIZED");
    // From the same address: a token that counts, and one whose owner has to be told that it does not any more.
    let viewer = |minutes| token_in("jo", &[Role::Viewer], None, SignedDuration::from_mins(minutes));
    ask(Some(viewer(60)), "/operators", "198.51.100.1")
        .await
        .expect(200);
    let got = ask(Some(viewer(-5)), "/operators", "198.51.100.1").await;
    let got = got.refused(401, "UNAUTHORIZED");
    assert!(got.text.contains("has expired"), "{}", got.text);
    ask(None, "/health", "198.51.100.1").await.expect(200);
    running.server.stop().await;
}

#[tokio::test]
async fn what_there_is_not_is_counted_too() {
    let running = started(&[]).await;
    let admin = running.role(Role::Admin);
    let_in(&admin, "get", "/no-such-path", None, 60).await;
    for (method, path) in [("get", "/nor-this-one"), ("delete", "/operators")] {
        let refused = admin.ask(method, path, None, &[]).await;
        refused.refused(429, "RATE_LIMIT_EXCEEDED");
    }
    admin.get("/operators").await.expect(200);
    // Somebody else at the same address, and a stranger.
    let viewer = running.role(Role::Viewer);
    viewer.get("/no-such-path").await.refused(404, "PATH_NOT_FOUND");
    let stranger = running.asker(None).get("/no-such-path").await;
    stranger.refused(401, "UNAUTHORIZED");
    running.server.stop().await;
}

#[tokio::test]
async fn those_who_are_not_there_any_more_are_counted_before_the_database_is_asked() {
    let running = started(&[]).await;
    let login = json!({"username": "jo", "password": "correct horse battery staple"});
    let mut user = login.clone();
    user["roles"] = json!(["Viewer"]);
    running.admin.post("/users", &user).await.expect(201);
    let got = running.asker(None).post("/authentication/login", &login).await;
    let token = got.expect(200).body["token"].as_str().unwrap().to_owned();
    running.admin.delete("/users/jo").await.expect(204);
    let gone = running.asker(Some(token));
    for path in ["/operators", "/no-such-path"] {
        for _ in 0..60 {
            gone.get(path).await.refused(401, "UNAUTHORIZED");
        }
        gone.get(path).await.refused(429, "RATE_LIMIT_EXCEEDED");
    }
    running.server.stop().await;
}
