//! A bar on the terminal while something long runs; nothing at all elsewhere.

use std::{
    future::Future,
    io::{self, IsTerminal as _},
    pin::pin,
    time::Duration,
};

use hugepool_proto::v1::{ListOperationsRequest, Operation};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tonic::{Response, Status};

use crate::{connect::Admin, outcome::Failure};

/// How often the bar is brought up to date.
const TICK: Duration = Duration::from_millis(200);

/// A progress bar on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar that shows nothing yet.
    pub fn new() -> Bar {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} pages {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Bar(bar)
    }

    /// Shows how far an operation is.
    pub fn show(&self, operation: &Operation) {
        self.0.set_prefix(operation.kind.clone());
        self.0.set_length(operation.total_pages);
        self.0.set_position(operation.done_pages);
        if let Some(millis) = operation.estimate_ms {
            self.0
                .set_message(format!("{} left", crate::size::human_millis(millis)));
        }
    }

    /// Says something beside the bar.
    pub fn say(&self, text: &'static str) {
        self.0.set_message(text);
    }

    fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Waits for `call`; meanwhile, for people, shows how far the newest operation of its kind is.
pub async fn follow<T>(
    admin: &mut Admin,
    kind: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Failure> {
    let bar = Bar::new();
    let mut call = pin!(call);
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            answer = &mut call => return Ok(answer?.into_inner()),
            _ = ticks.tick(), if !bar.is_hidden() => {
                // A bar is worth no failure: without an answer it stays as it is.
                if let Ok(list) = admin.list_operations(ListOperationsRequest {}).await {
                    let mut running = list.into_inner().operations;
                    running.retain(|operation| operation.kind == kind && operation.state == "running");
                    running.iter().max_by_key(|operation| operation.id).inspect(|newest| bar.show(newest));
                }
            }
        }
    }
}
