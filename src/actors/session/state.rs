//! What a session decides, as a pure state machine: which message is carried out when, what a `config` changes, when a
//! recogniser or a synthesiser that has died is made anew, when the session ends. Sound does not come here, nor does
//! time pass by itself: the actor around it ([`super::SessionActor`]) brings every input and carries out the [`Effect`]s.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::failure::{Refusal, of_provider, of_synthesis};
use super::hearing::EarNews;
use super::interruption::{Interruption, InterruptionMode, InterruptionReason, Step};
use super::loading::Clip;
use super::messages::{
    Changeable, ClientMessage, ConfigUpdate, ErrorCode, ListenConfig, RoomConfig, RoomOfSession,
    SendMessage, ServerMessage, SessionConfig, StreamId, TelephoneWish, VadConfig,
};
use super::playback::Speak;
use super::succession::{Former, Succession};
use super::turn::{Moment, TurnDetector, TurnEvent};
use crate::stt::{SttNews, SttReport};
use crate::supervision::{RestartPolicy, Restarts, jitter};
use crate::tts::{TtsNews, TtsReport};
use vivavoce_audio::vad::VadEvent;
use vivavoce_audio::{Layout, SampleRate};
use vivavoce_core::json::Misfit;
use vivavoce_seams::rooms::link::Ending as RoomEnding;
use vivavoce_seams::{ErrorKind, ProviderError, SttEvent};
use vivavoce_synthesis::SpeechConfig;

/// Commands that wait while a config is carried out, and their bytes on the wire.
const MAX_BACKLOG: usize = 256;
const MAX_BACKLOG_BYTES: usize = 5 << 20;
/// Voice activity that is kept meanwhile: more than ten seconds of sound can bring.
const MAX_EARLY: usize = 256;
/// How long the last words may take when the server ends a session.
pub const LAST_WORDS: Duration = Duration::from_millis(2_500);
/// How much earlier those of participants must be there, so that they are told before the socket closes.
const PARTICIPANTS_EARLIER: Duration = Duration::from_millis(100);
/// A recogniser that has lasted so long has worked, even if there was nothing to hear.
const PROVEN: Duration = Duration::from_secs(1);

/// Why nothing is said once the synthesiser was given up.
const MUTE: &str =
    "the synthesiser has ended too often; nothing is said until config is sent again";

/// A message of the client.
#[derive(Debug)]
pub struct Command {
    /// Its number, where it is a config.
    pub config: u64,
    /// What it says.
    pub message: ClientMessage,
    /// How long it was on the wire.
    pub bytes: usize,
}

/// What can be known of a config before anything is started.
#[derive(Debug)]
pub struct Prepared {
    /// The loading sound, if one was given.
    pub clip: Option<Result<Clip, Misfit>>,
    /// Whether its sound comes where that of the config in force comes: its recogniser hears it already.
    pub is_heard: bool,
    /// How long each of the recognisers that it names may take over a final.
    pub patience: Vec<Duration>,
    /// The room that was entered.
    pub room: Option<RoomOfSession>,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Send this.
    Tell(ServerMessage),
    /// Find out whether a config can be carried out; the answer is [`Session::prepared`].
    Prepare {
        /// Which.
        config: u64,
        /// The session's name: the one it has, or the one it shall have.
        stream_id: StreamId,
        /// All of it.
        wanted: Box<SessionConfig>,
        /// What becomes of the sound.
        sound: SoundOf,
    },
    /// The input of this config is in force.
    Commit {
        /// Which.
        config: u64,
        /// Its voice activity detection.
        vad: VadConfig,
        /// Whether it is recorded, and the rates of what is heard and of what is played then.
        recording: Option<(SampleRate, SampleRate)>,
        /// Whether whoever keeps the room records it.
        egress: bool,
    },
    /// The config will not be carried out.
    Discard {
        /// Which.
        config: u64,
    },
    /// Start a recogniser over the feed of this config.
    StartStt {
        /// Names it in its reports.
        life: u32,
        /// Whose feed.
        config: u64,
        /// What to listen for.
        listen: ListenConfig,
    },
    /// Let a recogniser finish what it has heard.
    EndStt {
        /// Which.
        life: u32,
    },
    /// Let the recognisers of participants, who are transcribed alone, finish what they have heard, within this time;
    /// then comes [`Session::participants_ended`].
    EndParticipants(Duration),
    /// Ask the recogniser to make final what it has heard.
    Finalize,
    /// Stop the output with everything that is queued, and begin one with this config; `None` ends it.
    SetOutput(Option<Box<SpeechConfig>>),
    /// Say what is queued from now on with this config.
    ChangeVoice(Box<SpeechConfig>),
    /// Start a synthesiser for the output.
    StartTts {
        /// Names it in its reports.
        life: u32,
        /// How it speaks.
        speech: Box<SpeechConfig>,
    },
    /// The synthesiser has gone: fail what it had in hand.
    TtsLost,
    /// The loading sound.
    SetClip(Option<Clip>),
    /// Start or stop it.
    Load(bool),
    /// Send this into the room.
    SendToRoom(SendMessage),
    /// Do this on the telephone.
    Telephone(TelephoneWish),
    /// The room's config has changed, as far as it can.
    ChangeRoom(Box<RoomConfig>),
    /// Queue text.
    Speak(Speak),
    /// Cut speech.
    Clear,
    /// Let speech yield to somebody who may want to interrupt it.
    Yield(InterruptionMode),
    /// Let it go on as it was.
    Resume,
    /// Close the socket.
    Close {
        /// With this code.
        code: u16,
        /// For people.
        reason: &'static str,
    },
}

