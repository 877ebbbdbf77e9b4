//! An answer that is counted while it passes.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::exchange::Exchange;

/// Passes every frame on when it comes, as it comes. Dropped by the server when the client goes away, and with it the
/// answer of Ollama, which closes that connection and ends the work.
pub struct Counted<B: Body<Data = Bytes> + Unpin> {
    inner: B,
    exchange: Exchange,
}

impl<B: Body<Data = Bytes> + Unpin> Counted<B> {
    pub fn new(inner: B, exchange: Exchange) -> Self {
        Self { inner, exchange }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(frame) = &polled {
            match frame {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.exchange.data(data);
                    }
                }
                Some(Err(_)) => self.exchange.broken(),
                None => self.exchange.complete(),
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Drop for Counted<B> {
    fn drop(&mut self) {
        // With a known length the server does not ask for more than that.
        if self.inner.is_end_stream() {
            self.exchange.complete();
        }
    }
}
