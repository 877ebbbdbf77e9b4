//! From a query and the zone to a reply; no IO.

use std::net::IpAddr;

use hickory_proto::{
    op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV},
    },
};

use super::zone::{Endpoint, Key, NamedPort, ServiceKind, Zone};

/// Seconds; short, since Services in tests come and go.
pub const TTL: u32 = 5;
/// The UDP payload that we announce: fits every link without fragments.
const PAYLOAD: u16 = 1232;
const MAX_CNAMES: usize = 8;

/// What to do with a query.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// Answered from the zone (or refused).
    Done(Message),
    /// Outside the zone: ask the upstream server.
    Forward,
    /// An alias whose target is outside the zone: ask the upstream server for it and append what it says.
    ForwardTarget(Message, Name),
}

/// What the zone says about one name.
#[derive(Debug, PartialEq)]
enum Found {
    Records(Vec<RData>),
    NxDomain,
    /// Not ours.
    Outside,
}

/// The part of the name space that we answer for.
#[derive(Debug, Clone)]
pub struct Authority {
    domain: Name,
    forwards: bool,
}

impl Authority {
    /// `domain` such as `cluster.local`.
    pub fn new(domain: &str, forwards: bool) -> anyhow::Result<Self> {
        let mut domain = Name::from_ascii(domain)?.to_lowercase();
        domain.set_fqdn(true);
        Ok(Self { domain, forwards })
    }

    /// Answers `query` from `zone`.
    pub fn answer(&self, query: &Message, zone: &Zone) -> Reply {
        let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
        reply.metadata = Metadata::response_from_request(&query.metadata);
        reply.metadata.recursion_available = self.forwards;
        reply.add_queries(query.queries.iter().cloned());
        if query.edns.is_some() {
            reply.set_edns(Edns::new().set_max_payload(PAYLOAD).set_version(0).to_owned());
        }
        let question = match query.queries.as_slice() {
            _ if query.metadata.message_type != MessageType::Query => {
                return failed(reply, ResponseCode::FormErr);
            }
            _ if query.metadata.op_code != OpCode::Query => return failed(reply, ResponseCode::NotImp),
            [question] if question.query_class() == DNSClass::IN => question,
            [_] => return failed(reply, ResponseCode::Refused),
            _ => return failed(reply, ResponseCode::FormErr),
        };
        if !zone.ready {
            return failed(reply, ResponseCode::ServFail);
        }
        self.resolve(zone, question, reply)
    }

    fn resolve(&self, zone: &Zone, question: &Query, mut reply: Message) -> Reply {
        let kind = question.query_type();
        let mut name = question.name().clone();
        for step in 0..=MAX_CNAMES {
            match self.look_up(zone, &name.to_lowercase(), kind) {
                Found::Outside if step > 0 && self.forwards => return Reply::ForwardTarget(reply, name),
                Found::Outside if step > 0 => return Reply::Done(reply),
                Found::Outside if self.forwards => return Reply::Forward,
                Found::Outside => return failed(reply, ResponseCode::Refused),
                Found::NxDomain => {
                    reply.metadata.authoritative = true;
                    reply.metadata.response_code = ResponseCode::NXDomain;
                    reply.add_authority(self.soa());
                    return Reply::Done(reply);
                }
                Found::Records(data) => {
                    reply.metadata.authoritative = true;
                    let alias = match data.as_slice() {
                        [RData::CNAME(CNAME(target))] if kind != RecordType::CNAME => Some(target.clone()),
                        _ => None,
                    };
                    if data.is_empty() {
                        reply.add_authority(self.soa());
                    }
                    reply.add_answers(
                        data.into_iter()
                            .map(|data| Record::from_rdata(name.clone(), TTL, data)),
                    );
                    match alias {
                        Some(target) => name = target,
                        None => return Reply::Done(reply),
                    }
                }
            }
        }
        failed(reply, ResponseCode::ServFail)
    }