/// Where the sound for a config's recogniser comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoundOf {
    /// What came behind the message.
    Message {
        /// It is to be heard in another way than by the config in force, though its format may be the same.
        anew: bool,
    },
    /// What comes where that of the config in force comes, from a lull on.
    Session {
        /// See there.
        anew: bool,
    },
}

/// A child that is made anew when it dies.
#[derive(Debug)]
struct Child {
    /// Its first life, which is its place in the order of recognisers.
    seat: u32,
    life: u32,
    provider: String,
    restarts: Restarts,
    /// When the next life begins.
    restart_at: Option<Instant>,
    /// Whether the client knows that it is away.
    away: bool,
    /// How much lost sound the client knows of.
    lost_told: Duration,
    failed: bool,
    /// Which of the providers that were asked for it is: nought, or a fallback.
    choice: usize,
    /// Those that will not do it however often they are asked, as bits.
    hopeless: u8,
    /// Whether the life in hand has got as far as to work: the first one by opening, which the config waited for. Some
    /// recognisers refuse only what they are sent, so that of a later one opening alone proves nothing.
    works: bool,
    /// When the life in hand was opened.
    opened_at: Option<Instant>,
}

impl Child {
    const fn new(life: u32, provider: String, restarts: Restarts) -> Self {
        Self {
            seat: life,
            life,
            provider,
            restarts,
            choice: 0,
            hopeless: 0,
            works: false,
            opened_at: None,
            restart_at: None,
            away: false,
            lost_told: Duration::ZERO,
            failed: false,
        }
    }
}

impl Child {
    /// Whether the life in hand has worked; the next one has not yet.
    fn take_works(&mut self, now: Instant) -> bool {
        let opened = self.opened_at.take();
        let lasted = opened.is_some_and(|at| now.saturating_duration_since(at) >= PROVEN);
        std::mem::take(&mut self.works) || lasted
    }

    /// Which recogniser hears next, after this error: the same where it worked and may do so again, else the next in
    /// order, the first again after the last. `None` where none may.
    fn next_choice(
        &mut self,
        listen: &ListenConfig,
        error: &ProviderError,
        worked: bool,
    ) -> Option<usize> {
        let hopeless = matches!(
            error.kind,
            ErrorKind::Auth | ErrorKind::InvalidRequest | ErrorKind::Quota
        );
        if hopeless {
            self.hopeless |= 1 << self.choice;
        } else if worked || listen.choices() == 1 {
            return Some(self.choice);
        }
        let count = listen.choices();
        let others = (1..=count).map(|step| (self.choice + step) % count);
        others
            .into_iter()
            .find(|choice| self.hopeless & (1 << choice) == 0)
    }
}

/// A config that is being carried out.
#[derive(Debug)]
struct UnderWay {
    config: u64,
    stream_id: StreamId,
    wanted: Box<SessionConfig>,
    /// It changes a part of what is in force, which then goes on.
    is_update: bool,
    clip: Option<Clip>,
    patience: Vec<Duration>,
    /// The recogniser that is being opened.
    stt: Option<u32>,
    /// Which of those that were asked for.
    choice: usize,
    room: Option<RoomOfSession>,
}

/// What is in force.
#[derive(Debug)]
struct InForce {
    config: u64,
    stt: Option<ListenConfig>,
    tts: Option<SpeechConfig>,
    vad: VadConfig,
    clip: Option<Clip>,
    /// How long each recogniser that may hear takes over a final.
    patience: Vec<Duration>,
    recording: bool,
    room: Option<(RoomConfig, RoomOfSession)>,
}

#[derive(Debug)]
struct Ending {
    code: u16,
    reason: &'static str,
    deadline: Instant,
}

/// The session.
#[derive(Debug)]
pub struct Session {
    stream_id: Option<StreamId>,
    /// When the first config must have come.
    config_due: Option<Instant>,
    config_timeout: Duration,
    under_way: Option<UnderWay>,
    in_force: Option<InForce>,
    backlog: VecDeque<Command>,
    backlog_bytes: usize,
    stt: Option<Child>,
    /// Those that were replaced and finish.
    succession: Succession,
    tts: Option<Child>,
    turns: Option<TurnDetector>,
    interruption: Interruption,
    /// Whether something is being said that may be cut.
    playing: bool,
    /// How much sound the session has heard.
    heard: Duration,
    /// What was heard before the first config was in force.
    early: Vec<(VadEvent, Moment)>,
    lives: u32,
    ending: Option<Ending>,
    /// The last words of participants, who are transcribed alone, are waited for.
    awaits_participants: bool,
    ended: bool,
    effects: Vec<Effect>,
}

impl Session {
    /// A session whose socket has just been opened.
    pub fn new(now: Instant, config_timeout: Duration) -> Self {
        Self {
            stream_id: None,
            config_due: Some(now + config_timeout),
            config_timeout,
            under_way: None,
            in_force: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            stt: None,
            succession: Succession::default(),
            tts: None,
            turns: None,
            interruption: Interruption::default(),
            playing: false,
            heard: Duration::ZERO,
            early: Vec::new(),
            lives: 0,
            ending: None,
            awaits_participants: false,
            ended: false,
            effects: Vec::new(),
        }
    }

    /// What is to be done now, in this order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether this config is in force.
    pub fn is_in_force(&self, config: u64) -> bool {
        self.in_force
            .as_ref()
            .is_some_and(|known| known.config == config)
    }

    /// Whether this config is being carried out.
    pub fn is_carrying_out(&self, config: u64) -> bool {
        let known = self.under_way.as_ref();
        known.is_some_and(|known| known.config == config)
    }

