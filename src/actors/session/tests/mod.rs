//! Whole sessions in virtual time: the actor and its children, the socket edge without HTTP, a client that reads when it
//! likes, a recogniser and a synthesiser that do what the scenario says. One file per promise. What is
//! pure is tested beside its code.

mod a_backchannel_is_no_turn;
mod a_config_changes_only_what_it_says;
mod a_cough_does_not_end_a_sentence;
mod a_failing_part_ends_nothing_but_itself;
mod a_fallback_takes_over;
mod a_provider_that_fails_is_asked_again;
mod a_session_ends_with_its_token;
mod a_session_is_in_its_room;
mod a_session_is_on_the_telephone;
mod a_session_leaves_nothing_behind;
mod a_session_outlives_its_socket;
mod a_turn_ends_when_the_model_hears_its_end;
mod an_update_loses_nothing;
mod client;
mod each_participant_is_transcribed;
mod every_turn_ends_once_and_neither_early_nor_never;
mod memory_is_bounded;
mod no_gaps_at_a_constant_rate;
mod recogniser;
mod room;
mod synthesiser;
mod telephone;
mod the_first_words_are_heard;
mod the_last_words_are_heard;
mod the_state_says_speaking_only_while_something_is_heard;
mod the_transcript_has_no_word_that_nobody_heard;
mod turn_model;

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Caller, Places, SessionServices, SessionSettings};
use crate::registry::calls::{CallRegistry, CallRules, Calls};
use crate::registry::rooms::{RoomRegistry, Rooms};
use crate::registry::sessions::{EndByName, ListSessions, SessionRegistry};
use client::{Client, What};
use recogniser::{Opening, Recogniser, partial, said};
use synthesiser::{Synthesiser, Way};
use vivavoce_audio::pacer::LEAD;
use vivavoce_auth::{Access, Pass};
use vivavoce_config::Config;
use vivavoce_quotas::shared_limit::{SharedLimit, Size};
use vivavoce_quotas::{Kind, Party, Quota, Quotas, Share};
use vivavoce_seams::ProviderTable;
use vivavoce_synthesis::{SynthesisSettings, Synthesizer};

/// Sound that is speech to voice activity detection.
const LOUD: i16 = 10_000;
/// Sound whose first sample makes it panic, as a decoder's mistake would.
const POISON: i16 = i16::MIN;

/// Words that make whoever tells of a participant panic, as a mistake of ours would.
pub const POISON_WORDS: &str = "words that are a mistake";

thread_local! {
    /// The `stt_seconds` of the session that has ended last.
    pub static STT_SECONDS: Cell<f64> = const { Cell::new(0.0) };
    /// Its `tts_characters`.
    pub static TTS_CHARACTERS: Cell<u64> = const { Cell::new(0) };
}

/// The score of voice activity detection.
pub fn loudness(frame: &[i16]) -> f32 {
    assert_ne!(frame[0], POISON, "a mistake in the way in");
    let loud = frame
        .iter()
        .any(|sample| sample.unsigned_abs() >= LOUD as u16);
    f32::from(u8::from(loud))
}

