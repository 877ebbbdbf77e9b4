//! Whose request it is before anybody has said who they are: the address that logins are counted by.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

/// Addresses that begin alike, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no network; write it as 10.0.0.0/8 or fd00::/8, or a single address")]
pub struct NoNetwork(pub String);

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let bad = || NoNetwork(text.to_owned());
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| bad())?)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        if bits > all {
            return Err(bad());
        }
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    pub fn has(&self, other: IpAddr) -> bool {
        let beginning = |bits: u128, all: u32| bits.checked_shr(all - u32::from(self.bits)).unwrap_or(0);
        match (self.address, other) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => {
                beginning(u32::from(ours).into(), 32) == beginning(u32::from(other).into(), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(other)) => {
                beginning(ours.into(), 128) == beginning(other.into(), 128)
            }
            _ => false,
        }
    }
}

/// Who sent a request: the peer, or whom the proxies that are ours name. Each adds the address that it sees at the end of
/// `X-Forwarded-For`, so the last one that is not ours is the last that we can believe; whatever is before it, the sender
/// can have written.
pub fn sender<'h>(
    peer: IpAddr,
    forwarded_for: impl DoubleEndedIterator<Item = &'h str>,
    ours: &[Network],
) -> IpAddr {
    let is_ours = |address: IpAddr| ours.iter().any(|network| network.has(address));
    let mut last = peer.to_canonical();
    let named = forwarded_for.rev().flat_map(|line| line.rsplit(','));
    for text in named {
        if !is_ours(last) {
            break;
        }
        // What is no address was not written by a proxy of ours.
        let Some(address) = address(text) else { break };
        last = address;
    }
    last
}

/// With or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let plain = text
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    let found = plain.or_else(|_| text.parse().map(|socket: std::net::SocketAddr| socket.ip()));
    found.ok().map(|address| address.to_canonical())
}

/// What an address is counted by. Who has one of IPv6 has as many of the same beginning as they like.
pub fn counted_by(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let beginning = u128::from(address) & (u128::MAX << 64);
            format!("{}/64", Ipv6Addr::from(beginning))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_by(peer: &str, lines: &[&str], ours: &[&str]) -> String {
        let ours: Vec<Network> = ours.iter().map(|text| text.parse().unwrap()).collect();
        sender(peer.parse().unwrap(), lines.iter().copied(), &ours).to_string()
    }

    #[test]
    fn only_proxies_of_ours_are_believed() {
        let ours = ["10.0.0.0/8", "fd00::/8"];
        for (peer, lines, sender) in [
            // Nobody of ours: what they write is theirs.
            ("203.0.113.9", &["198.51.100.1"][..], "203.0.113.9"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            // What the sender wrote is before what our proxy added.
            ("10.0.0.1", &["1.2.3.4, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["1.2.3.4", "198.51.100.1"], "198.51.100.1"),
            // Through two of ours.
            ("10.0.0.1", &["1.2.3.4, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),
            // All of ours: the first of them asked.
            ("10.0.0.1", &["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["unknown"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1, nonsense"], "10.0.0.1"),
            ("fd00::1", &["[2001:db8::7]:443"], "2001:db8::7"),
            ("::ffff:10.0.0.1", &["198.51.100.1:1234"], "198.51.100.1"),
        ] {
            assert_eq!(sent_by(peer, lines, &ours), sender, "{peer} {lines:?}");
        }
        assert_eq!(sent_by("10.0.0.1", &["198.51.100.1"], &[]), "10.0.0.1");
        assert_eq!(sent_by("10.0.0.1", &["1.1.1.1"], &["0.0.0.0/0"]), "1.1.1.1");
    }

    #[test]
    fn networks_are_read_as_people_write_them() {
        for bad in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "example.com",
            "10.0.0.0/",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        assert_eq!("10.0.0.7".parse::<Network>().unwrap().to_string(), "10.0.0.7/32");
    }

    #[test]
    fn many_addresses_of_one_sender_are_counted_together() {
        let by = |text: &str| counted_by(text.parse().unwrap());
        assert_eq!(by("2001:db8:1:2::1"), by("2001:db8:1:2:ffff::9"));
        assert_ne!(by("2001:db8:1:2::1"), by("2001:db8:1:3::1"));
        assert_eq!(by("198.51.100.1"), "198.51.100.1");
    }
}
