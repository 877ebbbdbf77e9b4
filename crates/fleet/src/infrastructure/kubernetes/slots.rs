//! Connections to clusters, of which the whole process has no more than a fixed number. A connection holds its slot from
//! before it is made until it is closed, whether it is in use or kept for the next time.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector, dns::Name},
    rt::TokioIo,
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tower::Service;

use crate::infrastructure::http::resolve;

/// How long somebody waits until another connection is closed.
const WAIT: Duration = Duration::from_secs(5);
/// For the connection alone.
const CONNECT: Duration = Duration::from_secs(5);
/// Part of the message, by which the reason is known again.
pub const NONE_FREE: &str = "no connection to clusters is free";

#[derive(Clone, Debug)]
pub struct Slots {
    free: Arc<Semaphore>,
    most: usize,
}

impl Slots {
    pub fn new(most: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// How many connections there are.
    pub fn taken(&self) -> usize {
        self.most.saturating_sub(self.free.available_permits())
    }

    /// Whether a connection may stay open when nobody uses it. With more than half of them taken it may not: so idle ones
    /// never take what others wait for.
    pub fn has_room(&self) -> bool {
        self.free.available_permits() >= (self.most / 2).max(1)
    }

    pub fn connector(&self) -> Connector {
        let mut http = HttpConnector::new_with_resolver(Resolver);
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT));
        Connector {
            http,
            slots: self.clone(),
        }
    }
}

/// Names of clusters lead to somebody's addresses, as literal ones do that a kubeconfig may have.
#[derive(Clone)]
struct Resolver;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move { resolve(name.as_str()).await })
    }
}

/// Connects when there is a slot.
#[derive(Clone)]
pub struct Connector {
    http: HttpConnector<Resolver>,
    slots: Slots,
}

impl Service<Uri> for Connector {
    type Response = Held;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Held, io::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.http.poll_ready(context).map_err(io::Error::other)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (mut http, slots) = (self.http.clone(), self.slots.clone());
        Box::pin(async move {
            let Ok(Ok(slot)) = tokio::time::timeout(WAIT, slots.free.acquire_owned()).await else {
                return Err(io::Error::other(NONE_FREE));
            };
            let stream = http.call(to).await.map_err(io::Error::other)?;
            Ok(Held { stream, _slot: slot })
        })
    }
}

/// A connection and its slot.
pub struct Held {
    stream: TokioIo<TcpStream>,
    _slot: OwnedSemaphorePermit,
}

impl Connection for Held {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl Read for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Held {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infrastructure::http::NOBODYS;

    /// Every system's resolver takes these for 169.254.169.254, as it would take a name that a stranger's server answers so.
    #[tokio::test]
    async fn a_name_does_not_lead_to_a_metadata_service() {
        for name in ["2852039166", "0xa9fea9fe"] {
            let to: Uri = format!("http://{name}:80").parse().unwrap();
            let refused = Slots::new(1).connector().call(to).await.err().unwrap();
            let mut words = String::new();
            let mut source: Option<&dyn std::error::Error> = Some(&refused);
            while let Some(error) = source {
                words.push_str(&error.to_string());
                source = error.source();
            }
            assert!(words.contains(NOBODYS), "{name}: {words}");
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let to: Uri = format!("http://localhost:{port}").parse().unwrap();
        Slots::new(1).connector().call(to).await.unwrap();
    }

    #[tokio::test]
    async fn no_more_are_made_than_there_are_slots() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to: Uri = format!("http://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let slots = Slots::new(2);
        let connect = || slots.connector().call(to.clone());
        let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
        assert_eq!((slots.taken(), slots.has_room()), (2, false));
        let third = tokio::spawn(connect());
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!third.is_finished(), "it waits");
        drop(one);
        let three = third.await.unwrap().unwrap();
        assert_eq!(slots.taken(), 2);
        let refused = connect().await.err().unwrap();
        assert!(refused.to_string().contains(NONE_FREE), "{refused}");
        drop((two, three));
        assert_eq!((slots.taken(), slots.has_room()), (0, true));
        connect().await.unwrap();
    }
}
