//! The workers of all controllers: they act while the lease is held, and stop with it.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{controller::Controller, driver::Driver, leader::Fence, queue::Queue, store::ObjectKey};

/// Starts the workers of one controller; called each time the lease is gained.
pub(crate) type StartWorkers = Box<dyn Fn(&mut JoinSet<()>, &CancellationToken) + Send + Sync>;

/// All workers, which act only while the lease is held.
pub(crate) struct Team {
    pub fence: Fence,
    pub workers: Vec<StartWorkers>,
    pub queues: Vec<Arc<Queue>>,
    pub everybody: Vec<Arc<dyn Fn() + Send + Sync>>,
    pub grace: Duration,
}

impl Team {
    pub async fn lead_until(&self, shutdown: impl Future<Output = ()> + Send) {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            self.queues.iter().for_each(|queue| queue.rest());
            tokio::select! {
                () = &mut shutdown => return,
                () = self.fence.gained() => {}
            }
            // What changes from here on is queued; what changed while another led, or what it was doing when it died, is
            // found by looking at everything.
            self.queues.iter().for_each(|queue| queue.resume());
            for wake_all in &self.everybody {
                wake_all();
            }
            let stop = CancellationToken::new();
            let mut workers = JoinSet::new();
            for start in &self.workers {
                start(&mut workers, &stop);
            }
            tokio::select! {
                () = &mut shutdown => {
                    stop.cancel();
                    let finish = async { while workers.join_next().await.is_some() {} };
                    if tokio::time::timeout(self.grace, finish).await.is_err() {
                        tracing::warn!("work still under way was cut off");
                    }
                    return;
                }
                // Dropping the workers drops their requests: nothing is written after the lease is gone.
                () = self.fence.lost() => workers.shutdown().await,
            }
        }
    }
}

pub(crate) async fn work<C: Controller>(driver: &Driver<C>, queue: &Arc<Queue>, stop: &CancellationToken) {
    loop {
        let key = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            key = queue.next() => key,
        };
        let visit = Visit {
            queue,
            key: &key,
            finished: false,
        };
        driver.visit(&key).await;
        visit.finish();
    }
}

/// Gives the object back to the queue also when the visit is dropped half-way.
struct Visit<'a> {
    queue: &'a Queue,
    key: &'a ObjectKey,
    finished: bool,
}

impl Visit<'_> {
    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.queue.add(self.key.clone());
        }
        self.queue.done(self.key);
    }
}
