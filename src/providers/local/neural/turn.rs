//! Smart Turn, the model that hears whether a speaker has finished, in one warm worker that all sessions share. Questions
//! are answered one after another; those that nobody waits for any more are skipped, and where too many wait a session
//! learns at once that silence has to decide.

use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::{Models, Speech, ask};
use crate::local::workers::{Shared, WorkerPool};
use vivavoce_quotas::{Party, Share};
use vivavoce_seams::{NoAnswer, TURN_RATE, TURN_SOUND, TurnModel};
use vivavoce_speech::worker::{Kind, Reply, Request};

/// Its name, on the wire and in the catalogue.
pub const SMART_TURN: &str = "smart-turn";

/// Questions that wait while one is answered: more would be answered too late.
const WAITING: usize = 4;
/// How long an answer may take before its worker counts as hung.
const ANSWER: Duration = Duration::from_secs(3);
/// How long the worker may take to load its model.
const LOADING: Duration = Duration::from_secs(20);
/// After a failure, how long questions are turned away at once.
const RECOVERY: Duration = Duration::from_secs(2);

type Pool = Shared<Speech<false>>;

/// The model and its worker.
#[derive(Debug)]
pub struct SmartTurn {
    questions: mpsc::Sender<Question>,
    pool: WorkerPool<Speech<false>>,
    warmed: Once,
    deadline: Duration,
}

#[derive(Debug)]
struct Question {
    sound: Vec<i16>,
    until: Instant,
    answer: oneshot::Sender<Result<f32, NoAnswer>>,
}

impl SmartTurn {
    /// The model, where it is installed. Must be called in a runtime. Its worker is started by the first session.
    /// Whoever asks has an answer after `deadline`, or none.
    pub fn installed(models: &Models, deadline: Duration) -> Option<Self> {
        let folder = models.installed(SMART_TURN)?;
        let settings = models.workers(Kind::SmartTurn, &folder, 1, Share::NONE);
        let pool = WorkerPool::new(settings);
        let (questions, asked) = mpsc::channel(WAITING);
        tokio::spawn(answer_all(pool.share(), asked));
        Some(Self {
            questions,
            pool,
            warmed: Once::new(),
            deadline,
        })
    }
}

#[async_trait]
impl TurnModel for SmartTurn {
    fn name(&self) -> &'static str {
        SMART_TURN
    }

    fn warm_up(&self) {
        self.warmed.call_once(|| {
            let pool = self.pool.share();
            pool.keep_one_warm();
            tokio::spawn(pool.tend());
        });
    }

    async fn finished(&self, mut sound: Vec<i16>) -> Result<f32, NoAnswer> {
        let excess = sound.len().saturating_sub(TURN_RATE.frames_in(TURN_SOUND));
        sound.drain(..excess);
        let (answer, answered) = oneshot::channel();
        let question = Question {
            sound,
            until: Instant::now() + self.deadline,
            answer,
        };
        self.questions
            .try_send(question)
            .map_err(|_| NoAnswer::Busy)?;
        match timeout(self.deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(NoAnswer::Failed("its worker is gone".to_owned())),
            Err(_) => Err(NoAnswer::Late),
        }
    }
}

/// Answers questions until the model is dropped.
async fn answer_all(pool: Arc<Pool>, mut questions: mpsc::Receiver<Question>) {
    let mut failed: Option<(Instant, NoAnswer)> = None;
    while let Some(question) = questions.recv().await {
        let Question {
            sound,
            until,
            answer,
        } = question;
        let now = Instant::now();
        if until <= now || answer.is_closed() {
            continue;
        }
        if let Some((_, why)) = failed.as_ref().filter(|(again, _)| now < *again) {
            let _ = answer.send(Err(why.clone()));
            continue;
        }
        let outcome = answer_one(&pool, &sound).await;
        failed = outcome.as_ref().err().map(|why| {
            tracing::warn!("{why}");
            (Instant::now() + RECOVERY, why.clone())
        });
        // Whoever has asked may not wait any longer.
        let _ = answer.send(outcome);
    }
}

async fn answer_one(pool: &Arc<Pool>, sound: &[i16]) -> Result<f32, NoAnswer> {
    let lease = pool.lease_within(&Party::Operator, LOADING, LOADING).await;
    let lease = lease.map_err(|error| NoAnswer::Failed(error.to_string()))?;
    let reply = ask(lease, &Request::Turn, sound, ANSWER).await;
    match reply.map_err(|error| NoAnswer::Failed(error.to_string()))? {
        Reply::Turn { finished } if (0.0..=1.0).contains(&finished) => Ok(finished),
        _ => {
            let said = "its worker has answered something else";
            Err(NoAnswer::Failed(said.to_owned()))
        }
    }
}
