//! Addresses: nodes from the end of the range, pods from its beginning, none twice at a time.

use std::{collections::HashSet, net::Ipv4Addr, str::FromStr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    base: u32,
    prefix: u8,
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not an IPv4 range such as 10.233.0.0/16, of /8 to /28");
        let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
        let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        if !(8..=28).contains(&prefix) {
            return Err(bad());
        }
        Ok(Self {
            base: u32::from(address) & (u32::MAX << (32 - prefix)),
            prefix,
        })
    }
}

impl Cidr {
    pub fn size(self) -> u32 {
        1 << (32 - self.prefix)
    }

    /// Counted down from the last usable address.
    pub fn nth_last(self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.base + self.size() - 2 - index)
    }
}

/// Which pod addresses are in use.
#[derive(Debug)]
pub struct Ipam {
    base: u32,
    /// Usable offsets are 1 up to this, not included.
    end: u32,
    next: u32,
    used: HashSet<u32>,
}

impl Ipam {
    pub fn new(cidr: Cidr, nodes: u32) -> Self {
        Self {
            base: cidr.base,
            end: cidr.size() - 1 - nodes,
            next: 1,
            used: HashSet::new(),
        }
    }

    /// A free address; recently freed ones come last, as a real node's do.
    pub fn allocate(&mut self) -> Option<Ipv4Addr> {
        for _ in 1..self.end {
            let offset = self.next;
            self.next = if self.next + 1 < self.end {
                self.next + 1
            } else {
                1
            };
            if self.used.insert(offset) {
                return Some(Ipv4Addr::from(self.base + offset));
            }
        }
        None
    }

    /// Keeps an address that a pod already has; false if another pod has it (or it is not of this range).
    pub fn reserve(&mut self, ip: Ipv4Addr) -> bool {
        match u32::from(ip).checked_sub(self.base) {
            Some(offset) if offset > 0 && offset < self.end => self.used.insert(offset),
            _ => false,
        }
    }

    pub fn release(&mut self, ip: Ipv4Addr) {
        if let Some(offset) = u32::from(ip).checked_sub(self.base) {
            self.used.remove(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.5.3.1/16", Some("10.5.255.254"))]
    #[case("10.5.3.0/28", Some("10.5.3.14"))]
    #[case("10.5.3.0", None)]
    #[case("10.5.3.0/30", None)]
    #[case("fd00::/64", None)]
    fn ranges_are_read(#[case] text: &str, #[case] last: Option<&str>) {
        let cidr = text.parse::<Cidr>().ok();
        assert_eq!(cidr.map(|cidr| cidr.nth_last(0).to_string()).as_deref(), last);
    }

    #[test]
    fn addresses_are_unique_and_come_back() {
        let cidr: Cidr = "10.5.3.0/28".parse().unwrap();
        let mut ipam = Ipam::new(cidr, 2);
        assert!(ipam.reserve(Ipv4Addr::new(10, 5, 3, 2)));
        assert!(!ipam.reserve(Ipv4Addr::new(10, 5, 3, 2)));
        assert!(!ipam.reserve(Ipv4Addr::new(10, 9, 9, 9)));
        let all: Vec<_> = std::iter::from_fn(|| ipam.allocate()).collect();
        // 16 less network, broadcast, two nodes and the reserved one.
        assert_eq!(all.len(), 11);
        assert!(all.iter().all(|ip| *ip < cidr.nth_last(1) && ip.octets()[3] != 2));
        ipam.release(all[4]);
        assert_eq!(ipam.allocate(), Some(all[4]));
        assert_eq!(ipam.allocate(), None);
    }
}
