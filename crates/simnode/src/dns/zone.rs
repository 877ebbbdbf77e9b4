//! What the cluster DNS knows: Services and their endpoints, trimmed to what answers need.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use k8s_openapi::api::core::v1::{Endpoints, Service};

/// Namespace and name, lower case as the API server enforces.
pub type Key = (String, String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceKind {
    ClusterIp(Vec<IpAddr>),
    Headless,
    ExternalName(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPort {
    pub name: String,
    /// Lower case: `tcp`, `udp`, `sctp`.
    pub protocol: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEntry {
    pub kind: ServiceKind,
    pub ports: Vec<NamedPort>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub ip: IpAddr,
    /// The label under the Service's name: the pod's hostname, else the address with dashes.
    pub host: String,
    pub ports: Vec<NamedPort>,
}

/// Services and endpoints by key, with the reverse index.
#[derive(Debug, Default)]
pub struct Zone {
    /// False until the first complete lists: what is missing then may only be unknown.
    pub ready: bool,
    services: HashMap<Key, ServiceEntry>,
    endpoints: HashMap<Key, Vec<Endpoint>>,
    namespaces: BTreeMap<String, usize>,
    addresses: HashMap<IpAddr, BTreeSet<Key>>,
}

impl Zone {
    pub fn service(&self, key: &Key) -> Option<&ServiceEntry> {
        self.services.get(key)
    }

    pub fn endpoints(&self, key: &Key) -> &[Endpoint] {
        self.endpoints.get(key).map_or(&[], Vec::as_slice)
    }

    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// The first Service that has this cluster IP.
    pub fn by_address(&self, ip: IpAddr) -> Option<&Key> {
        self.addresses.get(&ip)?.first()
    }

    pub fn len(&self) -> usize {
        self.services.len()
    }

    pub fn set_service(&mut self, key: Key, entry: ServiceEntry) {
        self.remove_service(&key);
        *self.namespaces.entry(key.0.clone()).or_default() += 1;
        if let ServiceKind::ClusterIp(ips) = &entry.kind {
            for ip in ips {
                self.addresses.entry(*ip).or_default().insert(key.clone());
            }
        }
        self.services.insert(key, entry);
    }

    pub fn remove_service(&mut self, key: &Key) {
        let Some(old) = self.services.remove(key) else {
            return;
        };
        if let Some(count) = self.namespaces.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(&key.0);
            }
        }
        if let ServiceKind::ClusterIp(ips) = old.kind {
            for ip in ips {
                if let Some(keys) = self.addresses.get_mut(&ip) {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.addresses.remove(&ip);
                    }
                }
            }
        }
    }

    pub fn set_endpoints(&mut self, key: Key, endpoints: Vec<Endpoint>) {
        if endpoints.is_empty() {
            self.endpoints.remove(&key);
        } else {
            self.endpoints.insert(key, endpoints);
        }
    }

    /// Drops every Service that a complete list did not name.
    pub fn retain_services(&mut self, seen: &HashSet<Key>) {
        let gone: Vec<Key> = self
            .services
            .keys()
            .filter(|key| !seen.contains(*key))
            .cloned()
            .collect();
        for key in gone {
            self.remove_service(&key);
        }
    }

    pub fn retain_endpoints(&mut self, seen: &HashSet<Key>) {
        self.endpoints.retain(|key, _| seen.contains(key));
    }
}

impl From<&Service> for ServiceEntry {
    fn from(service: &Service) -> Self {
        let spec = service.spec.clone().unwrap_or_default();
        let ports = spec
            .ports
            .unwrap_or_default()
            .into_iter()
            .filter_map(|port| named_port(port.name, port.protocol, port.port))
            .collect();
        let addresses = spec
            .cluster_ips
            .filter(|ips| !ips.is_empty())
            .unwrap_or_else(|| spec.cluster_ip.into_iter().collect());
        let kind = match spec.external_name {
            Some(name) if spec.type_.as_deref() == Some("ExternalName") => ServiceKind::ExternalName(name),
            _ => {
                let ips: Vec<IpAddr> = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
                if ips.is_empty() {
                    ServiceKind::Headless
                } else {
                    ServiceKind::ClusterIp(ips)
                }
            }
        };
        Self { kind, ports }
    }
}

/// The ready addresses. The server already counts unready ones as ready where the Service publishes them.
pub fn endpoints_of(object: &Endpoints) -> Vec<Endpoint> {
    let mut out = Vec::new();
    for subset in object.subsets.iter().flatten() {
        let ports: Vec<NamedPort> = subset
            .ports
            .iter()
            .flatten()
            .filter_map(|port| named_port(port.name.clone(), port.protocol.clone(), port.port))
            .collect();
        for address in subset.addresses.iter().flatten() {
            let Ok(ip) = address.ip.parse::<IpAddr>() else {
                continue;
            };
            let host = address.hostname.as_ref().map_or_else(
                || address.ip.replace(['.', ':'], "-"),
                |name| name.to_ascii_lowercase(),
            );
            out.push(Endpoint {
                ip,
                host,
                ports: ports.clone(),
            });
        }
    }
    out
}

fn named_port(name: Option<String>, protocol: Option<String>, port: i32) -> Option<NamedPort> {
    Some(NamedPort {
        name: name.unwrap_or_default().to_ascii_lowercase(),
        protocol: protocol.unwrap_or_else(|| "TCP".to_owned()).to_ascii_lowercase(),
        port: u16::try_from(port).ok()?,
    })
}
