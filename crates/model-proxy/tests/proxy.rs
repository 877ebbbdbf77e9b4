//! The proxy between real connections: what passes, what is counted, what is refused.

mod support;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt as _, combinators::BoxBody};
use hyper::body::Frame;
use support::{answer, before, connect, data, piece, post, soon, stage, text};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

const CHAT: &str = r#"{"model":"phi","messages":[{"role":"user","content":"hello"}]}"#;
const IN_FLIGHT: &str = "gantry_model_in_flight{model=\"phi\"}";
const QUEUED: &str = "gantry_model_queue_depth{model=\"phi\"}";

fn ended(route: &str, code: &str) -> String {
    format!("gantry_model_requests_total{{model=\"phi\",route=\"{route}\",code=\"{code}\"}}")
}

#[tokio::test]
async fn a_stream_comes_through_piece_by_piece_when_each_is_said() {
    let mut stage = stage(1, None).await;
    let asked = stage.ask("/api/chat", CHAT);
    let call = stage.call().await;
    assert_eq!(call.parts.uri.path(), "/api/chat");
    let said = call.stream("application/x-ndjson");
    let lines = [
        "{\"message\":{\"content\":\"one\"},\"done\":false}\n",
        "{\"message\":{\"content\":\"two\"},\"done\":false}\n",
        "{\"done\":true,\"prompt_eval_count\":11,\"eval_count\":2}\n",
    ];
    said.send(data(lines[0])).await.unwrap();
    // The head comes with the first piece, while Ollama has said nothing more.
    let answered = soon("the head", asked).await.unwrap();
    assert_eq!(answered.headers()["content-type"], "application/x-ndjson");
    let mut body = answered.into_body();
    assert_eq!(piece(&mut body).await, lines[0]);
    assert_eq!(stage.metric(IN_FLIGHT).await, Some(1.0));
    for line in &lines[1..] {
        said.send(data(line)).await.unwrap();
        assert_eq!(piece(&mut body).await, *line, "before the next is said");
    }
    drop(said);
    assert!(soon("the end", body.frame()).await.is_none());
    stage.until(&ended("/api/chat", "2xx"), 1.0).await;
    assert_eq!(stage.metric(IN_FLIGHT).await, Some(0.0));
    for (series, value) in [
        ("gantry_model_prompt_tokens_total{model=\"phi\"}", 11.0),
        ("gantry_model_completion_tokens_total{model=\"phi\"}", 2.0),
        ("gantry_model_requests_received_total{model=\"phi\"}", 1.0),
        (
            "gantry_model_time_to_first_token_seconds_count{model=\"phi\"}",
            1.0,
        ),
        ("gantry_model_request_duration_seconds_count{model=\"phi\"}", 1.0),
    ] {
        assert_eq!(stage.metric(series).await, Some(value), "{series}");
    }
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let mut stage = stage(1, None).await;
    let mut socket = TcpStream::connect(stage.proxy).await.unwrap();
    let request = "POST /api/chat HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nTrailer: x-sent\r\n\
                   Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-sent: 7\r\n\r\n";
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut call = stage.call().await;
    assert_eq!(call.parts.headers["te"], "trailers");
    let first = soon("the body", call.body.frame()).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "{}");
    let last = soon("the trailers", call.body.frame()).await.unwrap().unwrap();
    assert_eq!(last.into_trailers().unwrap()["x-sent"], "7");
    let said = call.stream("application/x-ndjson");
    said.send(data("{}\n")).await.unwrap();
    let mut sums = HeaderMap::new();
    sums.insert("x-sum", HeaderValue::from_static("42"));
    said.send(Frame::trailers(sums)).await.unwrap();
    drop(said);
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).ends_with("0\r\nx-sum: 42\r\n\r\n") {
        let read = soon("the answer", socket.read_buf(&mut seen)).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
    }
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_work() {
    let mut stage = stage(1, None).await;
    let asked = stage.ask("/api/generate", CHAT);
    let said = stage.call().await.stream("application/x-ndjson");
    said.send(data("{\"response\":\"a\"}\n")).await.unwrap();
    let mut body = soon("the head", asked).await.unwrap().into_body();
    piece(&mut body).await;
    drop(body);
    soon("Ollama to hear of it", said.closed()).await;
    stage.until(&ended("/api/generate", "cancelled"), 1.0).await;
    assert_eq!(stage.metric(IN_FLIGHT).await, Some(0.0));
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_answer_ends_the_work_too() {
    let mut stage = stage(1, None).await;
    let asked = stage.ask("/api/generate", CHAT);
    let call = stage.call().await;
    asked.abort();
    stage.until(&ended("/api/generate", "cancelled"), 1.0).await;
    assert_eq!(stage.metric(IN_FLIGHT).await, Some(0.0));
    drop(call);
}

#[tokio::test]
async fn the_queue_is_held_in_order_and_has_an_end() {
    let mut stage = stage(1, Some(2)).await;
    let first = stage.ask("/api/chat", CHAT);
    let working = stage.call().await;
    let second = stage.ask("/api/chat", r#"{"model":"phi","prompt":"second"}"#);
    stage.until(QUEUED, 1.0).await;
    let third = stage.ask("/api/chat", r#"{"model":"phi:latest","prompt":"third"}"#);
    stage.until(QUEUED, 2.0).await;
    assert_eq!(stage.metric(IN_FLIGHT).await, Some(1.0));

    let refused = soon("a refusal", stage.ask("/api/chat", CHAT)).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    let error: serde_json::Value = serde_json::from_str(&text(refused.into_body()).await).unwrap();
    assert!(
        error["error"].as_str().unwrap().contains("server busy"),
        "{error}"
    );
    let refused = stage.ask("/v1/chat/completions", CHAT);
    let refused = soon("a refusal", refused).await.unwrap();
    let error: serde_json::Value = serde_json::from_str(&text(refused.into_body()).await).unwrap();
    assert_eq!(error["error"]["type"], "api_error");
    assert_eq!(
        stage
            .metric("gantry_model_requests_rejected_total{model=\"phi\"}")
            .await,
        Some(2.0)
    );

    // What no model has to work for does not wait.
    let proxy = stage.proxy;
    let probe = tokio::spawn(async move {
        let mut connection = connect(proxy).await;
        let request = Request::get("/api/tags").body(BoxBody::default()).unwrap();
        connection.send_request(request).await.unwrap().status()
    });
    let call = stage.call().await;
    assert_eq!(call.parts.uri.path(), "/api/tags");
    call.answer(answer(200, "application/json", "{}"));
    assert_eq!(soon("the probe", probe).await.unwrap(), 200);

    // The third leaves while it waits; Ollama never hears of it.
    third.abort();
    stage.until(QUEUED, 1.0).await;
    working.answer(answer(200, "application/json", r#"{"eval_count":3}"#));
    text(soon("the first", first).await.unwrap().into_body()).await;
    let call = stage.call().await;
    let body = soon("its body", call.body.collect()).await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("second"));
    second.abort();
    stage.until(IN_FLIGHT, 0.0).await;
    assert!(stage.calls.try_recv().is_err(), "nobody else came");
}

#[tokio::test]
async fn without_a_queue_of_its_own_all_pass_and_those_beyond_count_as_waiting() {
    let mut stage = stage(2, None).await;
    let _asked: Vec<_> = (0..5).map(|_| stage.ask("/api/chat", CHAT)).collect();
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(stage.call().await);
    }
    stage.until(QUEUED, 3.0).await;
    assert_eq!(stage.metric(IN_FLIGHT).await, Some(2.0));
    for call in calls {
        call.answer(answer(200, "application/json", "{}"));
    }
    stage.until(IN_FLIGHT, 0.0).await;
    assert_eq!(stage.metric(QUEUED).await, Some(0.0));
}

#[tokio::test]
async fn large_bodies_pass_whole_and_the_rest_of_a_connection_is_used_again() {
    let mut stage = stage(1, None).await;
    let large: Bytes = (0..16 * 1024 * 1024_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect::<Vec<u8>>()
        .into();
    let mut connection = connect(stage.proxy).await;
    for path in ["/api/blobs/sha256:1", "/api/chat"] {
        let request = post(path, large.clone());
        let asked = tokio::spawn(async move {
            let answer = connection.send_request(request).await.unwrap();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            connection.ready().await.unwrap();
            (connection, body)
        });
        let mut call = stage.call().await;
        assert_eq!(
            call.parts.headers["content-length"],
            large.len().to_string().as_str()
        );
        let mut received = Vec::new();
        while let Some(frame) = soon("a piece", call.body.frame()).await {
            received.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        assert!(received == large, "as it was sent");
        call.answer(answer(200, "application/octet-stream", large.clone()));
        let (again, body) = soon("the answer", asked).await.unwrap();
        assert!(body == large, "as it was answered");
        connection = again;
    }
}

#[tokio::test]
async fn ollama_sees_its_own_address_and_no_upgrade() {
    let mut stage = stage(1, None).await;
    let mut connection = connect(stage.proxy).await;
    let mut request = post("/api/chat?x=1", CHAT);
    request
        .headers_mut()
        .insert("connection", HeaderValue::from_static("Upgrade, HTTP2-Settings"));
    request
        .headers_mut()
        .insert("upgrade", HeaderValue::from_static("h2c"));
    request
        .headers_mut()
        .insert("http2-settings", HeaderValue::from_static("AAM"));
    let asked = tokio::spawn(async move { connection.send_request(request).await.unwrap().status() });
    let call = stage.call().await;
    assert_eq!(call.parts.uri, "/api/chat?x=1");
    let host = call.parts.headers["host"].to_str().unwrap();
    assert!(host.starts_with("127.0.0.1:"), "{host}");
    assert_eq!(
        call.parts.headers["x-forwarded-host"],
        "ollama-model-phi.team:11434"
    );
    assert!(!call.parts.headers.contains_key("upgrade"));
    assert!(!call.parts.headers.contains_key("http2-settings"));
    call.answer(answer(200, "application/json", "{}"));
    assert_eq!(soon("the answer", asked).await.unwrap(), 200);
}

#[tokio::test]
async fn usage_is_read_from_events_and_strange_models_are_others() {
    let mut stage = stage(1, None).await;
    let asked = stage.ask(
        "/v1/chat/completions",
        r#"{"messages":[],"model":"registry.ollama.ai/library/PHI"}"#,
    );
    let said = stage.call().await.stream("text/event-stream");
    for line in [
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,",
        "\"completion_tokens\":6}}\n\ndata: [DONE]\n\n",
    ] {
        said.send(data(line)).await.unwrap();
    }
    drop(said);
    text(soon("the answer", asked).await.unwrap().into_body()).await;
    assert_eq!(
        stage
            .metric("gantry_model_prompt_tokens_total{model=\"phi\"}")
            .await,
        Some(5.0)
    );
    let before = stage.metrics().await.lines().count();
    for number in 0..20 {
        let body = format!(r#"{{"model":"x{number}\"}} 1\nforged 1"}}"#);
        let mut connection = connect(stage.proxy).await;
        let request = post("/api/chat", body);
        let asked = tokio::spawn(async move { connection.send_request(request).await.unwrap().status() });
        stage.call().await.answer(answer(404, "application/json", "{}"));
        assert_eq!(soon("the answer", asked).await.unwrap(), 404);
    }
    let text = stage.metrics().await;
    assert!(!text.contains("forged"), "{text}");
    assert_eq!(text.lines().count(), before + 1, "one new series for all of them");
    stage
        .until(
            "gantry_model_requests_total{model=\"other\",route=\"/api/chat\",code=\"4xx\"}",
            20.0,
        )
        .await;
}

#[tokio::test]
async fn without_ollama_the_client_is_told() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let stage = before(&format!("http://{address}"), mpsc::channel(1).1, 1, None).await;
    let refused = soon("a refusal", stage.ask("/api/chat", CHAT)).await.unwrap();
    assert_eq!(refused.status(), 502);
    let error = text(refused.into_body()).await;
    assert!(
        error.contains(&address.to_string()) && error.contains("refused"),
        "{error}"
    );
    stage.until(&ended("/api/chat", "5xx"), 1.0).await;
}

#[tokio::test]
async fn ollama_that_breaks_off_is_not_taken_for_complete() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await;
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(b"3\r\n{}\n\r\n").await.unwrap();
    });
    let stage = before(&format!("http://{address}"), mpsc::channel(1).1, 1, None).await;
    let answered = soon("the head", stage.ask("/api/chat", CHAT)).await.unwrap();
    let rest = soon("the end", answered.into_body().collect()).await;
    assert!(rest.is_err(), "the client sees that something is missing");
    stage.until(&ended("/api/chat", "broken"), 1.0).await;
}

#[tokio::test]
async fn told_to_stop_it_lets_streams_finish() {
    let mut stage = stage(1, None).await;
    let asked = stage.ask("/api/chat", CHAT);
    let said = stage.call().await.stream("application/x-ndjson");
    said.send(data("{}\n")).await.unwrap();
    let mut body = soon("the head", asked).await.unwrap().into_body();
    piece(&mut body).await;
    let idle = tokio::spawn({
        let mut connection = connect(stage.admin).await;
        let request = Request::get("/idle").body(BoxBody::default()).unwrap();
        async move { connection.send_request(request).await.unwrap().status() }
    });
    stage.stop.take().unwrap().send(()).unwrap();
    soon("the port to close", async {
        while TcpStream::connect(stage.proxy).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(!stage.running.is_finished() && !idle.is_finished());
    assert_eq!(stage.get(stage.admin, "/healthz").await.0, 200);
    said.send(data("{\"done\":true}\n")).await.unwrap();
    assert_eq!(piece(&mut body).await, "{\"done\":true}\n");
    drop(said);
    assert!(soon("the end of the stream", body.frame()).await.is_none());
    assert_eq!(
        soon("idleness", idle).await.unwrap(),
        200,
        "also when it ends before it has been quiet for long"
    );
    soon("the server to end", stage.running).await.unwrap();
}

#[tokio::test]
async fn idle_is_said_when_nobody_is_left() {
    let mut stage = stage(1, None).await;
    let asked = stage.ask("/api/chat", CHAT);
    let call = stage.call().await;
    let mut connection = connect(stage.admin).await;
    let request = Request::get("/idle").body(BoxBody::default()).unwrap();
    let mut idle = tokio::spawn(async move { connection.send_request(request).await.unwrap().status() });
    let early = tokio::time::timeout(Duration::from_millis(2500), &mut idle).await;
    assert!(early.is_err(), "somebody is being served");
    call.answer(answer(200, "application/json", "{}"));
    text(soon("the answer", asked).await.unwrap().into_body()).await;
    assert_eq!(soon("idleness", idle).await.unwrap(), 200);
}

#[tokio::test]
async fn bad_upstreams_are_named() {
    for bad in [
        "127.0.0.1:1",
        "https://127.0.0.1:1",
        "http://127.0.0.1:1/path",
        "http://",
    ] {
        let any = "127.0.0.1:0".parse().unwrap();
        let options = gantry_model_proxy::Options {
            listen: any,
            metrics: any,
            upstream: bad.to_owned(),
            models: Vec::new(),
            parallel: 1,
            queue: None,
            linger: Duration::ZERO,
            grace: Duration::ZERO,
        };
        let Err(error) = gantry_model_proxy::Server::bind(&options).await else {
            panic!("{bad} was accepted")
        };
        assert!(error.to_string().contains(bad), "{error}");
    }
}
