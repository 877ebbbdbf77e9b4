//! Answers, from a zone filled as the API server would.

use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RecordType},
};
use k8s_openapi::api::core::v1::{Endpoints, Service};
use rstest::{fixture, rstest};
use serde_json::json;

use super::{
    answer::{Authority, Reply, TTL, encode_udp},
    zone::{ServiceEntry, Zone, endpoints_of},
};

fn service(zone: &mut Zone, name: &str, spec: serde_json::Value) {
    let service: Service = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    zone.set_service(("shop".into(), name.into()), ServiceEntry::from(&service));
}

fn endpoints(zone: &mut Zone, name: &str, subsets: serde_json::Value) {
    let object: Endpoints =
        serde_json::from_value(json!({"metadata": {"name": name}, "subsets": subsets})).unwrap();
    zone.set_endpoints(("shop".into(), name.into()), endpoints_of(&object));
}

#[fixture]
fn zone() -> Zone {
    let mut zone = Zone::default();
    zone.ready = true;
    service(
        &mut zone,
        "web",
        json!({"clusterIP": "10.96.0.7", "ports": [
            {"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]}),
    );
    service(
        &mut zone,
        "db",
        json!({"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]}),
    );
    endpoints(
        &mut zone,
        "db",
        json!([{
            "addresses": [{"ip": "10.1.0.2", "hostname": "db-0"}, {"ip": "10.1.0.3"}],
            "notReadyAddresses": [{"ip": "10.1.0.9", "hostname": "db-9"}],
            "ports": [{"name": "pg", "port": 5432, "protocol": "TCP"}]}]),
    );
    service(&mut zone, "empty", json!({"clusterIP": "None"}));
    service(
        &mut zone,
        "ext",
        json!({"type": "ExternalName", "externalName": "example.com"}),
    );
    service(
        &mut zone,
        "inner",
        json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"}),
    );
    service(
        &mut zone,
        "loop",
        json!({"type": "ExternalName", "externalName": "loop.shop.svc.cluster.local"}),
    );
    service(
        &mut zone,
        "six",
        json!({"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8", "fd00::8"]}),
    );
    zone
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    query
}

/// The reply as text: code, then the records of the answer.
fn ask(zone: &Zone, name: &str, kind: RecordType) -> String {
    let authority = Authority::new("cluster.local", false).unwrap();
    let Reply::Done(reply) = authority.answer(&query(name, kind), zone) else {
        return "forward".into();
    };
    let records: Vec<String> = reply
        .answers
        .iter()
        .map(|r| format!("{} {}", r.record_type(), r.data))
        .collect();
    let soa = if reply.authorities.is_empty() { "" } else { " +soa" };
    format!("{:?}{soa} [{}]", reply.metadata.response_code, records.join(", "))
}

#[rstest]
#[case::cluster_ip("web.shop.svc.cluster.local.", RecordType::A, "NoError [A 10.96.0.7]")]
#[case::any_case("WEB.Shop.SVC.cluster.LOCAL.", RecordType::A, "NoError [A 10.96.0.7]")]
#[case::no_ipv6("web.shop.svc.cluster.local.", RecordType::AAAA, "NoError +soa []")]
#[case::dual("six.shop.svc.cluster.local.", RecordType::AAAA, "NoError [AAAA fd00::8]")]
#[case::headless(
    "db.shop.svc.cluster.local.",
    RecordType::A,
    "NoError [A 10.1.0.2, A 10.1.0.3]"
)]
#[case::headless_empty("empty.shop.svc.cluster.local.", RecordType::A, "NoError +soa []")]
#[case::stateful_pod("db-0.db.shop.svc.cluster.local.", RecordType::A, "NoError [A 10.1.0.2]")]
#[case::pod_by_address("10-1-0-3.db.shop.svc.cluster.local.", RecordType::A, "NoError [A 10.1.0.3]")]
#[case::unready_pod("db-9.db.shop.svc.cluster.local.", RecordType::A, "NXDomain +soa []")]
#[case::pod_of_cluster_ip("x.web.shop.svc.cluster.local.", RecordType::A, "NXDomain +soa []")]
#[case::pod("10-1-0-3.shop.pod.cluster.local.", RecordType::A, "NoError [A 10.1.0.3]")]
#[case::unknown("nope.shop.svc.cluster.local.", RecordType::A, "NXDomain +soa []")]
#[case::search(
    "web.shop.svc.cluster.local.shop.svc.cluster.local.",
    RecordType::A,
    "NXDomain +soa []"
)]
#[case::search_short("example.com.cluster.local.", RecordType::A, "NXDomain +soa []")]
#[case::namespace("shop.svc.cluster.local.", RecordType::A, "NoError +soa []")]
#[case::no_namespace("other.svc.cluster.local.", RecordType::A, "NXDomain +soa []")]
#[case::srv(
    "_http._tcp.web.shop.svc.cluster.local.",
    RecordType::SRV,
    "NoError [SRV 0 100 80 web.shop.svc.cluster.local.]"
)]
#[case::srv_protocol("_http._udp.web.shop.svc.cluster.local.", RecordType::SRV, "NXDomain +soa []")]
#[case::srv_as_a("_http._tcp.web.shop.svc.cluster.local.", RecordType::A, "NoError +soa []")]
#[case::srv_headless(
    "_pg._tcp.db.shop.svc.cluster.local.",
    RecordType::SRV,
    "NoError [SRV 0 100 5432 db-0.db.shop.svc.cluster.local., SRV 0 100 5432 10-1-0-3.db.shop.svc.cluster.local.]"
)]
#[case::external("ext.shop.svc.cluster.local.", RecordType::A, "NoError [CNAME example.com.]")]
#[case::external_cname(
    "ext.shop.svc.cluster.local.",
    RecordType::CNAME,
    "NoError [CNAME example.com.]"
)]
#[case::external_inner(
    "inner.shop.svc.cluster.local.",
    RecordType::A,
    "NoError [CNAME web.shop.svc.cluster.local., A 10.96.0.7]"
)]
#[case::reverse(
    "7.0.96.10.in-addr.arpa.",
    RecordType::PTR,
    "NoError [PTR web.shop.svc.cluster.local.]"
)]
#[case::reverse_unknown("1.1.1.1.in-addr.arpa.", RecordType::PTR, "Refused []")]
#[case::outside("example.com.", RecordType::A, "Refused []")]
#[case::looks_alike("notcluster.local.", RecordType::A, "Refused []")]
fn answers(zone: Zone, #[case] name: &str, #[case] kind: RecordType, #[case] expected: &str) {
    assert_eq!(ask(&zone, name, kind), expected);
}

