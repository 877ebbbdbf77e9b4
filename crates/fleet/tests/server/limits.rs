//! The limits that hold unless others are set, as callers meet them.

use gantry_fleet::settings::Rates;
use gantry_fleet_domain::access::Role;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::support::{Asker, Running};

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
