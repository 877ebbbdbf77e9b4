//! Watches of kinds that a cluster may lack, or lose, or get.

use std::{collections::HashSet, sync::Arc};

use futures::future::BoxFuture;
use tokio::task::JoinSet;

use crate::{child::Child, store::Store};

/// The watches of a kind that is there only as long as its CRD is.
pub(crate) struct Optional {
    pub start: Vec<Box<dyn Fn() -> BoxFuture<'static, ()> + Send>>,
    pub store: Arc<Store<Child>>,
    pub running: JoinSet<()>,
}

impl Optional {
    /// A watch of what does not exist would be refused for ever, and its objects are gone with it.
    pub async fn follow(&mut self, is_there: bool) {
        if !is_there {
            self.running.shutdown().await;
            self.store.retain(None, &HashSet::new(), self.store.now());
        } else if self.running.is_empty() {
            for start in &self.start {
                self.running.spawn(start());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_kind_is_watched_while_its_crd_is_there() {
        /// Counts the watches that run.
        struct Running(Arc<AtomicUsize>);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let (running, store) = (Arc::new(AtomicUsize::new(0)), Arc::new(Store::default()));
        let (counter, shared) = (running.clone(), store.clone());
        let start = move || -> BoxFuture<'static, ()> {
            counter.fetch_add(1, Ordering::SeqCst);
            let (running, store) = (Running(counter.clone()), shared.clone());
            let route =
                json!({"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1"}});
            Box::pin(async move {
                store.put(Child::new(serde_json::from_value(route).unwrap()));
                std::future::pending::<()>().await;
                drop(running);
            })
        };
        let mut optional = Optional {
            start: vec![Box::new(start)],
            store,
            running: JoinSet::new(),
        };
        for _ in 0..2 {
            for _ in 0..2 {
                optional.follow(true).await;
                assert_eq!(running.load(Ordering::SeqCst), 1);
            }
            while optional.store.is_empty() {
                tokio::task::yield_now().await;
            }
            optional.follow(false).await;
            assert_eq!(running.load(Ordering::SeqCst), 0);
            assert!(optional.store.is_empty(), "its objects are gone");
        }
    }
}