#[rstest]
fn an_alias_that_leads_to_itself_ends(zone: Zone) {
    assert!(ask(&zone, "loop.shop.svc.cluster.local.", RecordType::A).starts_with("ServFail"));
}

#[rstest]
fn outside_names_go_upstream_when_there_is_one(zone: Zone) {
    let authority = Authority::new("cluster.local", true).unwrap();
    assert_eq!(
        authority.answer(&query("example.com.", RecordType::A), &zone),
        Reply::Forward
    );
    let Reply::ForwardTarget(reply, target) =
        authority.answer(&query("ext.shop.svc.cluster.local.", RecordType::A), &zone)
    else {
        panic!("the target is outside");
    };
    assert_eq!(
        (reply.answers.len(), target.to_ascii().as_str()),
        (1, "example.com.")
    );
}

#[test]
fn nothing_is_denied_before_the_zone_is_filled() {
    assert_eq!(
        ask(&Zone::default(), "web.shop.svc.cluster.local.", RecordType::A),
        "ServFail []"
    );
}

#[rstest]
fn a_removed_service_is_gone_with_its_reverse_name(mut zone: Zone) {
    zone.retain_services(&std::iter::once(("shop".to_owned(), "db".to_owned())).collect());
    assert_eq!(zone.len(), 1);
    assert_eq!(
        ask(&zone, "web.shop.svc.cluster.local.", RecordType::A),
        "NXDomain +soa []"
    );
    assert_eq!(
        ask(&zone, "7.0.96.10.in-addr.arpa.", RecordType::PTR),
        "Refused []"
    );
    zone.remove_service(&("shop".to_owned(), "db".to_owned()));
    assert_eq!(
        ask(&zone, "shop.svc.cluster.local.", RecordType::A),
        "NXDomain +soa []"
    );
}

#[rstest]
fn replies_keep_id_and_ttl_and_are_cut_for_udp(mut zone: Zone) {
    let addresses: Vec<_> = (0..200).map(|i| json!({"ip": format!("10.2.0.{i}")})).collect();
    endpoints(&mut zone, "db", json!([{"addresses": addresses, "ports": []}]));
    let authority = Authority::new("cluster.local.", false).unwrap();
    let query = query("db.shop.svc.cluster.local.", RecordType::A);
    let Reply::Done(reply) = authority.answer(&query, &zone) else {
        panic!("ours")
    };
    assert_eq!(reply.metadata.id, query.metadata.id);
    assert!(reply.metadata.authoritative && reply.metadata.recursion_desired);
    assert!(reply.answers.iter().all(|r| r.ttl == TTL) && reply.answers.len() == 200);
    let bytes = encode_udp(&query, &reply).unwrap();
    let cut = Message::from_vec(&bytes).unwrap();
    assert!(bytes.len() <= 512 && cut.metadata.truncation);
    assert_eq!(cut.metadata.response_code, ResponseCode::NoError);
}
