//! A telephone that does what the scenario says.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, CallOf, CallReport, Line, NewCall, NewTransfer, PlacedCall, Telephone,
};

#[derive(Default)]
pub struct ScriptedTelephone {
    /// How the next transfers end, and after how long; at once and well where nothing is said.
    outcomes: Mutex<Vec<(Duration, Result<(), CallError>)>>,
    pub transfers: Mutex<Vec<NewTransfer>>,
    pub ended: Mutex<Vec<String>>,
}

impl ScriptedTelephone {
    pub fn next_transfer(&self, after: Duration, outcome: Result<(), CallErrorKind>) {
        let outcome = outcome.map_err(|kind| CallError::new(kind, "they would not"));
        self.outcomes.lock().unwrap().push((after, outcome));
    }
}

#[async_trait]
impl Telephone for ScriptedTelephone {
    async fn call(&self, _: NewCall, _: Line) -> Result<PlacedCall, CallError> {
        Err(CallError::new(CallErrorKind::Full, "no line"))
    }

    async fn transfer(
        &self,
        transfer: NewTransfer,
        _: oneshot::Sender<()>,
    ) -> Result<(), CallError> {
        self.transfers.lock().unwrap().push(transfer);
        let next = self.outcomes.lock().unwrap().pop();
        let (after, outcome) = next.unwrap_or((Duration::ZERO, Ok(())));
        tokio::time::sleep(after).await;
        outcome
    }

    async fn hang_up(&self, call: &CallOf) -> Result<(), CallError> {
        self.ended.lock().unwrap().push(call.identity.clone());
        Ok(())
    }

    fn calls(&self) -> Vec<CallReport> {
        Vec::new()
    }
}
