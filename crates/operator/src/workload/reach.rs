//! How this process gets to a workload: by its address inside the cluster, or through the API server.

use std::{borrow::Cow, error::Error, io, time::Duration};

use hyper_util::client::legacy::connect::HttpConnector;
use kube::{Client, client::Body};

use crate::settings::Reach;

/// `api` is the client of the API server; workloads that are reached directly get a plain one.
pub fn client(api: Client, reach: Reach) -> Client {
    match reach {
        Reach::Proxy => api,
        Reach::Direct => {
            let executor = hyper_util::rt::TokioExecutor::new();
            let mut connector = HttpConnector::new();
            connector.set_connect_timeout(Some(Duration::from_secs(3)));
            // A connection that is kept leads to the same pod for as long as that lives, and it may be an old one.
            let plain = hyper_util::client::legacy::Client::builder(executor)
                .pool_max_idle_per_host(0)
                .build::<_, Body>(connector);
            Client::new(plain, "default")
        }
    }
}

/// What a path is appended to: of a Service and its cluster address.
pub fn base(reach: Reach, namespace: &str, service: &str, address: &str, port: i32) -> String {
    match reach {
        Reach::Proxy => format!("/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy"),
        Reach::Direct => format!("http://{}:{port}", host(address)),
    }
}

/// An address as it stands in a URL.
fn host(address: &str) -> Cow<'_, str> {
    if address.contains(':') {
        Cow::Owned(format!("[{address}]"))
    } else {
        Cow::Borrowed(address)
    }
}

/// The cause at the bottom: "Connection refused" says more than "client error (Connect)".
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let unreached = deepest.is::<tokio::time::error::Elapsed>()
        || deepest.downcast_ref::<io::Error>().is_some_and(|error| {
            use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
            matches!(error.kind(), HostUnreachable | NetworkUnreachable | TimedOut)
        });
    // A network gives up on an absent host after about as long as we do: told in one way, or the status would flap.
    if unreached {
        "its address does not answer".to_owned()
    } else {
        deepest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_make_urls() {
        let url = |address: &str| base(Reach::Direct, "ns", "svc", address, 8000);
        assert_eq!(url("10.0.0.1"), "http://10.0.0.1:8000");
        assert_eq!(url("fd00:10::1"), "http://[fd00:10::1]:8000");
        assert!(url("fd00:10::1").parse::<http::Uri>().is_ok());
    }
}
