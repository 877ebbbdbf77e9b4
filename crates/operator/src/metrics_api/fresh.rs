//! Answers that are good for a moment: asked once for all who ask at the same time, and kept within bounds.

use std::{
    collections::HashMap,
    future::Future,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

type Slot<V> = Arc<tokio::sync::Mutex<Option<(Instant, V)>>>;

pub struct Fresh<K, V> {
    slots: Mutex<HashMap<K, Slot<V>>>,
    life: Duration,
    most: usize,
}

impl<K: Hash + Eq, V: Clone> Fresh<K, V> {
    pub fn new(life: Duration, most: usize) -> Self {
        Self {
            slots: Mutex::default(),
            life,
            most,
        }
    }

    pub async fn get(&self, key: K, ask: impl Future<Output = V>) -> V {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            if slots.len() >= self.most && !slots.contains_key(&key) {
                slots.retain(|_, slot| self.is_fresh(slot));
                if slots.len() >= self.most {
                    // Whoever is still waiting holds its slot itself.
                    slots.clear();
                }
            }
            slots.entry(key).or_default().clone()
        };
        let mut slot = slot.lock().await;
        if let Some((time, value)) = slot.as_ref()
            && time.elapsed() < self.life
        {
            return value.clone();
        }
        let value = ask.await;
        *slot = Some((Instant::now(), value.clone()));
        value
    }

    fn is_fresh(&self, slot: &Slot<V>) -> bool {
        slot.try_lock().map_or(true, |held| {
            held.as_ref().is_some_and(|(time, _)| time.elapsed() < self.life)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn asked_once_while_it_is_fresh() {
        let fresh = Fresh::new(Duration::from_secs(2), 8);
        let asked = AtomicUsize::new(0);
        let ask = || async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            asked.fetch_add(1, Ordering::SeqCst)
        };
        let both = futures::future::join(fresh.get("a", ask()), fresh.get("a", ask())).await;
        assert_eq!(both, (0, 0), "together");
        assert_eq!(fresh.get("b", ask()).await, 1);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(fresh.get("a", ask()).await, 2, "it had grown old");
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_grow_for_ever() {
        let fresh = Fresh::new(Duration::from_secs(2), 8);
        for key in 0..100 {
            fresh.get(key, async {}).await;
        }
        assert!(fresh.slots.lock().unwrap().len() <= 8);
    }
}
