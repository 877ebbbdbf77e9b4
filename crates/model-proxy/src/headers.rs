//! Which headers go on, and which belong to one connection only. Pure.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CONNECTION, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
    },
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Prepares a client's headers for Ollama. `host` replaces the client's: Ollama on a loopback address refuses requests
/// that were meant for another name. An `Upgrade` is left out, which HTTP allows: the request is then answered as it is.
pub fn request(headers: &mut HeaderMap, host: HeaderValue, from: IpAddr) {
    let wants_trailers = headers
        .get_all(TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("trailers"));
    drop_hop_by_hop(headers);
    // The 100 is said by this process when it begins to read.
    headers.remove(EXPECT);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(asked) = headers.insert(HOST, host) {
        headers.entry(FORWARDED_HOST).or_insert(asked);
    }
    let before = headers.get(&FORWARDED_FOR).and_then(|value| value.to_str().ok());
    let chain = before.map_or_else(|| from.to_string(), |before| format!("{before}, {from}"));
    if let Ok(chain) = HeaderValue::from_str(&chain) {
        headers.insert(FORWARDED_FOR, chain);
    }
}

/// Prepares Ollama's headers for the client.
pub fn response(headers: &mut HeaderMap) {
    drop_hop_by_hop(headers);
}

/// `Trailer` stays: without it the trailers themselves would be lost.
fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|word| word.trim().parse().ok())
        .collect();
    let always = [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        PROXY_CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in always.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    name.parse::<HeaderName>().unwrap(),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn what_belongs_to_the_connection_stays_behind() {
        let mut map = headers(&[
            ("host", "models.example:80"),
            ("connection", "keep-alive, X-Secret"),
            ("x-secret", "1"),
            ("upgrade", "h2c"),
            ("te", "gzip, trailers"),
            ("trailer", "x-sum"),
            ("expect", "100-continue"),
            ("authorization", "Bearer x"),
            ("x-forwarded-for", "10.0.0.9"),
        ]);
        request(
            &mut map,
            HeaderValue::from_static("127.0.0.1:1"),
            IpAddr::from([10, 0, 0, 1]),
        );
        let mut left: Vec<(&str, &str)> = map
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                ("authorization", "Bearer x"),
                ("host", "127.0.0.1:1"),
                ("te", "trailers"),
                ("trailer", "x-sum"),
                ("x-forwarded-for", "10.0.0.9, 10.0.0.1"),
                ("x-forwarded-host", "models.example:80"),
            ]
        );
    }
}
