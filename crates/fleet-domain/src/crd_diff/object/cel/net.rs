//! Addresses, networks and URLs. URLs are split only where every reader of URLs agrees; other ones are undecided.

use std::{net::IpAddr, rc::Rc, sync::LazyLock};

use regex::Regex;

use super::value::{Stop, Value, fails, undecided};

#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    host: String,
    port: String,
    path: String,
}

#[expect(clippy::expect_used, reason = "a constant that a test compiles")]
static PLAIN_URL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^([a-z][a-z0-9+.-]*)://([A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::([0-9]{1,5}))?",
        r"((?:/[A-Za-z0-9._~-]*)*)(?:\?[A-Za-z0-9._~=&-]*)?$"
    ))
    .expect("it is a pattern")
});

/// Nothing if it is none.
fn url(text: &str) -> Result<Option<Url>, Stop> {
    if let Some(parts) = PLAIN_URL.captures(text) {
        let part = |index| parts.get(index).map_or("", |part| part.as_str()).to_owned();
        return Ok(Some(Url {
            scheme: part(1),
            host: part(2),
            port: part(3),
            path: part(4),
        }));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    // Two slashes begin a host for some.
    if text.chars().all(plain) && !text.starts_with("//") {
        // Without a scheme, only a path from the root is one.
        return Ok(text.starts_with('/').then(|| Url {
            scheme: String::new(),
            host: String::new(),
            port: String::new(),
            path: text.to_owned(),
        }));
    }
    undecided(format!("the URL {text:?} is not plain"))
}

/// Neither zones nor IPv4 inside IPv6 are addresses for the server.
fn ip(text: &str) -> Option<IpAddr> {
    let address = text.parse::<IpAddr>().ok()?;
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => None,
        address => Some(address),
    }
}

fn cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = ip(address)?;
    let plain = length == "0" || (length.bytes().all(|c| c.is_ascii_digit()) && !length.starts_with('0'));
    let length = length.parse::<u8>().ok().filter(|_| plain)?;
    (length <= width(address)).then_some((address, length))
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, length: u8) -> u128 {
    let bits = match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    bits.checked_shr(u32::from(width(address) - length)).unwrap_or(0)
}

fn contains(network: (IpAddr, u8), address: IpAddr) -> bool {
    network.0.is_ipv4() == address.is_ipv4() && masked(network.0, network.1) == masked(address, network.1)
}

pub fn call<'a>(name: &str, args: &[Value<'a>]) -> Option<Result<Value<'a>, Stop>> {
    let no = |what: &str, text: &str| fails(format!("{text:?} is no {what}"));
    let yes = |yes: bool| Ok(Value::Bool(yes));
    let words = |words: &str| Ok(Value::text(words));
    Some(match (name, args) {
        ("isIP", [Value::Text(text)]) => yes(ip(text).is_some()),
        ("isCIDR", [Value::Text(text)]) => yes(cidr(text).is_some()),
        ("isURL", [Value::Text(text)]) => url(text).map(|url| Value::Bool(url.is_some())),
        ("ip", [Value::Text(text)]) => {
            ip(text).map_or_else(|| no("IP address", text), |ip| Ok(Value::Ip(ip)))
        }
        ("cidr", [Value::Text(text)]) => {
            cidr(text).map_or_else(|| no("CIDR", text), |(ip, length)| Ok(Value::Cidr(ip, length)))
        }
        ("url", [Value::Text(text)]) => match url(text) {
            Ok(Some(url)) => Ok(Value::Url(Rc::new(url))),
            Ok(None) => no("URL", text),
            Err(stop) => Err(stop),
        },
        ("family", [Value::Ip(ip)]) => Ok(Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        ("isLoopback", [Value::Ip(ip)]) => yes(ip.is_loopback()),
        ("isUnspecified", [Value::Ip(ip)]) => yes(ip.is_unspecified()),
        ("ip", [Value::Cidr(ip, _)]) => Ok(Value::Ip(*ip)),
        ("prefixLength", [Value::Cidr(_, length)]) => Ok(Value::Int((*length).into())),
        ("containsIP", [Value::Cidr(network, length), Value::Ip(ip)]) => {
            yes(contains((*network, *length), *ip))
        }
        ("containsIP", [Value::Cidr(network, length), Value::Text(text)]) => match ip(text) {
            Some(ip) => yes(contains((*network, *length), ip)),
            None => no("IP address", text),
        },
        ("containsCIDR", [Value::Cidr(network, length), inner]) => {
            let (address, inner) = match inner {
                Value::Cidr(address, inner) => (*address, *inner),
                Value::Text(text) => match cidr(text) {
                    Some(inner) => inner,
                    None => return Some(no("CIDR", text)),
                },
                _ => return None,
            };
            yes(inner >= *length && contains((*network, *length), address))
        }
        ("getScheme", [Value::Url(url)]) => words(&url.scheme),
        ("getHostname", [Value::Url(url)]) => words(&url.host),
        ("getHost", [Value::Url(url)]) if url.port.is_empty() => words(&url.host),
        ("getHost", [Value::Url(url)]) => words(&format!("{}:{}", url.host, url.port)),
        ("getPort", [Value::Url(url)]) => words(&url.port),
        ("getEscapedPath", [Value::Url(url)]) => words(&url.path),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://example.com:8443/a/b?x=1", Some(("https", "example.com", "8443", "/a/b")))]
    #[case("http://a", Some(("http", "a", "", "")))]
    #[case("/only/path", Some(("", "", "", "/only/path")))]
    #[case("example.com", None)]
    #[case("", None)]
    fn urls(#[case] text: &str, #[case] parts: Option<(&str, &str, &str, &str)>) {
        let parts = parts.map(|(scheme, host, port, path)| Url {
            scheme: scheme.into(),
            host: host.into(),
            port: port.into(),
            path: path.into(),
        });
        assert_eq!(url(text), Ok(parts));
    }

    #[rstest]
    #[case("http://[::1]/")]
    #[case("http://a b/")]
    #[case("//a/b")]
    #[case("http://user@host/")]
    fn urls_that_readers_read_differently(#[case] text: &str) {
        assert!(url(text).is_err());
    }

    #[rstest]
    #[case("10.0.0.0/8", "10.1.2.3", true)]
    #[case("10.0.0.0/8", "11.1.2.3", false)]
    #[case("0.0.0.0/0", "11.1.2.3", true)]
    #[case("fd00::/8", "fd12::1", true)]
    #[case("fd00::/8", "10.0.0.1", false)]
    fn networks(#[case] network: &str, #[case] address: &str, #[case] inside: bool) {
        assert_eq!(contains(cidr(network).unwrap(), ip(address).unwrap()), inside);
    }

    #[rstest]
    #[case("10.0.0.0")]
    #[case("10.0.0.0/33")]
    #[case("10.0.0.0/08")]
    #[case("10.0.0.0/+8")]
    #[case("::ffff:1.2.3.4/100")]
    fn no_networks(#[case] text: &str) {
        assert_eq!(cidr(text), None);
    }
}
