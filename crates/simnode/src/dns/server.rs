//! The sockets of the cluster DNS, and the way to the upstream server.

use std::{
    net::SocketAddr,
    sync::{Arc, RwLock},
    time::Duration,
};

use anyhow::Context as _;
use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::Name,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};

use super::{
    answer::{Authority, Reply, encode_udp},
    zone::Zone,
};

const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(2);
const TCP_IDLE: Duration = Duration::from_secs(10);

/// What both sockets share.
pub struct Resolver {
    pub authority: Authority,
    pub zone: Arc<RwLock<Zone>>,
    pub upstream: Option<SocketAddr>,
    pub forwards: Semaphore,
}

impl Resolver {
    fn look_up(&self, query: &Message) -> Reply {
        let zone = self
            .zone
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        self.authority.answer(query, &zone)
    }

    /// Completes what the zone could not answer.
    async fn finish(&self, query: &Message, raw: &[u8], reply: Reply) -> Message {
        match reply {
            Reply::Done(message) => message,
            Reply::Forward => match self.ask(raw).await {
                Ok(message) => message,
                Err(error) => {
                    tracing::debug!(%error, "upstream");
                    let mut message = Message::response(query.metadata.id, query.metadata.op_code);
                    message.add_queries(query.queries.iter().cloned());
                    message.metadata.response_code = ResponseCode::ServFail;
                    message
                }
            },
            Reply::ForwardTarget(message, target) => self.append_target(query, message, target).await,
        }
    }

    async fn append_target(&self, query: &Message, mut message: Message, target: Name) -> Message {
        let mut ask = Message::query();
        ask.metadata.recursion_desired = true;
        if let Some(question) = query.queries.first() {
            ask.add_query(Query::query(target, question.query_type()));
        }
        let answer = match ask.to_vec() {
            Ok(raw) => self.ask(&raw).await,
            Err(error) => Err(error.into()),
        };
        if let Ok(answer) = answer {
            message.add_answers(answer.answers);
            message.metadata.response_code = answer.metadata.response_code;
        } else {
            message.metadata.response_code = ResponseCode::ServFail;
        }
        message
    }

    async fn ask(&self, raw: &[u8]) -> anyhow::Result<Message> {
        let upstream = self.upstream.context("no upstream server")?;
        let _permit = self.forwards.acquire().await?;
        for _ in 0..2 {
            match timeout(UPSTREAM_TIMEOUT, ask_udp(upstream, raw)).await {
                Ok(Ok(message)) if message.metadata.truncation => {
                    return timeout(UPSTREAM_TIMEOUT, ask_tcp(upstream, raw)).await?;
                }
                Ok(answer) => return answer,
                Err(_) => (),
            }
        }
        anyhow::bail!("{upstream} did not answer in time")
    }
}

async fn ask_udp(upstream: SocketAddr, raw: &[u8]) -> anyhow::Result<Message> {
    let local = if upstream.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(upstream).await?;
    socket.send(raw).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let size = socket.recv(&mut buffer).await?;
        if size >= 2 && raw.get(..2) == buffer.get(..2) {
            return Ok(Message::from_vec(&buffer[..size])?);
        }
    }
}

async fn ask_tcp(upstream: SocketAddr, raw: &[u8]) -> anyhow::Result<Message> {
    let mut stream = TcpStream::connect(upstream).await?;
    write_framed(&mut stream, raw).await?;
    Ok(Message::from_vec(&read_framed(&mut stream).await?)?)
}

async fn write_framed(stream: &mut TcpStream, bytes: &[u8]) -> anyhow::Result<()> {
    let mut framed = u16::try_from(bytes.len())?.to_be_bytes().to_vec();
    framed.extend_from_slice(bytes);
    Ok(stream.write_all(&framed).await?)
}

async fn read_framed(stream: &mut TcpStream) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Serves UDP for ever. Answers from the zone are given at once; only forwarding takes a task.
pub async fn serve_udp(resolver: Arc<Resolver>, socket: UdpSocket) -> anyhow::Result<()> {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; 4096];
    loop {
        let (size, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // An ICMP error for an earlier reply shows up here; it says nothing about the socket.
            Err(error) => {
                tracing::debug!(%error, "udp");
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        let Ok(query) = Message::from_vec(&buffer[..size]) else {
            continue;
        };
        tracing::debug!(%peer, queries = ?query.queries, "udp");
        match resolver.look_up(&query) {
            Reply::Done(reply) => send_udp(&socket, peer, &query, &reply).await,
            reply => {
                let (resolver, socket, raw) = (resolver.clone(), socket.clone(), buffer[..size].to_vec());
                tokio::spawn(async move {
                    let reply = resolver.finish(&query, &raw, reply).await;
                    send_udp(&socket, peer, &query, &reply).await;
                });
            }
        }
    }
}

async fn send_udp(socket: &UdpSocket, peer: SocketAddr, query: &Message, reply: &Message) {
    let sent = match encode_udp(query, reply) {
        Ok(bytes) => socket
            .send_to(&bytes, peer)
            .await
            .map(|_| ())
            .map_err(anyhow::Error::from),
        Err(error) => Err(error),
    };
    if let Err(error) = sent {
        tracing::debug!(%peer, %error, "failed to reply");
    }
}

pub async fn serve_tcp(resolver: Arc<Resolver>, listener: TcpListener) -> anyhow::Result<()> {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let resolver = resolver.clone();
        tokio::spawn(async move {
            if let Err(error) = converse(&resolver, stream).await {
                tracing::debug!(%peer, %error, "tcp");
            }
        });
    }
}

/// Answers query after query until the client closes or falls silent.
async fn converse(resolver: &Resolver, mut stream: TcpStream) -> anyhow::Result<()> {
    while let Ok(Ok(raw)) = timeout(TCP_IDLE, read_framed(&mut stream)).await {
        let query = Message::from_vec(&raw)?;
        let reply = resolver.look_up(&query);
        let reply = resolver.finish(&query, &raw, reply).await;
        write_framed(&mut stream, &reply.to_vec()?).await?;
    }
    Ok(())
}