    /// Takes a message; while a config is carried out it waits.
    pub fn message(&mut self, command: Command) {
        if self.ending.is_some() || self.ended {
            return;
        }
        if self.under_way.is_none() {
            return self.carry_out(command);
        }
        if self.backlog.len() >= MAX_BACKLOG
            || self.backlog_bytes + command.bytes > MAX_BACKLOG_BYTES
        {
            if let ClientMessage::Config(_) = command.message {
                let config = command.config;
                self.effects.push(Effect::Discard { config });
            }
            let message = "too much waits for the config that is being carried out";
            return self.refuse(ErrorCode::Overloaded, message);
        }
        self.backlog_bytes += command.bytes;
        self.backlog.push_back(command);
    }

    fn carry_out(&mut self, command: Command) {
        let message = match command.message {
            ClientMessage::Config(wanted) => {
                return self.configure(command.config, wanted);
            }
            ClientMessage::UpdateConfig(update) => {
                return self.update(command.config, *update);
            }
            message => message,
        };
        let Some(in_force) = &self.in_force else {
            return self.refuse(ErrorCode::NotConfigured, "send config first");
        };
        let speaks = in_force.tts.is_some();
        let loads = in_force.clip.is_some();
        let effect = match message {
            ClientMessage::Config(_) | ClientMessage::UpdateConfig(_) => return,
            ClientMessage::SendMessage(_) | ClientMessage::Telephone(_)
                if in_force.room.is_none() =>
            {
                return self.refuse(ErrorCode::RtcNotConfigured, "the session is in no room");
            }
            ClientMessage::SendMessage(message) => Effect::SendToRoom(message),
            ClientMessage::Telephone(wish) => Effect::Telephone(wish),
            _ if !speaks => {
                return self.refuse(
                    ErrorCode::AudioDisabled,
                    "the session was configured with audio: false",
                );
            }
            ClientMessage::Speak(_) if self.tts.as_ref().is_some_and(|tts| tts.failed) => {
                return self.refuse(ErrorCode::TtsFailed, MUTE);
            }
            ClientMessage::Speak(speak) => {
                if speak.replace {
                    self.is_not_interrupted(InterruptionReason::Cleared);
                }
                Effect::Speak(speak)
            }
            ClientMessage::Clear => {
                self.is_not_interrupted(InterruptionReason::Cleared);
                Effect::Clear
            }
            ClientMessage::LoadingStart | ClientMessage::LoadingStop if !loads => {
                return self.refuse(
                    ErrorCode::LoadingUnavailable,
                    "there is no loading sound: it needs loading_audio in config, and linear16 output",
                );
            }
            ClientMessage::LoadingStart => Effect::Load(true),
            ClientMessage::LoadingStop => Effect::Load(false),
        };
        self.effects.push(effect);
    }

    fn configure(&mut self, config: u64, wanted: Box<SessionConfig>) {
        let refusal = match (&self.stream_id, &wanted.stream_id) {
            (Some(has), Some(wants)) if has != wants => Some(Refusal::new(
                ErrorCode::InvalidMessage,
                "stream_id: cannot change during a session",
            )),
            _ if self.in_force.is_some() => self.other_room(wanted.rtc.as_ref()),
            _ => None,
        };
        let nothing_to_record = || {
            let alone = wanted.rtc.as_ref().is_some_and(|rtc| rtc.listen.is_some());
            let nothing = wanted.records() && wanted.stt.is_none() && !alone;
            let problem = "recording: without audio there is nothing to record";
            nothing.then(|| Refusal::new(ErrorCode::RecordingUnavailable, problem))
        };
        let refusal = refusal.or_else(nothing_to_record);
        if let Some(refusal) = refusal {
            return self.config_failed(config, refusal);
        }
        let has = self.stream_id.clone();
        let stream_id = has
            .or_else(|| wanted.stream_id.clone())
            .unwrap_or_else(StreamId::random);
        self.prepare(config, stream_id, wanted, false);
    }

    /// Finds out whether a config can be carried out.
    fn prepare(
        &mut self,
        config: u64,
        stream_id: StreamId,
        wanted: Box<SessionConfig>,
        is_update: bool,
    ) {
        let known = self.in_force.as_ref().and_then(|known| known.stt.as_ref());
        // After one that was given up the next hears everything that is kept.
        let is_deaf = self.stt.as_ref().is_none_or(|stt| stt.failed);
        let anew = known.is_some() && known != wanted.stt.as_ref() && !is_deaf;
        let sound = if is_update {
            SoundOf::Session { anew }
        } else {
            SoundOf::Message { anew }
        };
        self.effects.push(Effect::Prepare {
            config,
            stream_id: stream_id.clone(),
            wanted: wanted.clone(),
            sound,
        });
        self.under_way = Some(UnderWay {
            config,
            stream_id,
            wanted,
            is_update,
            clip: None,
            patience: Vec::new(),
            stt: None,
            choice: 0,
            room: None,
        });
    }

    /// What speaks against this room of a further config: a session joins its room with its first one.
    fn other_room(&self, wanted: Option<&RoomConfig>) -> Option<Refusal> {
        let in_force = self.in_force.as_ref();
        let has = in_force.and_then(|known| known.room.as_ref().map(|(config, _)| config));
        let problem = match (has, wanted) {
            (None, None) => return None,
            (None, Some(_)) => "rtc: a session joins its room with its first config",
            (Some(_), None) => "rtc: the room of a session cannot change",
            (Some(has), Some(wants)) => {
                let fixed = [
                    (
                        has.room_name != wants.room_name,
                        "rtc.room_name: cannot change during a session",
                    ),
                    (
                        has.identity != wants.identity,
                        "rtc.service_participant_identity: cannot change during a session",
                    ),
                    (
                        has.name != wants.name,
                        "rtc.service_participant_name: cannot change during a session",
                    ),
                    (
                        has.stt_mode != wants.stt_mode,
                        "rtc.stt_mode: cannot change during a session",
                    ),
                ];
                let mut changed = fixed.into_iter().filter(|(changed, _)| *changed);
                changed.next()?.1
            }
        };
        Some(Refusal::new(ErrorCode::InvalidMessage, problem))
    }

