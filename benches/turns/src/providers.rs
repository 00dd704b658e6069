//! What a recogniser says, as far as the turn detector looks at it.

use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Word {
    pub word: String,
    pub start: f64,
    pub end: f64,
    pub confidence: Option<f32>,
    pub speaker: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transcript {
    pub text: String,
    pub confidence: Option<f32>,
    pub words: Vec<Word>,
    pub language: Option<String>,
    pub end: Option<f64>,
}

#[derive(Debug, Clone)]
pub enum SttEvent {
    Partial(Transcript),
    Final(Transcript),
    EndOfSpeech,
    UtteranceLost(String),
}

pub struct FinalDelay;

impl FinalDelay {
    pub const UNKNOWN: Self = Self;

    pub fn patience(self) -> Duration {
        Duration::from_millis(1_800)
    }
}
