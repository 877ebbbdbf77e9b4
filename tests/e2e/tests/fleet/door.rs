//! A door in front of a real API server that can be shut, or opened without anybody answering.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};

const OPEN: u8 = 0;
const SHUT: u8 = 1;
const SILENT: u8 = 2;

#[derive(Clone)]
pub struct Door {
    pub address: SocketAddr,
    state: Arc<AtomicU8>,
    changed: Arc<Notify>,
}

impl Door {
    pub async fn before(target: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let door = Self {
            address: listener.local_addr()?,
            state: Arc::new(AtomicU8::new(OPEN)),
            changed: Arc::default(),
        };
        let inside = door.clone();
        tokio::spawn(async move {
            while let Ok((mut outer, _)) = listener.accept().await {
                let (door, target) = (inside.clone(), target.clone());
                tokio::spawn(async move {
                    let changed = door.changed.notified();
                    match door.state.load(Ordering::SeqCst) {
                        SHUT => {}
                        SILENT => changed.await,
                        _ => {
                            if let Ok(mut inner) = TcpStream::connect(target).await {
                                tokio::select! {
                                    _ = tokio::io::copy_bidirectional(&mut outer, &mut inner) => {}
                                    () = changed => {}
                                }
                            }
                        }
                    }
                });
            }
        });
        Ok(door)
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Connections end at once.
    pub fn shut(&self) {
        self.set(SHUT);
    }

    /// Connections are taken and nobody answers.
    pub fn silent(&self) {
        self.set(SILENT);
    }

    pub fn open(&self) {
        self.set(OPEN);
    }
}
