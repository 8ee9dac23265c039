//! The part of a request's body that is unread when the answer is ready.
//!
//! A refusal may be ready before the body has arrived: a wrong password, a precision that does not exist. A
//! connection that is closed with unread bytes is reset, and its client may see only the reset and lose the answer.
//! So a short rest is read and discarded, and the connection goes on; if the rest is longer, the answer says that
//! the connection ends.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::EXPECT;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The maximum rest that is read, in bytes, as in Go's server.
const REST_MAX: usize = 256 << 10;
/// The maximum time of reading it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes the body back if its reader does not read it to its end.
pub(crate) struct Remainder(Option<Arc<Mutex<Option<Body>>>>);

/// A body that is lent to a reader; it is given back when it is dropped.
struct Lent {
    body: Body,
    left: Arc<Mutex<Option<Body>>>,
}

impl Remainder {
    /// Lends a body to the code that answers; the remainder is what it leaves unread.
    pub(crate) fn lend(body: Body) -> (Self, Body) {
        if hyper::body::Body::is_end_stream(&body) {
            return (Self(None), body);
        }
        let left = Arc::default();
        let lent = Body::new(Lent { body, left: Arc::clone(&left) });
        (Self(Some(left)), lent)
    }

    /// Reads the rest; true if the connection can go on.
    pub(crate) async fn read(self, expects: bool) -> bool {
        let left = self.0.and_then(|left| left.lock().take());
        let Some(mut body) = left else { return true };
        // A client that waits for permission to send the body does not send it now.
        if expects {
            return false;
        }
        let read = async {
            let mut len = 0;
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return false };
                len += frame.data_ref().map_or(0, Bytes::len);
                if len > REST_MAX {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or(false)
    }
}

/// True if a client sends its body only after `100 Continue`.
pub(crate) fn expects(headers: &HeaderMap) -> bool {
    headers.contains_key(EXPECT)
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !hyper::body::Body::is_end_stream(&self.body) {
            *self.left.lock() = Some(std::mem::take(&mut self.body));
        }
    }
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
