//! What an API server answers, before anything is built of it. A few bytes of JSON may be a hundred times as many in memory,
//! and whoever sends them may mean no good: so lists are read one item after the other, and everything else is counted.

use ::http::{Request, Response};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::{self, connect::Connect};
use kube::client::{Body, Client};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tower::BoxError;

use crate::infrastructure::{
    lean::{self, Fields, Take},
    yaml::{self, TOO_MUCH},
};

/// More than a page of anything has; whoever sends more is not an API server, or means no good.
const MAX_LIST: usize = 64 << 20;
/// And more than any other answer has: one small object, a token, a refusal.
const MAX_SMALL: usize = 4 << 20;
const MAX_SMALL_NODES: usize = 50_000;

/// Put on requests whose answers are read by the functions below.
#[derive(Clone, Copy)]
struct Counted;

/// Sends a request; of the answer no more can be had than is good.
pub async fn ask<C>(
    http: &legacy::Client<C, Body>,
    request: Request<Body>,
) -> Result<Response<Either<Limited<Incoming>, Full<Bytes>>>, BoxError>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let is_counted = request.extensions().get::<Counted>().is_some();
    let (head, body) = http.request(request).await?.into_parts();
    // A refusal is none of what was asked for.
    if is_counted && head.status.is_success() {
        let body = Either::Left(Limited::new(body, MAX_LIST));
        return Ok(Response::from_parts(head, body));
    }
    let body = Limited::new(body, MAX_SMALL).collect().await?.to_bytes();
    if !yaml::has_at_most(MAX_SMALL_NODES, &body) {
        return Err(TOO_MUCH.into());
    }
    Ok(Response::from_parts(head, Either::Right(Full::new(body))))
}

async fn text(client: &Client, mut request: Request<Vec<u8>>) -> Result<String, kube::Error> {
    request.extensions_mut().insert(Counted);
    client.request_text(request).await
}

/// A page of a list, whose items are taken one after the other. Gives the token of the next page, if there is one.
pub async fn page(
    client: &Client,
    request: Request<Vec<u8>>,
    items: &mut (impl for<'de> Take<'de> + Send),
) -> Result<Option<String>, kube::Error> {
    let text = text(client, request).await?;
    read(&text, items).map_err(kube::Error::SerdeError)
}

fn read(text: &str, items: &mut impl for<'de> Take<'de>) -> Result<Option<String>, serde_json::Error> {
    let mut page = Page { items, next: None };
    let mut reader = serde_json::Deserializer::from_str(text);
    lean::fields(&mut reader, &mut page)?;
    reader.end()?;
    Ok(page.next.filter(|token| !token.is_empty()))
}

struct Page<'i, I> {
    items: &'i mut I,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl<'de, I: Take<'de>> Fields<'de> for Page<'_, I> {
    fn is_wanted(&mut self, name: &str) -> bool {
        ["metadata", "items"].contains(&name)
    }

    fn take<D: Deserializer<'de>>(&mut self, name: &str, deserializer: D) -> Result<(), D::Error> {
        if name == "items" {
            return lean::items(deserializer, self.items);
        }
        let metadata = Option::<Metadata>::deserialize(deserializer)?;
        self.next = metadata.and_then(|metadata| metadata.next);
        Ok(())
    }
}

/// Whole objects of a list.
pub struct Objects<'e>(pub &'e mut (dyn FnMut(Value) + Send));

impl<'de> Take<'de> for Objects<'_> {
    fn take<D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        yaml::value(yaml::DEFINITION.nodes, deserializer).map(&mut self.0)
    }
}

/// One object as a whole.
pub async fn object(client: &Client, request: Request<Vec<u8>>) -> Result<Value, kube::Error> {
    let text = text(client, request).await?;
    let mut reader = serde_json::Deserializer::from_str(&text);
    yaml::value(yaml::DEFINITION.nodes, &mut reader).map_err(kube::Error::SerdeError)
}

/// Of a list that has more items than anything has.
pub fn too_much<E: serde::de::Error>() -> E {
    E::custom(TOO_MUCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &str) -> Result<(Vec<Value>, Option<String>), serde_json::Error> {
        let mut all = Vec::new();
        let next = read(text, &mut Objects(&mut |object| all.push(object)))?;
        Ok((all, next))
    }

    #[test]
    fn pages_are_read_item_by_item() {
        let page = r#"{"kind":"List","items":[{"a":1},{"a":[2]}],"metadata":{"continue":"next","x":[]}}"#;
        let (all, next) = objects(page).unwrap();
        assert_eq!(all, [serde_json::json!({"a": 1}), serde_json::json!({"a": [2]})]);
        assert_eq!(next.as_deref(), Some("next"));
        for empty in [
            "{}",
            r#"{"items":null,"metadata":null}"#,
            r#"{"items":[],"metadata":{"continue":""}}"#,
        ] {
            assert_eq!(objects(empty).unwrap(), (Vec::new(), None), "{empty}");
        }
        assert!(objects("[]").is_err());
        let wide = format!(r#"{{"items":[[{}0]]}}"#, "0,".repeat(yaml::DEFINITION.nodes));
        assert!(objects(&wide).is_err());
    }
}