/// Numbers of the United States and extensions may be called.
fn call_rules() -> CallRules {
    let environment = [("SIP_ALLOWED_DESTINATIONS".to_owned(), "+1,1".to_owned())];
    let config = Config::from_sources(&[], &environment.into(), None).unwrap();
    CallRules::new(&config.settings.sip)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A server without HTTP.
struct Stage {
    recogniser: Arc<Recogniser>,
    synthesiser: Arc<Synthesiser>,
    /// Installed in sessions of this stage unless it is without one.
    model: Arc<turn_model::ScriptedModel>,
    /// Those that stand by: `spare`.
    spare_recogniser: Arc<Recogniser>,
    spare_synthesiser: Arc<Synthesiser>,
    rooms: Arc<room::Rooms>,
    telephone: Arc<telephone::ScriptedTelephone>,
    services: Arc<SessionServices>,
    work: TaskTracker,
    sessions: Quota,
    unconfigured: Arc<SharedLimit>,
}

impl Stage {
    fn new() -> Self {
        tokio::time::pause();
        Self::in_paused_time(LEAD)
    }

    fn in_paused_time(lead: Duration) -> Self {
        Self::with(lead, true)
    }

    fn without_model_in_paused_time() -> Self {
        Self::with(LEAD, false)
    }

    fn with(lead: Duration, has_model: bool) -> Self {
        let model = Arc::new(turn_model::ScriptedModel::default());
        let recogniser = Arc::new(Recogniser::new("scripted"));
        let synthesiser = Arc::new(Synthesiser::new("scripted"));
        let spare_recogniser = Arc::new(Recogniser::new("spare"));
        let spare_synthesiser = Arc::new(Synthesiser::new("spare"));
        let mut providers = ProviderTable::default();
        providers.add_speech_to_text(recogniser.clone());
        providers.add_text_to_speech(synthesiser.clone());
        providers.add_speech_to_text(spare_recogniser.clone());
        providers.add_text_to_speech(spare_synthesiser.clone());
        if has_model {
            providers.set_turn_model(model.clone());
        }
        let providers = Arc::new(providers);
        let settings = SynthesisSettings {
            cache: None,
            per_provider: 64,
            quota: Quotas::unlimited().syntheses,
            share: Share::NONE,
        };
        let rooms = Arc::new(room::Rooms::default());
        let kept = Rooms {
            guarded: false,
            provider: rooms.clone(),
            token_lifetime: Duration::from_mins(5),
            claim_unowned: true,
        };
        let calls = Calls {
            rooms: kept.clone(),
            rules: call_rules(),
            quota: Quotas::unlimited().calls,
            ledger: Arc::default(),
            transfers: Arc::default(),
            queues: Arc::default(),
            webhooks: None,
        };
        let services = SessionServices {
            synthesizer: Synthesizer::open(Arc::clone(&providers), &settings).unwrap(),
            providers,
            llm: Arc::default(),
            sessions: SessionRegistry::default().start(),
            rooms: Some(RoomRegistry::new(Some(kept)).start()),
            calls: Some(CallRegistry::new(Some(calls)).start()),
            webhooks: None,
            recordings: None,
            egresses: None,
            quotas: Quotas::unlimited(),
            backchannels: Arc::default(),
            resumes: Arc::default(),
            replicas: None,
            dialect: Arc::default(),
            closing: CancellationToken::new(),
            draining: CancellationToken::new(),
            replaced: CancellationToken::new(),
            settings: SessionSettings {
                public_recordings: false,
                config_timeout: Duration::from_secs(30),
                resume_within: Duration::from_secs(30),
                drain_within: Duration::from_secs(30),
                lead,
                room_complexity: 0,
            },
        };
        Self {
            recogniser,
            synthesiser,
            model,
            spare_recogniser,
            spare_synthesiser,
            telephone: rooms.telephone.clone(),
            rooms,
            services: Arc::new(services),
            work: TaskTracker::new(),
            sessions: Quota::new(Kind::Sessions, 8, Share::default()),
            unconfigured: SharedLimit::new(Size::undivided(8)),
        }
    }

    fn connect(&self) -> Client {
        self.connect_with(None)
    }

    /// A client whose token may end.
    fn connect_with(&self, pass: Option<Pass>) -> Client {
        self.connect_as(Access::anonymous(), pass)
    }

    /// A client of somebody.
    fn connect_as(&self, access: Access, pass: Option<Pass>) -> Client {
        let places = Places {
            session: self.sessions.take(&Party::Operator).ok(),
            unconfigured: self.unconfigured.acquire(Party::Operator, 1).unwrap(),
            work: self.work.token(),
        };
        let services = Arc::clone(&self.services);
        let caller = Caller {
            access,
            pass,
            request_id: String::new(),
            own_url: "ws://here".to_owned(),
            handshake: None,
            takes: false,
            least_lead: Duration::ZERO,
        };
        Client::connect(|writer| super::open(services, places, caller, writer))
    }

    /// A client whose session is ready.
    async fn configured(&self) -> Client {
        let client = self.connect();
        client.send(&config(json!({})));
        client.event("ready").await;
        client
    }

    /// Ends a session as `DELETE /sessions` does; waits until it has gone.
    async fn end(&self, stream_id: &str) {
        let stream_id = super::StreamId::parse(stream_id).unwrap();
        let access = Access::anonymous();
        let order = EndByName {
            stream_id,
            whose: None,
            access,
        };
        let gone = self.services.sessions.send(order).await.unwrap();
        gone.unwrap().cancelled().await;
    }

    async fn names(&self) -> Vec<String> {
        let list = ListSessions {
            access: Access::anonymous(),
        };
        let list = self.services.sessions.send(list).await.unwrap();
        let names = list
            .iter()
            .map(|session| session.stream_id.as_str().to_owned());
        names.collect()
    }

    /// Nothing of any session is left.
    async fn is_empty(&self) {
        self.work.close();
        in_time(self.work.wait()).await;
        // What has been told to end may need a moment.
        sleep(ms(10)).await;
        assert_eq!(self.names().await, [""; 0]);
        assert_eq!(self.sessions.of(&Party::Operator), 0);
        assert_eq!(self.unconfigured.available(), 8);
        assert_eq!(self.recogniser.live(), 0);
        assert_eq!(self.synthesiser.live(), 0);
    }
}

/// A `config`, with the defaults of its parts replaced by those given.
#[allow(clippy::needless_pass_by_value)] // so that scenarios read well
fn config(fields: Value) -> Value {
    let mut config = json!({
        "type": "config",
        "stream_id": "s",
        "stt_config": {"provider": "scripted"},
        "tts_config": {"provider": "scripted", "model": ""},
    });
    let config_fields = config.as_object_mut().unwrap();
    for (name, value) in fields.as_object().unwrap() {
        match (
            config_fields.get_mut(name).and_then(Value::as_object_mut),
            value.as_object(),
        ) {
            (Some(part), Some(changes)) => part.extend(changes.clone()),
            _ => drop(config_fields.insert(name.clone(), value.clone())),
        }
    }
    config
}

fn speak(text: &str) -> Value {
    json!({"type": "speak", "text": text, "id": text})
}

/// What comes, however long it takes, as long as something comes.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let patience = Duration::from_mins(5);
    timeout(patience, what).await.expect("it never comes")
}
