//! A door in front of a real API server that can be shut, or opened without anybody answering, or jammed.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch::{Receiver, Sender},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Shut,
    Silent,
    Jammed,
}

#[derive(Clone)]
pub struct Door {
    pub address: SocketAddr,
    state: Arc<Sender<State>>,
    /// Connections that lead through it.
    through: Arc<AtomicUsize>,
}

impl Door {
    pub async fn before(target: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let door = Self {
            address: listener.local_addr()?,
            state: Arc::new(Sender::new(State::Open)),
            through: Arc::default(),
        };
        let inside = door.clone();
        tokio::spawn(async move {
            while let Ok((outer, _)) = listener.accept().await {
                let (door, target) = (inside.clone(), target.clone());
                tokio::spawn(async move {
                    let mut state = door.state.subscribe();
                    let now = *state.borrow_and_update();
                    match now {
                        State::Shut => {}
                        State::Silent => drop(state.changed().await),
                        State::Open | State::Jammed => {
                            if let Ok(inner) = TcpStream::connect(target).await {
                                door.through.fetch_add(1, Ordering::SeqCst);
                                carry(outer, inner, state).await;
                                door.through.fetch_sub(1, Ordering::SeqCst);
                            }
                        }
                    }
                });
            }
        });
        Ok(door)
    }

    fn set(&self, state: State) {
        self.state.send_replace(state);
    }

    /// Connections end at once.
    pub fn shut(&self) {
        self.set(State::Shut);
    }

    /// Connections are taken and nobody answers; those from before end.
    pub fn silent(&self) {
        self.set(State::Silent);
    }

    /// Connections stay as they are, and carry nothing any more, as when a cable is pulled: nobody is told.
    pub fn jam(&self) {
        self.set(State::Jammed);
    }

    pub fn open(&self) {
        self.set(State::Open);
    }

    pub fn through(&self) -> usize {
        self.through.load(Ordering::SeqCst)
    }
}

/// Until one side ends it, or the door does.
async fn carry(outer: TcpStream, inner: TcpStream, mut state: Receiver<State>) {
    let ((from_outer, to_outer), (from_inner, to_inner)) = (outer.into_split(), inner.into_split());
    tokio::select! {
        () = one_way(from_outer, to_inner, state.clone()) => {}
        () = one_way(from_inner, to_outer, state.clone()) => {}
        _ = state.wait_for(|state| matches!(state, State::Shut | State::Silent)) => {}
    }
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: Receiver<State>,
) {
    let mut some = vec![0; 1 << 14];
    loop {
        let read = from.read(&mut some).await;
        // What was on its way when it jammed waits too, and so does the news that a side has ended it.
        if state.wait_for(|state| *state != State::Jammed).await.is_err() {
            return;
        }
        match read {
            Ok(length) if length > 0 => {
                if to.write_all(&some[..length]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}
