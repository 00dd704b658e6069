//! A model of the end of turns that says what the scenario says.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use vivavoce_seams::{NoAnswer, TurnModel};

/// What the model does when it is asked.
#[derive(Debug, Clone)]
pub enum Says {
    /// It answers after this time.
    After(Duration, f32),
    Fails(NoAnswer),
    /// It never answers, and others have to see to it.
    Nothing,
}

/// The usual one.
const DEADLINE: Duration = Duration::from_millis(250);

#[derive(Default)]
pub struct ScriptedModel {
    script: Mutex<VecDeque<Says>>,
    /// The length of the sound of each question, and how much of it is loud.
    asked: Mutex<Vec<(usize, usize)>>,
}

impl ScriptedModel {
    /// What it does next, one for each question; further ones fail.
    pub fn says(&self, script: impl IntoIterator<Item = Says>) {
        self.script.lock().unwrap().extend(script);
    }

    /// The milliseconds of sound of each question so far, and how many of them are loud.
    pub fn asked(&self) -> Vec<(usize, usize)> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl TurnModel for ScriptedModel {
    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn finished(&self, sound: Vec<i16>) -> Result<f32, NoAnswer> {
        let loud = sound
            .iter()
            .filter(|sample| sample.unsigned_abs() >= super::LOUD as u16);
        let asked = (sound.len() / 16, loud.count() / 16);
        self.asked.lock().unwrap().push(asked);
        let says = self.script.lock().unwrap().pop_front();
        match says {
            Some(Says::After(delay, finished)) if delay <= DEADLINE => {
                sleep(delay).await;
                Ok(finished)
            }
            Some(Says::After(..)) => {
                sleep(DEADLINE).await;
                Err(NoAnswer::Late)
            }
            Some(Says::Fails(why)) => Err(why),
            Some(Says::Nothing) => std::future::pending().await,
            None => Err(NoAnswer::Failed("the script is over".to_owned())),
        }
    }
}