    /// Everybody else has been gone from the room for long enough.
    pub fn deserted(&mut self, moment: Moment) {
        self.end(1000, "nobody else is left in the room", moment);
    }

    /// The session is not in its room any more.
    pub fn room_lost(&mut self, provider: &str, ending: &RoomEnding, moment: Moment) {
        if self.ending.is_some() || self.ended {
            return;
        }
        self.provider_event("rtc", "failed", provider.to_owned(), ending.to_string());
        let (code, reason) = match ending {
            RoomEnding::Left => (1000, "the room was left"),
            RoomEnding::Removed => (1000, "the session was removed from its room"),
            RoomEnding::Disowned => (1000, "the room belongs to somebody else now"),
            RoomEnding::Duplicate => (1000, "another participant took the session's identity"),
            RoomEnding::RoomDeleted => (1000, "the room was deleted"),
            RoomEnding::Refused(_)
            | RoomEnding::Quota(_)
            | RoomEnding::Network(_)
            | RoomEnding::Overrun => {
                self.tell(ServerMessage::Error {
                    message: ending.to_string(),
                    code: ErrorCode::RtcFailed,
                    fatal: true,
                });
                (1011, "the room was lost")
            }
        };
        self.end(code, reason, moment);
    }

    /// The way to the room is lost, or found again.
    pub fn room_changes(&mut self, state: &'static str, provider: &str, message: &str) {
        self.provider_event("rtc", state, provider.to_owned(), message.to_owned());
    }

    fn update(&mut self, config: u64, update: ConfigUpdate) {
        let (Some(known), Some(stream_id)) = (&self.in_force, &self.stream_id) else {
            return self.refuse(ErrorCode::NotConfigured, "send config first");
        };
        let (stream_id, recording) = (stream_id.clone(), known.recording);
        let mut room = known.room.as_ref().map(|(config, _)| config.clone());
        // Where the participants of a room are heard alone, it is they for whom it changes.
        let alone = room.as_ref().and_then(|room| room.listen.as_deref());
        let changeable = Changeable {
            stt: known.stt.as_ref().or(alone),
            tts: known.tts.as_ref(),
            vad: &known.vad,
        };
        match update.over(changeable) {
            Ok(Some(mut wanted)) => {
                wanted.recording = recording;
                if let Some(room) = room.as_mut().filter(|room| room.listen.is_some()) {
                    room.listen = wanted.stt.take().map(Box::new);
                }
                wanted.rtc = room;
                self.prepare(config, stream_id, Box::new(wanted), true);
            }
            Ok(None) => self.refuse(
                ErrorCode::AudioDisabled,
                "the session was configured with audio: false",
            ),
            Err(misfit) => self.refuse(ErrorCode::InvalidMessage, misfit.to_string()),
        }
    }

    fn config_failed(&mut self, config: u64, refusal: Refusal) {
        self.under_way = None;
        self.early.clear();
        self.effects.push(Effect::Discard { config });
        self.refuse(refusal.code, refusal.message);
    }

