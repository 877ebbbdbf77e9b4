//! Gives up on an answer that does not begin, or does not go on, for so long that nobody can be there any more: a firewall
//! has forgotten the connection, or the server hangs. How long a call may take as a whole is for the caller to say.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use tower::{BoxError, Layer, Service};

#[derive(Debug, thiserror::Error)]
#[error("nothing was heard for {:.1} s", .0.as_secs_f32())]
struct Silent(Duration);

#[derive(Clone)]
pub struct Silence {
    most: Duration,
}

impl Silence {
    pub fn of(most: Duration) -> Self {
        Self { most }
    }
}

impl<S> Layer<S> for Silence {
    type Service = SilenceService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SilenceService {
            inner,
            most: self.most,
        }
    }
}

#[derive(Clone)]
pub struct SilenceService<S> {
    inner: S,
    most: Duration,
}

impl<S, A, B> Service<Request<A>> for SilenceService<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let most = self.most;
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = tokio::time::timeout(most, answer)
                .await
                .map_err(|_| Silent(most))??;
            Ok(answer.map(|body| until_silent(body, most)))
        })
    }
}

/// The body as long as it says something. One that fell silent ends: who reads on would wait for ever.
fn until_silent<B>(body: B, most: Duration) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    // Pinned here, since not every body can be moved while it is read.
    let frames = Some(BodyStream::new(Box::pin(body)));
    let frames = stream::unfold(frames, move |frames| async move {
        let mut frames = frames?;
        match tokio::time::timeout(most, frames.next()).await {
            Ok(frame) => frame.map(|frame| (frame, Some(frames))),
            Err(_) => Some((Err(Silent(most).into()), None)),
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future};

    use futures::Stream;
    use http_body::Frame;
    use tower::{ServiceExt, service_fn};

    use super::*;

    const MOST: Duration = Duration::from_secs(10);

    /// Says each of these after so many seconds, then nothing more, and does not end.
    fn says(waits: &'static [u64]) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> {
        let said = stream::iter(waits).then(|wait| async {
            tokio::time::sleep(Duration::from_secs(*wait)).await;
            Ok(Frame::data(Bytes::from_static(b"x")))
        });
        said.chain(stream::pending())
    }

    #[tokio::test(start_paused = true)]
    async fn what_goes_on_is_heard_and_what_falls_silent_ends() {
        let server = service_fn(async |_: Request<()>| {
            let body = StreamBody::new(says(&[1, 9, 9, 9]));
            Ok::<_, BoxError>(Response::new(BodyExt::boxed_unsync(body)))
        });
        let client = Silence::of(MOST).layer(server);
        let answer = client.oneshot(Request::new(())).await.unwrap();
        let begun = tokio::time::Instant::now();
        let mut frames = BodyStream::new(answer.into_body());
        for _ in 0..4 {
            assert!(frames.next().await.unwrap().is_ok());
        }
        let error = frames.next().await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "nothing was heard for 10.0 s");
        assert_eq!(begun.elapsed().as_secs(), 28 + 10);
        assert!(frames.next().await.is_none(), "it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_begins_is_not_waited_for() {
        let server = service_fn(|_: Request<()>| {
            future::pending::<Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>>()
        });
        let client = Silence::of(MOST).layer(server);
        let error = client.oneshot(Request::new(())).await.unwrap_err();
        assert_eq!(error.to_string(), "nothing was heard for 10.0 s");
    }

    #[tokio::test(start_paused = true)]
    async fn who_listens_late_hears_what_was_said() {
        let server = service_fn(async |_: Request<()>| {
            let body = http_body_util::Full::new(Bytes::from_static(b"all"));
            let body = body.map_err(|never: Infallible| match never {});
            Ok::<_, BoxError>(Response::new(BodyExt::boxed_unsync(body)))
        });
        let client = Silence::of(MOST).layer(server);
        let answer = client.oneshot(Request::new(())).await.unwrap();
        tokio::time::sleep(MOST * 2).await;
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "all");
    }
}
