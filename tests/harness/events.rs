//! What a program has told so far, and waiting for what it has not told yet.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Events in the order in which they were told.
#[derive(Debug, Default)]
pub struct Events {
    told: Mutex<Vec<Value>>,
    more: Notify,
}

impl Events {
    /// One more.
    pub fn tell(&self, event: Value) {
        self.told.lock().unwrap().push(event);
        self.more.notify_waiters();
    }

    /// All of them.
    pub fn all(&self) -> Vec<Value> {
        self.told.lock().unwrap().clone()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.told.lock().unwrap().len()
    }

    /// Waits for the first one from this place on that `wanted` picks; gives its place too, or everything that was
    /// told instead.
    pub async fn find(
        &self,
        from: usize,
        patience: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<(usize, Value), Vec<Value>> {
        let deadline = Instant::now() + patience;
        loop {
            let more = self.more.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            {
                let told = self.told.lock().unwrap();
                let mut found = told.iter().enumerate().skip(from);
                if let Some((at, event)) = found.find(|(_, event)| wanted(event)) {
                    return Ok((at, event.clone()));
                }
            }
            if timeout_at(deadline, more).await.is_err() {
                return Err(self.all());
            }
        }
    }
}