    /// Takes what was found out about a config.
    pub fn prepared(&mut self, config: u64, prepared: Result<Prepared, Refusal>, now: Instant) {
        let Some(under_way) = self.under_way.as_mut().filter(|u| u.config == config) else {
            return;
        };
        let Prepared {
            clip,
            is_heard,
            patience,
            room,
        } = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                self.config_failed(config, refusal);
                return self.carry_on();
            }
        };
        under_way.patience = patience;
        under_way.room = room;
        let bad_clip = match clip {
            Some(Ok(clip)) => {
                under_way.clip = Some(clip);
                None
            }
            Some(Err(misfit)) => Some(misfit),
            None => None,
        };
        let listen = under_way.wanted.stt.clone();
        let goes_on = self.stt.as_ref().is_some_and(|stt| !stt.failed);
        let to_open = listen.filter(|_| !goes_on || !is_heard);
        if let Some(listen) = to_open {
            self.lives += 1;
            let life = self.lives;
            under_way.stt = Some(life);
            self.effects.push(Effect::StartStt {
                life,
                config,
                listen: listen.choice(0),
            });
        }
        let opens = under_way.stt.is_some();
        if let Some(misfit) = bad_clip {
            self.refuse(ErrorCode::InvalidLoadingAudio, misfit.to_string());
        }
        if !opens {
            self.commit(now);
        }
    }

    /// Everything that a config needs is there.
    fn commit(&mut self, now: Instant) {
        let Some(under_way) = self.under_way.take() else {
            return;
        };
        let UnderWay {
            config,
            stream_id,
            wanted,
            is_update,
            clip,
            patience,
            stt,
            choice,
            room,
        } = under_way;
        let (records, egress) = (wanted.records(), wanted.room_for_egress().is_some());
        let SessionConfig {
            stt: listen,
            tts: speech,
            vad,
            recording,
            rtc,
            ..
        } = *wanted;
        let mut before = self.in_force.take();
        let was_in = before.as_mut().and_then(|before| before.room.take());
        let changed = |(was, _): &(RoomConfig, _)| rtc.as_ref().is_some_and(|rtc| rtc != was);
        let changes_room = was_in.as_ref().is_some_and(changed);
        let room = room.or_else(|| was_in.map(|(_, shown)| shown));
        let room = rtc.zip(room);
        let rate =
            |layout: Option<Layout>| layout.map_or(SampleRate::HZ_48000, |layout| layout.rate);
        let rates = || {
            let heard = listen.as_ref().map(|listen| listen.format.layout);
            let played = speech.as_ref().map(|speech| speech.format.layout);
            (rate(heard), rate(played))
        };
        self.effects.push(Effect::Commit {
            config,
            vad,
            recording: records.then(rates),
            egress,
        });
        if (stt.is_some() || listen.is_none())
            && let Some(old) = self.stt.take()
            && let Some(before) = &before
            && let Some(heard) = &before.stt
        {
            self.retire(&old, before.config, heard, now);
        }
        if let (Some(life), Some(listen)) = (stt, &listen) {
            let restarts = Restarts::new(RestartPolicy::RECOGNISER);
            let provider = listen.choice(choice).provider;
            self.stt = Some(Child {
                choice,
                works: true,
                ..Child::new(life, provider, restarts)
            });
        }
        let languages = listen.iter().flat_map(|listen| {
            let others = listen.languages.iter().map(String::as_str);
            std::iter::once(listen.language.as_str()).chain(others)
        });
        let steps = self.interruption.configure(&vad, languages, self.heard);
        self.interrupted(steps);
        let (spoke, had_clip) = before.map_or((None, None), |before| (before.tts, before.clip));
        let clip = if is_update {
            had_clip.clone()
        } else {
            clip.filter(|_| speech.is_some())
        };
        let new_output = self.speak_with(spoke.as_ref(), speech.as_ref(), is_update);
        if new_output || had_clip != clip {
            self.effects.push(Effect::SetClip(clip.clone()));
        }
        self.in_force = Some(InForce {
            config,
            stt: listen,
            tts: speech,
            vad,
            clip,
            patience,
            recording,
            room: room.clone(),
        });
        if let Some((config, _)) = room.as_ref().filter(|_| changes_room) {
            let config = Box::new(config.clone());
            self.effects.push(Effect::ChangeRoom(config));
        }
        self.set_turns();
        self.config_due = None;
        self.stream_id = Some(stream_id.clone());
        let room = room.map(|(_, shown)| shown);
        self.tell(ServerMessage::Ready { stream_id, room });
        for (event, moment) in std::mem::take(&mut self.early) {
            self.ear(EarNews::Voice(event), moment);
        }
        self.carry_on();
    }

    /// A recogniser that is replaced finishes what it has heard. One that is between two lives needs another for it.
    fn retire(&mut self, old: &Child, config: u64, listen: &ListenConfig, now: Instant) {
        let listen = listen.choice(old.choice);
        let mut life = old.life;
        if old.restart_at.is_some() && !old.failed {
            self.lives += 1;
            life = self.lives;
            self.effects.push(Effect::StartStt {
                life,
                config,
                listen: listen.clone(),
            });
        }
        self.effects.push(Effect::EndStt { life });
        if !old.failed {
            self.succession
                .retire((old.seat, life), config, listen, now);
        }
    }

    /// Speaks in another way from now on, where it is another; true where there is another output for it. An update lets
    /// what is queued be said as it would have been.
    fn speak_with(
        &mut self,
        spoke: Option<&SpeechConfig>,
        speech: Option<&SpeechConfig>,
        is_update: bool,
    ) -> bool {
        let is_mute = self.tts.as_ref().is_some_and(|tts| tts.failed);
        if spoke == speech && !is_mute {
            return false;
        }
        match (speech, &mut self.tts) {
            (Some(speech), Some(tts)) if is_update && !is_mute => {
                tts.provider.clone_from(&speech.provider);
                let speech = Box::new(speech.clone());
                self.effects.push(Effect::ChangeVoice(speech));
                false
            }
            _ => {
                self.is_not_interrupted(InterruptionReason::Cleared);
                let output = speech.cloned().map(Box::new);
                self.effects.push(Effect::SetOutput(output));
                self.tts = speech.map(|speech| self.new_tts(speech));
                true
            }
        }
    }

    /// When a turn is over depends on the config and on who hears.
    fn set_turns(&mut self) {
        let Some(known) = self.in_force.as_ref().filter(|known| known.stt.is_some()) else {
            return;
        };
        let choice = self.stt.as_ref().map_or(0, |stt| stt.choice);
        let mut settings = known.vad.turn_settings();
        if let Some(patience) = known.patience.get(choice) {
            settings.final_patience = *patience;
        }
        match &mut self.turns {
            Some(turns) => turns.set(settings),
            turns => *turns = Some(TurnDetector::new(settings)),
        }
    }

    fn new_tts(&mut self, speech: &SpeechConfig) -> Child {
        self.lives += 1;
        let life = self.lives;
        self.effects.push(Effect::StartTts {
            life,
            speech: Box::new(speech.clone()),
        });
        Child::new(
            life,
            speech.provider.clone(),
            Restarts::new(RestartPolicy::SYNTHESISER),
        )
    }

    /// Carries out what waited for the config, up to the next one.
    fn carry_on(&mut self) {
        while self.under_way.is_none()
            && let Some(command) = self.backlog.pop_front()
        {
            self.backlog_bytes -= command.bytes;
            self.carry_out(command);
        }
    }

    /// Takes whether something is being said that may be cut, and how much sound the session has heard.
    pub const fn plays(&mut self, playing: bool, heard: Duration) {
        self.playing = playing;
        self.heard = heard;
    }

    /// Whether somebody wants to interrupt is not the question any more.
    fn is_not_interrupted(&mut self, reason: InterruptionReason) {
        let steps = self.interruption.abandon(reason, self.heard);
        self.interrupted(steps);
    }

    fn interrupted(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Yield(mode) => self.effects.push(Effect::Yield(mode)),
                Step::Resume => self.effects.push(Effect::Resume),
                Step::Cut => self.effects.push(Effect::Clear),
                Step::Tell(event) => self.tell(ServerMessage::Interruption(event)),
            }
        }
    }

    /// The recording has stopped before its end.
    pub fn recording_failed(&mut self, store: &str, problem: String) {
        self.provider_event("recording", "failed", store.to_owned(), problem);
    }

    /// Takes what a recogniser says. `lost` is how much sound was dropped so far because there was none.
    pub fn stt(&mut self, report: SttReport, lost: Duration, moment: Moment) {
        let SttReport { life, news } = report;
        let opening = self.under_way.as_ref().filter(|u| u.stt == Some(life));
        if let Some(under_way) = opening {
            let config = under_way.config;
            match news {
                SttNews::Opened => self.commit(moment.now),
                SttNews::Heard(_) => {}
                SttNews::Stopped(outcome) => {
                    let error = outcome.err().unwrap_or_else(ended_early);
                    if !self.open_fallback(&error) {
                        self.config_failed(config, of_provider(&error, ErrorCode::SttFailed));
                        self.carry_on();
                    }
                }
            }
            return;
        }
        self.tell_loss(life, lost);
        match news {
            SttNews::Heard(event) => self.heard(life, event, moment),
            SttNews::Opened => self.recovered(life, lost, moment),
            SttNews::Stopped(outcome) if self.succession.seat_of(life).is_some() => {
                self.former_stopped(life, outcome, moment);
            }
            SttNews::Stopped(outcome) => self.stt_stopped(life, outcome, moment),
        }
    }

    /// Who was replaced has said its last, or needs another life for it.
    fn former_stopped(&mut self, life: u32, outcome: Result<(), ProviderError>, moment: Moment) {
        let next = self.lives + 1;
        if outcome.is_err()
            && let Some(former) = self.succession.revive(life, next)
        {
            let (config, listen) = (former.config, former.listen.clone());
            self.lives = next;
            self.effects.push(Effect::StartStt {
                life: next,
                config,
                listen,
            });
            return self.effects.push(Effect::EndStt { life: next });
        }
        let former = self.succession.ended(life);
        if let (Some(former), Err(error)) = (former, outcome) {
            self.last_words_lost(former, error.message);
        }
        self.tell_waiting(moment);
        self.close_when_heard(moment);
    }

    fn last_words_lost(&mut self, former: Former, why: String) {
        self.provider_event("stt", "failed", former.listen.provider, why);
    }

    /// Tells what has waited for former recognisers.
    fn tell_waiting(&mut self, moment: Moment) {
        for (event, heard) in self.succession.due() {
            self.understood(event, Moment { heard, ..moment });
        }
    }

    /// The recogniser of the config that is being carried out has failed to open: whether another is asked.
    fn open_fallback(&mut self, error: &ProviderError) -> bool {
        let Some(under_way) = &mut self.under_way else {
            return false;
        };
        let listen = under_way.wanted.stt.as_ref();
        let next = listen.filter(|listen| under_way.choice + 1 < listen.choices());
        let Some(listen) = next else { return false };
        under_way.choice += 1;
        let listen = listen.choice(under_way.choice);
        self.lives += 1;
        under_way.stt = Some(self.lives);
        let config = under_way.config;
        let provider = listen.provider.clone();
        self.provider_event("stt", "switched", provider, error.to_string());
        self.effects.push(Effect::StartStt {
            life: self.lives,
            config,
            listen,
        });
        true
    }

    fn heard(&mut self, life: u32, event: SttEvent, moment: Moment) {
        let current = self.stt.as_mut().filter(|stt| stt.life == life);
        let seat = match current {
            Some(stt) => {
                stt.works = true;
                if matches!(&event, SttEvent::Final(heard) if !heard.text.is_empty()) {
                    stt.restarts.forgive(moment.now.into());
                }
                stt.seat
            }
            // That it has heard the end of its sound is no end of a turn.
            None if matches!(event, SttEvent::EndOfSpeech) => return,
            None => self.succession.seat_of(life).unwrap_or_default(),
        };
        if let Some(event) = self.succession.take(seat, event, moment.heard) {
            self.understood(event, moment);
        }
        self.tell_waiting(moment);
    }

    fn understood(&mut self, event: SttEvent, moment: Moment) {
        if let SttEvent::UtteranceLost(error) = &event {
            let refusal = of_provider(error, ErrorCode::SttFailed);
            self.refuse(refusal.code, refusal.message);
        }
        let steps = self.interruption.stt(&event, moment, self.playing);
        self.interrupted(steps);
        if let Some(turns) = &mut self.turns {
            let events = turns.stt(event, moment);
            self.turned(events);
        }
    }

    fn turned(&mut self, events: Vec<TurnEvent>) {
        for event in events {
            match event {
                TurnEvent::Result(result) => self.tell(ServerMessage::SttResult(result)),
                TurnEvent::Voice(event) => self.tell(ServerMessage::VadEvent(event)),
                TurnEvent::Finalize => self.effects.push(Effect::Finalize),
            }
        }
    }

    /// Sound that came faster than it can be heard; what was lost while the recogniser was away is told when it is back.
    fn tell_loss(&mut self, life: u32, lost: Duration) {
        let Some(stt) = self
            .stt
            .as_mut()
            .filter(|stt| stt.life == life && !stt.away)
        else {
            return;
        };
        let more = lost.saturating_sub(std::mem::replace(&mut stt.lost_told, lost));
        if !more.is_zero() {
            let ms = more.as_millis();
            let message =
                format!("{ms} ms of sound came faster than it can be heard, and were dropped");
            self.refuse(ErrorCode::Overloaded, message);
        }
    }

    fn recovered(&mut self, life: u32, lost: Duration, moment: Moment) {
        let Some(stt) = self.stt.as_mut().filter(|stt| stt.life == life) else {
            return;
        };
        stt.opened_at = Some(moment.now);
        if std::mem::take(&mut stt.away) {
            let provider = stt.provider.clone();
            let lost = lost.saturating_sub(std::mem::replace(&mut stt.lost_told, lost));
            let message = if lost.is_zero() {
                "everything that was said meanwhile is heard".to_owned()
            } else {
                format!("{} ms of sound had to be dropped", lost.as_millis())
            };
            self.provider_event("stt", "recovered", provider, message);
        }
    }

    fn stt_stopped(&mut self, life: u32, outcome: Result<(), ProviderError>, moment: Moment) {
        let Some(stt) = self.stt.as_mut().filter(|stt| stt.life == life) else {
            return;
        };
        if self.ending.is_some() {
            self.stt = None;
            return self.close_when_heard(moment);
        }
        let error = outcome.err().unwrap_or_else(ended_early);
        let listen = self.in_force.as_ref().and_then(|known| known.stt.as_ref());
        let worked = stt.take_works(moment.now);
        let next = listen.and_then(|listen| stt.next_choice(listen, &error, worked));
        let delay = next.and_then(|_| stt.restarts.next(moment.now.into(), jitter()));
        let (Some(next), Some(delay), Some(listen)) = (next, delay, listen) else {
            stt.failed = true;
            let refusal = of_provider(&error, ErrorCode::SttFailed);
            let provider = stt.provider.clone();
            self.provider_event("stt", "failed", provider, error.message);
            return self.refuse(
                ErrorCode::SttFailed,
                format!(
                    "{}; nothing is heard until config is sent again",
                    refusal.message
                ),
            );
        };
        // A fallback need not be waited for, and neither need the first attempt where there is one.
        let at_once = next > stt.choice || (listen.choices() > 1 && next == stt.choice && worked);
        let delay = if at_once { Duration::ZERO } else { delay };
        stt.restart_at = Some(moment.now + delay);
        let was_away = std::mem::replace(&mut stt.away, true);
        if std::mem::replace(&mut stt.choice, next) != next {
            stt.provider = listen.choice(next).provider;
            let provider = stt.provider.clone();
            self.set_turns();
            self.provider_event("stt", "switched", provider, error.to_string());
        } else if !was_away {
            let provider = stt.provider.clone();
            self.provider_event("stt", "reconnecting", provider, error.message);
        }
    }

    /// Takes what a synthesiser says. `unsaid` is whether it had an utterance in hand when it went.
    pub fn tts(&mut self, report: TtsReport, now: Instant) {
        let TtsReport { life, news } = report;
        let Some(tts) = self.tts.as_mut().filter(|tts| tts.life == life) else {
            return;
        };
        let provider = tts.provider.clone();
        match news {
            TtsNews::Retrying(error) => {
                tts.away = true;
                self.provider_event("tts", "reconnecting", provider, error.to_string());
            }
            TtsNews::Recovered => {
                tts.away = false;
                self.provider_event("tts", "recovered", provider, "it speaks again".to_owned());
            }
            TtsNews::Switched { to, error } => {
                tts.away = false;
                tts.provider.clone_from(&to);
                self.provider_event("tts", "switched", to, error.to_string());
            }
            TtsNews::Failed(error) => {
                let refusal = of_synthesis(&error);
                if std::mem::take(&mut tts.away) {
                    self.provider_event("tts", "failed", provider, error.to_string());
                }
                self.refuse(refusal.code, refusal.message);
            }
            TtsNews::Stopped => self.tts_stopped(now),
        }
    }

    fn tts_stopped(&mut self, now: Instant) {
        self.effects.push(Effect::TtsLost);
        let Some(tts) = &mut self.tts else { return };
        let provider = tts.provider.clone();
        let delay = tts.restarts.next(now.into(), jitter());
        tts.restart_at = delay.map(|delay| now + delay);
        if delay.is_none() {
            tts.failed = true;
            let message = "the synthesiser has ended too often".to_owned();
            self.provider_event("tts", "failed", provider, message);
            self.refuse(ErrorCode::TtsFailed, MUTE);
            // Nobody will say what waits: it ends here. The loading sound does not need a synthesiser.
            if let Some(in_force) = &self.in_force {
                let speech = in_force.tts.clone().map(Box::new);
                self.effects.push(Effect::SetOutput(speech));
                self.effects.push(Effect::SetClip(in_force.clip.clone()));
            }
        }
    }

    /// Takes what was heard of the client's sound.
    pub fn ear(&mut self, news: EarNews, moment: Moment) {
        match news {
            EarNews::Voice(event) => {
                if let Some(turns) = &mut self.turns {
                    let events = turns.vad(event, moment);
                    self.turned(events);
                    let steps = self.interruption.vad(event, moment, self.playing);
                    self.interrupted(steps);
                } else if self.early.len() < MAX_EARLY {
                    self.early.push((event, moment));
                }
            }
            EarNews::Undecodable(problem) => {
                let message = format!("binary: {problem}");
                self.refuse(ErrorCode::InvalidMessage, message);
            }
        }
    }

    /// When [`Session::tick`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let config = self.config_due.filter(|_| self.under_way.is_none());
        let restart = |child: &Option<Child>| child.as_ref().and_then(|child| child.restart_at);
        let turn = self.turns.as_ref().and_then(TurnDetector::next_deadline);
        let interruption = self.interruption.next_deadline();
        let ending = self.ending.as_ref().map(|ending| ending.deadline);
        if self.ended {
            return None;
        }
        let former = self.succession.deadline();
        let children = [restart(&self.stt), restart(&self.tts)];
        let others = [config, former, turn, interruption, ending];
        children.into_iter().chain(others).flatten().min()
    }

    /// Lets time pass.
    pub fn tick(&mut self, moment: Moment) {
        if self.ended {
            return;
        }
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= moment.now);
        if due(self.ending.as_ref().map(|ending| ending.deadline)) {
            return self.close(moment);
        }
        if self.under_way.is_none() && due(self.config_due) {
            let seconds = self.config_timeout.as_secs_f64();
            self.tell(ServerMessage::Error {
                message: format!("no config was carried out within {seconds} s"),
                code: ErrorCode::ConfigTimeout,
                fatal: true,
            });
            self.ended = true;
            let reason = "no config";
            return self.effects.push(Effect::Close { code: 4408, reason });
        }
        if let Some(turns) = &mut self.turns {
            let events = turns.tick(moment);
            self.turned(events);
        }
        for former in self.succession.give_up(moment.now) {
            let why = "what was said last before the change could not be made final in time";
            self.last_words_lost(former, why.to_owned());
            self.tell_waiting(moment);
        }
        let steps = self.interruption.tick(moment, self.playing);
        self.interrupted(steps);
        self.restart(moment.now);
    }

    fn restart(&mut self, now: Instant) {
        let Some(in_force) = &self.in_force else {
            return;
        };
        let due = |child: &mut Child| child.restart_at.take_if(|at| *at <= now).is_some();
        if let (Some(stt), Some(listen)) = (&mut self.stt, &in_force.stt)
            && due(stt)
        {
            self.lives += 1;
            stt.life = self.lives;
            self.effects.push(Effect::StartStt {
                life: self.lives,
                config: in_force.config,
                listen: listen.choice(stt.choice),
            });
        }
        if let (Some(tts), Some(speech)) = (&mut self.tts, &in_force.tts)
            && due(tts)
        {
            self.lives += 1;
            tts.life = self.lives;
            self.effects.push(Effect::StartTts {
                life: self.lives,
                speech: Box::new(speech.clone()),
            });
        }
    }

    /// The server ends the session: what was said is understood first, what is being said is cut.
    pub fn end(&mut self, code: u16, reason: &'static str, moment: Moment) {
        self.end_within(code, reason, LAST_WORDS, moment);
    }

    /// The same where the last words may take only so long.
    pub fn end_within(
        &mut self,
        code: u16,
        reason: &'static str,
        patience: Duration,
        moment: Moment,
    ) {
        if self.ending.is_some() || self.ended {
            return;
        }
        if let Some(under_way) = self.under_way.take() {
            let config = under_way.config;
            self.effects.push(Effect::Discard { config });
        }
        self.backlog.clear();
        self.ending = Some(Ending {
            code,
            reason,
            deadline: moment.now + patience,
        });
        self.is_not_interrupted(InterruptionReason::Ended);
        self.effects.push(Effect::SetOutput(None));
        let room = self.in_force.as_ref().and_then(|known| known.room.as_ref());
        self.awaits_participants = room.is_some_and(|(room, _)| room.listen.is_some());
        if self.awaits_participants {
            let patience = patience.saturating_sub(PARTICIPANTS_EARLIER);
            self.effects.push(Effect::EndParticipants(patience));
        }
        match &self.stt {
            Some(stt) if stt.restart_at.is_none() && !stt.failed => {
                let life = stt.life;
                self.effects.push(Effect::EndStt { life });
            }
            _ => {
                self.stt = None;
                self.close_when_heard(moment);
            }
        }
    }

    /// Whether somebody still hears the sound of this config.
    pub fn needs_sound_of(&self, config: u64) -> bool {
        self.succession.needs(config)
    }

    /// Closes a session that ends, once everybody has said their last.
    fn close_when_heard(&mut self, moment: Moment) {
        let all_heard = self.stt.is_none() && self.succession.is_over();
        if self.ending.is_some() && all_heard && !self.awaits_participants {
            self.close(moment);
        }
    }

    /// The last words of all participants have been told.
    pub fn participants_ended(&mut self, moment: Moment) {
        self.awaits_participants = false;
        self.close_when_heard(moment);
    }

    /// Ends it because its client may not be here any longer, and tells why.
    pub fn expel(&mut self, why: &'static str, moment: Moment) {
        if self.ending.is_some() || self.ended {
            return;
        }
        self.tell(ServerMessage::Error {
            message: why.to_owned(),
            code: ErrorCode::Unauthorized,
            fatal: true,
        });
        self.end(1008, why, moment);
    }

    fn close(&mut self, moment: Moment) {
        self.succession.end();
        self.tell_waiting(moment);
        if let Some(turns) = &mut self.turns {
            let events = turns.end(moment);
            self.turned(events);
        }
        if let Some(Ending { code, reason, .. }) = self.ending.take() {
            self.effects.push(Effect::Close { code, reason });
        }
        self.ended = true;
    }

    fn tell(&mut self, message: ServerMessage) {
        self.effects.push(Effect::Tell(message));
    }

    fn refuse(&mut self, code: ErrorCode, message: impl Into<String>) {
        self.tell(ServerMessage::refusal(code, message));
    }

    fn provider_event(
        &mut self,
        kind: &'static str,
        state: &'static str,
        provider: String,
        message: String,
    ) {
        self.tell(ServerMessage::ProviderEvent {
            kind,
            state,
            provider,
            message,
        });
    }
}

fn ended_early() -> ProviderError {
    ProviderError::new("stt", ErrorKind::Protocol, "the recogniser ended early")
}