    /// `name` is lower case.
    fn look_up(&self, zone: &Zone, name: &Name, kind: RecordType) -> Found {
        if !self.domain.zone_of(name) {
            return match name.parse_arpa_name() {
                Ok(net) if net.prefix_len() == net.max_prefix_len() => self.reverse(zone, net.addr(), kind),
                _ => Found::Outside,
            };
        }
        let depth = usize::from(name.num_labels() - self.domain.num_labels());
        let labels: Vec<String> = name
            .iter()
            .take(depth)
            .map(|label| String::from_utf8_lossy(label).into_owned())
            .collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        match labels.as_slice() {
            [] => Found::Records(match kind {
                RecordType::SOA => vec![self.soa().data],
                RecordType::NS => vec![RData::NS(NS(self.name_server()))],
                _ => Vec::new(),
            }),
            ["svc" | "pod" | "dns"] | ["ns", "dns"] => Found::Records(Vec::new()),
            [namespace, "svc" | "pod"] => exists(zone.has_namespace(namespace)),
            [address, _, "pod"] => pod_address(address, kind),
            [service, namespace, "svc"] => {
                self.service(zone, &((*namespace).to_owned(), (*service).to_owned()), kind)
            }
            [host, service, namespace, "svc"] => {
                let key = ((*namespace).to_owned(), (*service).to_owned());
                if host.starts_with('_') {
                    let wanted = host.trim_start_matches('_');
                    return exists(
                        zone.service(&key)
                            .is_some_and(|s| s.ports.iter().any(|p| p.protocol == wanted)),
                    );
                }
                endpoint_addresses(zone, &key, host, kind)
            }
            [port, protocol, service, namespace, "svc"]
                if port.starts_with('_') && protocol.starts_with('_') =>
            {
                self.port(
                    zone,
                    &((*namespace).to_owned(), (*service).to_owned()),
                    (port.trim_start_matches('_'), protocol.trim_start_matches('_')),
                    kind,
                )
            }
            _ => Found::NxDomain,
        }
    }

    fn service(&self, zone: &Zone, key: &Key, kind: RecordType) -> Found {
        let Some(service) = zone.service(key) else {
            return Found::NxDomain;
        };
        match &service.kind {
            ServiceKind::ExternalName(target) => alias(target),
            ServiceKind::ClusterIp(ips) => match kind {
                RecordType::SRV => self.srv(key, &service.ports),
                _ => addresses(ips.iter().copied(), kind),
            },
            ServiceKind::Headless => {
                let endpoints = zone.endpoints(key);
                match kind {
                    RecordType::SRV => self.headless_srv(key, endpoints, |_| true),
                    _ => addresses(endpoints.iter().map(|e| e.ip), kind),
                }
            }
        }
    }

    fn port(&self, zone: &Zone, key: &Key, (port, protocol): (&str, &str), kind: RecordType) -> Found {
        let Some(service) = zone.service(key) else {
            return Found::NxDomain;
        };
        let wanted = |p: &NamedPort| p.name == port && p.protocol == protocol;
        let found = match &service.kind {
            ServiceKind::ExternalName(_) => return Found::NxDomain,
            ServiceKind::ClusterIp(_) => self.srv(
                key,
                &service
                    .ports
                    .iter()
                    .filter(|p| wanted(p))
                    .cloned()
                    .collect::<Vec<_>>(),
            ),
            ServiceKind::Headless => self.headless_srv(key, zone.endpoints(key), wanted),
        };
        match found {
            Found::Records(data) if data.is_empty() => Found::NxDomain,
            Found::Records(data) if kind == RecordType::SRV => Found::Records(data),
            Found::Records(_) => Found::Records(Vec::new()),
            other => other,
        }
    }

    fn srv(&self, key: &Key, ports: &[NamedPort]) -> Found {
        let Some(target) = self.service_name(key) else {
            return Found::NxDomain;
        };
        Found::Records(
            ports
                .iter()
                .map(|p| RData::SRV(SRV::new(0, 100, p.port, target.clone())))
                .collect(),
        )
    }

    fn headless_srv(&self, key: &Key, endpoints: &[Endpoint], wanted: impl Fn(&NamedPort) -> bool) -> Found {
        let Some(service) = self.service_name(key) else {
            return Found::NxDomain;
        };
        let mut data = Vec::new();
        for endpoint in endpoints {
            let Ok(target) = service.prepend_label(endpoint.host.as_str()) else {
                continue;
            };
            for port in endpoint.ports.iter().filter(|p| wanted(p)) {
                data.push(RData::SRV(SRV::new(0, 100, port.port, target.clone())));
            }
        }
        Found::Records(data)
    }

