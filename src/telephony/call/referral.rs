//! A call whose other side wants somebody else in its place: that one is called, and takes the place of the leg when it answers.
//! What it hears until then is what the leg hears.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout};

use super::super::agent::{Failure, Leg, LegEvent};
use super::super::bridge::Referred;

/// How long it may ring.
const RINGING: Duration = Duration::from_mins(1);
/// How long the end of a leg that is not needed is waited for.
const GOODBYE: Duration = Duration::from_secs(2);

/// Somebody is being called in the place of the other side.
pub struct Referral {
    /// The CSeq of the REFER.
    pub id: u32,
    until: Instant,
    stage: Stage,
}

enum Stage {
    Dialling(oneshot::Receiver<Option<Referred>>),
    Ringing(Referred),
}

/// How that goes on.
pub enum Step {
    /// It goes on.
    Nothing,
    /// Somebody has answered: their leg, and their answer to the offer.
    Answered(Box<Referred>, Option<String>),
    /// Nobody does, with this status.
    Failed(u16),
}

impl Referral {
    /// It is being dialled.
    pub fn new(id: u32, dialling: oneshot::Receiver<Option<Referred>>, now: Instant) -> Self {
        Self {
            id,
            until: now + RINGING,
            stage: Stage::Dialling(dialling),
        }
    }

    /// What happens next. After anything but [`Step::Nothing`] it is over.
    pub async fn next(&mut self) -> Step {
        let until = self.until.into();
        match &mut self.stage {
            Stage::Dialling(dialling) => match dialling.await {
                Ok(Some(referred)) => {
                    self.stage = Stage::Ringing(referred);
                    Step::Nothing
                }
                Ok(None) | Err(_) => Step::Failed(503),
            },
            Stage::Ringing(referred) => {
                let event = tokio::select! {
                    event = referred.leg.next() => event,
                    () = sleep_until(until) => return Step::Failed(408),
                };
                match event {
                    Some(LegEvent::Answered { sdp, .. }) => self.answered(sdp),
                    Some(LegEvent::Failed(failure)) => Step::Failed(status(&failure)),
                    Some(_) => Step::Nothing,
                    None => Step::Failed(503),
                }
            }
        }
    }

    fn answered(&mut self, sdp: Option<String>) -> Step {
        let gone = Stage::Dialling(oneshot::channel().1);
        match std::mem::replace(&mut self.stage, gone) {
            Stage::Ringing(referred) => Step::Answered(Box::new(referred), sdp),
            Stage::Dialling(_) => Step::Failed(503),
        }
    }

    /// It is not wanted any more.
    pub fn cancel(self) {
        if let Stage::Ringing(Referred { leg, .. }) = self.stage {
            cancel(leg);
        }
    }
}

/// The next step of one, if there is one.
pub async fn next(referral: &mut Option<Referral>) -> Step {
    match referral {
        Some(referral) => referral.next().await,
        None => std::future::pending().await,
    }
}

/// Cancels a leg and waits for its end in the background.
fn cancel(mut leg: Leg) {
    leg.cancel();
    tokio::spawn(async move {
        let ended = async {
            while let Some(event) = leg.next().await {
                match event {
                    LegEvent::Failed(_) => return,
                    // CANCEL and 2xx crossed.
                    LegEvent::Answered { .. } => return leg.hang_up().await,
                    _ => {}
                }
            }
        };
        let _ended = timeout(GOODBYE, ended).await;
    });
}

/// Hangs up a leg in whose place there is another, unless its other side does it first.
pub fn leave(mut leg: Leg, after: Duration) {
    tokio::spawn(async move {
        let ended = async { while !matches!(leg.next().await, Some(LegEvent::Ended) | None) {} };
        if timeout(after, ended).await.is_err() {
            let _ended = timeout(GOODBYE, leg.hang_up()).await;
        }
    });
}

/// The status of a failure, for whoever has asked.
const fn status(failure: &Failure) -> u16 {
    match failure {
        Failure::Refused { code, .. } => *code,
        Failure::Redirected { .. } | Failure::Unreachable => 503,
    }
}
