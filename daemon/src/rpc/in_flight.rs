//! How many calls are being answered: what a daemon that stops waits for.
//!
//! It does not wait for connections. A client that is between two calls drives none, and would not hear
//! that it is asked to close it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::watch;
use tower::{Layer, Service};

/// The number; a layer of a server that counts into it.
#[derive(Clone, Debug, Default)]
pub struct InFlight(watch::Sender<usize>);

impl InFlight {
    /// Returns when there is none.
    pub async fn none(&self) {
        // The sender is here: it cannot be gone.
        let _ = self.0.subscribe().wait_for(|nr| *nr == 0).await;
    }

    fn enter(&self) -> Counted {
        self.0.send_modify(|nr| *nr += 1);
        Counted(self.clone())
    }
}

/// One call; it has ended when this is dropped, however it did.
#[derive(Debug)]
struct Counted(InFlight);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|nr| *nr -= 1);
    }
}

impl<S> Layer<S> for InFlight {
    type Service = Counting<S>;

    fn layer(&self, inner: S) -> Counting<S> {
        Counting {
            inner,
            in_flight: self.clone(),
        }
    }
}

/// A service whose calls are counted.
#[derive(Clone, Debug)]
pub struct Counting<S> {
    inner: S,
    in_flight: InFlight,
}

impl<S, R> Service<R> for Counting<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let counted = self.in_flight.enter();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(counted);
            answer
        })
    }
}