    fn reverse(&self, zone: &Zone, ip: IpAddr, kind: RecordType) -> Found {
        match zone.by_address(ip).and_then(|key| self.service_name(key)) {
            Some(name) if kind == RecordType::PTR => Found::Records(vec![RData::PTR(PTR(name))]),
            Some(_) => Found::Records(Vec::new()),
            None => Found::Outside,
        }
    }

    fn service_name(&self, (namespace, name): &Key) -> Option<Name> {
        Name::from_labels([name.as_bytes(), namespace.as_bytes(), b"svc"])
            .ok()?
            .append_domain(&self.domain)
            .ok()
    }

    fn name_server(&self) -> Name {
        Name::from_labels([&b"ns"[..], b"dns"])
            .and_then(|name| name.append_domain(&self.domain))
            .unwrap_or_else(|_| self.domain.clone())
    }

    /// Its minimum is how long a client may remember that a name does not exist.
    fn soa(&self) -> Record {
        let mailbox = self
            .domain
            .prepend_label("hostmaster")
            .unwrap_or_else(|_| self.domain.clone());
        let soa = SOA::new(self.name_server(), mailbox, 1, 7200, 1800, 86400, TTL);
        Record::from_rdata(self.domain.clone(), TTL, RData::SOA(soa))
    }
}

/// Writes a reply for UDP: cut with the truncation flag where it is larger than the client takes.
pub fn encode_udp(query: &Message, reply: &Message) -> anyhow::Result<Vec<u8>> {
    let bytes = reply.to_vec()?;
    if bytes.len() <= usize::from(query.max_payload().min(PAYLOAD)) {
        return Ok(bytes);
    }
    Ok(reply.truncate().to_vec()?)
}

/// A reply with an error code and nothing else.
pub fn failed(mut reply: Message, code: ResponseCode) -> Reply {
    reply.metadata.response_code = code;
    Reply::Done(reply)
}

fn exists(yes: bool) -> Found {
    if yes {
        Found::Records(Vec::new())
    } else {
        Found::NxDomain
    }
}

fn alias(target: &str) -> Found {
    match Name::from_ascii(target) {
        Ok(mut name) => {
            name.set_fqdn(true);
            Found::Records(vec![RData::CNAME(CNAME(name))])
        }
        Err(_) => Found::NxDomain,
    }
}

fn addresses(ips: impl Iterator<Item = IpAddr>, kind: RecordType) -> Found {
    let data = ips.filter_map(|ip| match (ip, kind) {
        (IpAddr::V4(ip), RecordType::A | RecordType::ANY) => Some(RData::A(A(ip))),
        (IpAddr::V6(ip), RecordType::AAAA | RecordType::ANY) => Some(RData::AAAA(AAAA(ip))),
        _ => None,
    });
    let mut data: Vec<RData> = data.collect();
    let mut seen = std::collections::HashSet::new();
    data.retain(|record| seen.insert(record.clone()));
    Found::Records(data)
}

fn endpoint_addresses(zone: &Zone, key: &Key, host: &str, kind: RecordType) -> Found {
    if zone
        .service(key)
        .is_none_or(|service| service.kind != ServiceKind::Headless)
    {
        return Found::NxDomain;
    }
    let ips: Vec<IpAddr> = zone
        .endpoints(key)
        .iter()
        .filter(|e| e.host == host)
        .map(|e| e.ip)
        .collect();
    if ips.is_empty() {
        Found::NxDomain
    } else {
        addresses(ips.into_iter(), kind)
    }
}

/// `10-1-2-3.namespace.pod`: the address is in the name.
fn pod_address(label: &str, kind: RecordType) -> Found {
    let parsed = label.replace('-', ".").parse().map(IpAddr::V4);
    match parsed.or_else(|_| label.replace('-', ":").parse().map(IpAddr::V6)) {
        Ok(ip) => addresses(std::iter::once(ip), kind),
        Err(_) => Found::NxDomain,
    }
}
