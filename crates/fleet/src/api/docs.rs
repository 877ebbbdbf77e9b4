//! The OpenAPI document for people: one page without scripts, so that it works everywhere and loads nothing.

use std::fmt::Write as _;

use axum::response::Html;
use gantry_fleet_api::Operation;
use serde_json::Value;
use strum::IntoEnumIterator;

use super::{App, access::action};
use axum::extract::State;
use gantry_fleet_domain::access::{Caller, Role};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1b1f24;background:#fff}\
code,pre{font:14px/1.4 ui-monospace,monospace}h2{margin-top:2rem;border-bottom:1px solid #d0d7de}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0}\
section{margin:1.5rem 0}.m{font-weight:600;text-transform:uppercase}";

pub async fn page(State(app): State<App>) -> Html<String> {
    Html(render(&app.document))
}

fn render(document: &Value) -> String {
    let mut out = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Gantry fleet API</title><style>",
    );
    let _ = write!(
        out,
        "{STYLE}</style><h1>Gantry fleet API</h1><p>Version {}. For programs: <code>/api/v1/openapi.json</code>. \
         Send your token as <code>Authorization: Bearer TOKEN</code>.</p>",
        escape(document["info"]["version"].as_str().unwrap_or_default())
    );
    let mut tag = "";
    for operation in Operation::iter() {
        let spec = operation.spec();
        if spec.tag != tag {
            tag = spec.tag;
            let _ = write!(out, "<h2>{}</h2>", escape(tag));
        }
        let _ = write!(
            out,
            "<section id=\"{}\"><h3><span class=\"m\">{}</span> <code>{}</code></h3><p>{}.</p><p>Who: {}.</p>",
            operation.id(),
            spec.method,
            escape(spec.path),
            escape(spec.summary),
            who(operation)
        );
        let described = &document["paths"][spec.path][spec.method];
        rows(&mut out, described);
        if let Some(name) = reference(&described["requestBody"]["content"]["application/json"]["schema"]) {
            let _ = write!(out, "<p>Body: <a href=\"#schema-{name}\">{name}</a></p>");
        }
        let reply = &described["responses"][spec.status.to_string()]["content"]["application/json"]["schema"];
        match reference(reply) {
            Some(name) => {
                let _ = write!(
                    out,
                    "<p>Answer {}: <a href=\"#schema-{name}\">{name}</a></p>",
                    spec.status
                );
            }
            None => {
                let _ = write!(out, "<p>Answer {}</p>", spec.status);
            }
        }
        out.push_str("</section>");
    }
    out.push_str("<h2>Bodies</h2>");
    for (name, schema) in document["components"]["schemas"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let text = serde_json::to_string_pretty(schema).unwrap_or_default();
        let _ = write!(
            out,
            "<section id=\"schema-{0}\"><details><summary><code>{0}</code></summary><pre>{1}</pre></details></section>",
            escape(name),
            escape(&text)
        );
    }
    out.push_str("</html>");
    out
}

fn who(operation: Operation) -> String {
    let Some(right) = action(operation) else {
        return "everybody, without a token".to_owned();
    };
    let may = |role: &Role| {
        let caller = Caller {
            subject: String::new(),
            roles: [*role].into(),
            environments: None,
            user: None,
        };
        caller.may(right, None).is_ok()
    };
    let roles: Vec<&str> = Role::ALL
        .iter()
        .filter(|role| may(role))
        .map(|role| role.name())
        .collect();
    roles.join(", ")
}

fn rows(out: &mut String, described: &Value) {
    let Some(parameters) = described["parameters"].as_array().filter(|all| !all.is_empty()) else {
        return;
    };
    out.push_str("<table>");
    for parameter in parameters {
        let text = |name: &str| escape(parameter[name].as_str().unwrap_or_default());
        let _ = write!(
            out,
            "<tr><td><code>{}</code><td>{}<td>{}</tr>",
            text("name"),
            text("in"),
            text("description")
        );
    }
    out.push_str("</table>");
}

fn reference(schema: &Value) -> Option<String> {
    let name = schema["$ref"].as_str()?.rsplit('/').next()?;
    Some(escape(name))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_on_the_page() {
        let page = render(&gantry_fleet_api::document("1<2"));
        for operation in Operation::iter() {
            assert!(
                page.contains(&format!("<section id=\"{}\">", operation.id())),
                "{operation:?}"
            );
        }
        assert!(page.contains("Version 1&lt;2"));
        assert!(!page.contains("<script"));
    }
}
