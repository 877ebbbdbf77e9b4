//! The beginning of a request, read for the model's name and then passed on as it came.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::scan::Scanner;

/// So much is read before a request is given its place. Almost every request is complete by then, so that a slow
/// client holds no place, and one that goes away while it waits is noticed.
const FRONT: usize = 64 * 1024;

/// A request's body, of which some may already be here.
pub struct Peeked<B> {
    front: VecDeque<Frame<Bytes>>,
    rest: B,
}

impl<B: Body<Data = Bytes> + Unpin> Peeked<B> {
    /// Nothing is read.
    pub fn untouched(rest: B) -> Self {
        Self {
            front: VecDeque::new(),
            rest,
        }
    }

    /// Reads the beginning and looks for the model's name in it.
    pub async fn read(mut rest: B) -> Result<(Self, Option<String>), B::Error> {
        let (mut scanner, mut model) = (Scanner::default(), None);
        let mut front = VecDeque::new();
        let mut length = 0;
        while length < FRONT
            && let Some(frame) = rest.frame().await
        {
            let frame = frame?;
            if let Some(data) = frame.data_ref() {
                length += data.len();
                scanner.feed(data, &mut |path, value| {
                    if value.quoted && matches!(path, [key] if key == b"model") {
                        model = Some(String::from_utf8_lossy(value.text).into_owned());
                    }
                });
            }
            front.push_back(frame);
        }
        Ok((Self { front, rest }, model))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Peeked<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.front.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.front.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let here: usize = self
            .front
            .iter()
            .filter_map(Frame::data_ref)
            .map(Bytes::len)
            .sum();
        let here = here as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(here));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(here));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn the_body_is_whole_and_of_known_length_afterwards() {
        let text = r#"{"messages":[{"content":"x"}],"model":"phi"}"#;
        let (body, model) = Peeked::read(Full::new(Bytes::from(text))).await.unwrap();
        assert_eq!(model.as_deref(), Some("phi"));
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        assert_eq!(body.collect().await.unwrap().to_bytes(), text);
    }

    #[tokio::test]
    async fn a_body_without_a_name_has_none() {
        for text in ["", "{}", r#"{"model":7}"#, r#"{"options":{"model":"no"}}"#] {
            let (_, model) = Peeked::read(Full::new(Bytes::from(text))).await.unwrap();
            assert_eq!(model, None, "{text}");
        }
    }
}
