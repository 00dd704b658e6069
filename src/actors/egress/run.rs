//! One egress, from joining its room to leaving it: a participant that nobody sees hears the room, and the recorder of sessions
//! writes what it hears. A task on a thread of its own kind, like the media tasks of a session.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::EgressService;
use super::request::What;
use crate::recorder::{RecorderActor, RecordingFailed, StopRecording, Tap};
use crate::room::{RoomAudioSink, RoomReceiver};
use vivavoce_audio::opus::OpusDecoder;
use vivavoce_audio::{Channels, Layout, Pcm, SampleRate};
use vivavoce_auth::Principal;
use vivavoce_core::unix_time::unix_ms;
use vivavoce_quotas::Permit;
use vivavoce_recordings::Metadata;
use vivavoce_seams::rooms::link::{
    Join, JoinKind, LinkEvent, Listen, Packet, Payload, RoomLink, TrackAudio,
};

/// How long joining may take.
const ENTRY_PATIENCE: Duration = Duration::from_secs(10);
/// How long a packet waits for those before it.
const REORDERING: Duration = Duration::from_millis(120);
/// Packets that wait for those before them.
const MAX_WAITING: usize = 50;

/// What an egress needs.
pub(super) struct Plan {
    pub(super) id: String,
    pub(super) room: String,
    pub(super) what: What,
    /// Whom to hear.
    pub(super) listen: Listen,
    /// The owner of the room: it ends when the room becomes another's.
    pub(super) principal: Principal,
    pub(super) metadata: Metadata,
    pub(super) permit: Permit,
    pub(super) stop: CancellationToken,
}

/// How an egress ended.
pub(super) enum End {
    /// There is a recording; why it was cut off, if it was.
    Recorded(Option<String>),
    /// It was stopped, or the room has ended, before there was anything to record.
    Aborted(&'static str),
    /// It could not begin.
    Failed(String),
}

/// Runs an egress to its end.
pub(super) async fn run(service: EgressService, plan: Plan) {
    let (id, room) = (plan.id.clone(), plan.room.clone());
    let (end, shown) = follow(&service, plan).await;
    if shown {
        // The room may have ended before.
        let _ = service.rooms().show_recording(&room, false).await;
    }
    service.ran(&id, end).await;
}

/// Joins the room as somebody whom nobody sees.
async fn join(
    service: &EgressService,
    id: &str,
    room: &str,
    listen: Listen,
    principal: Principal,
) -> Result<RoomLink, String> {
    let join = Join {
        room: room.to_owned(),
        identity: id.to_owned(),
        name: String::new(),
        kind: JoinKind::Recorder,
        principal,
        owner: None,
        metadata: String::new(),
        attributes: Vec::new(),
        room_config: None,
        listen,
        audio: true,
    };
    match timeout(ENTRY_PATIENCE, service.rooms().connect(join)).await {
        Ok(link) => link.map_err(|error| error.to_string()),
        Err(_) => Err("the room could not be joined in time".to_owned()),
    }
}

/// Gives how it ended, and whether the room shows that it is recorded.
async fn follow(service: &EgressService, plan: Plan) -> (End, bool) {
    let Plan {
        id,
        room,
        what,
        listen,
        principal,
        metadata,
        permit,
        stop,
    } = plan;
    let link = match join(service, &id, &room, listen, principal).await {
        Ok(link) => link,
        Err(problem) => return (End::Failed(problem), false),
    };
    let RoomLink {
        mut events,
        publish: _publishes_nothing,
        control: _left_when_dropped,
    } = link;
    let mut permit = Some(permit);
    let mut recording: Option<Recording> = None;
    let (tell, mut failures) = mpsc::channel(1);
    let problem = loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => break None,
            Some(problem) = failures.recv() => break Some(problem),
            event = events.next() => event,
        };
        match event {
            None | Some(LinkEvent::Ended(_)) => break None,
            Some(LinkEvent::TrackSubscribed {
                identity,
                sid,
                audio,
            }) => {
                if matches!(&what, What::Track(track) if *track != sid) {
                    continue;
                }
                if recording.is_none()
                    && let Some(permit) = permit.take()
                {
                    match Recording::begin(service, &metadata, permit, tell.clone()).await {
                        Ok(begun) => recording = Some(begun),
                        Err(problem) => return (End::Failed(problem), false),
                    }
                    // A room that has just ended shows nothing.
                    let _ = service.rooms().show_recording(&room, true).await;
                    service.active(&id).await;
                }
                if let Some(recording) = &mut recording {
                    let raw = matches!(what, What::Track(_));
                    recording.hear(identity, sid, audio, raw);
                }
            }
            Some(LinkEvent::TrackUnpublished { sid, .. }) => {
                if let Some(recording) = &recording {
                    recording.receiver.close(&sid);
                }
                if what == What::Track(sid) {
                    break None;
                }
            }
            Some(LinkEvent::ParticipantLeft(left)) => {
                if let Some(recording) = &recording {
                    recording.receiver.forget(&left.identity);
                }
                if what == What::Participant(left.identity) {
                    break None;
                }
            }
            Some(_) => {}
        }
    };
    match recording {
        Some(_) => (End::Recorded(problem), true),
        None => (
            End::Aborted("it ended before anybody published sound"),
            false,
        ),
    }
}

/// A recording in progress. Dropping it ends it: the recorder writes the rest by itself.
struct Recording {
    tap: Tap,
    recorder: Addr<RecorderActor>,
    receiver: RoomReceiver,
    /// Receiving, of all tracks or of the one that is recorded as it is.
    tasks: Vec<AbortOnDropHandle<()>>,
    _reporter: Addr<Reporter>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recorder.do_send(StopRecording);
    }
}

impl Recording {
    async fn begin(
        service: &EgressService,
        metadata: &Metadata,
        permit: Permit,
        tell: mpsc::Sender<String>,
    ) -> Result<Self, String> {
        let metadata = Metadata {
            started_at: unix_ms(SystemTime::now()),
            ..metadata.clone()
        };
        let recordings = service.recordings();
        let journal = recordings.begin(metadata, false).await;
        let journal = journal.map_err(|error| error.to_string())?.counted(permit);
        let rate = SampleRate::HZ_48000;
        let tap = Tap::new(rate, rate, Channels::Mono, Instant::now());
        let reporter = Reporter(tell).start();
        let report = reporter.clone().recipient();
        let work = service.work();
        let recorder =
            RecorderActor::new(tap.clone(), journal, recordings.settings(), work, report).start();
        let receiver = RoomReceiver::new(Rc::new(Sink(tap.clone())));
        let receiving = tokio::task::spawn_local(receiver.clone().run());
        Ok(Self {
            tap,
            recorder,
            receiver,
            tasks: vec![AbortOnDropHandle::new(receiving)],
            _reporter: reporter,
        })
    }

    fn hear(&mut self, identity: String, sid: String, audio: TrackAudio, raw: bool) {
        if !raw {
            return self.receiver.open(identity, sid, audio);
        }
        let task = tokio::task::spawn_local(pass(audio, self.tap.clone()));
        // The reader before it, of a connection that was lost, has ended.
        self.tasks.truncate(1);
        self.tasks.push(AbortOnDropHandle::new(task));
    }
}

/// Takes the mix of a room to the recorder.
struct Sink(Tap);

impl RoomAudioSink for Sink {
    fn push_mix(&self, sound: Pcm) {
        self.0.hear(&sound, None, Instant::now());
    }

    fn wants_participant(&self, _: &str) -> bool {
        false
    }

    fn push_participant(&self, _: &str, _: Pcm) {}

    fn participant_left(&self, _: &str) {}
}

/// Takes the packets of a track to the recorder as they are, in their order. They are decoded only to find the pauses.
async fn pass(audio: TrackAudio, tap: Tap) {
    let mono = Layout::new(SampleRate::HZ_48000, Channels::Mono);
    let mut decoder = match OpusDecoder::new(mono) {
        Ok(decoder) => decoder,
        Err(error) => return tracing::error!(%error, "a track cannot be decoded"),
    };
    let mut order = Order::default();
    let mut ready = Vec::new();
    loop {
        let next = match order.patience(std::time::Instant::now()) {
            Some(patience) => timeout(patience, audio.next()).await.ok(),
            None => Some(audio.next().await),
        };
        match next {
            Some(Some(packet)) => order.push(packet),
            Some(None) => return,
            None => {}
        }
        order.take(std::time::Instant::now(), &mut ready);
        for packet in ready.drain(..) {
            let mut samples = Vec::new();
            // A recorder is given encoded packets. A damaged one is left out: players could not decode it either.
            if let Payload::Opus(payload) = &packet.payload
                && decoder.decode(payload, &mut samples).is_ok()
            {
                let sound = Pcm::new(mono, samples);
                tap.hear(&sound, Some(payload), packet.arrived.into());
            }
        }
    }
}

/// Packets in the order in which they were sent.
#[derive(Debug, Default)]
struct Order {
    next: Option<u64>,
    waiting: BTreeMap<u64, Packet>,
}

impl Order {
    fn push(&mut self, packet: Packet) {
        // One that comes twice, or too late.
        if self.next.is_some_and(|next| packet.sequence < next) {
            return;
        }
        self.waiting.insert(packet.sequence, packet);
    }

    /// How long the first one that waits goes on waiting.
    fn patience(&self, now: std::time::Instant) -> Option<Duration> {
        let (_, first) = self.waiting.first_key_value()?;
        Some((first.arrived + REORDERING).saturating_duration_since(now))
    }

    fn take(&mut self, now: std::time::Instant, ready: &mut Vec<Packet>) {
        while let Some(first) = self.waiting.first_entry() {
            let is_next = self.next.is_none_or(|next| next == *first.key());
            let late = first.get().arrived + REORDERING <= now;
            if !is_next && !late && self.waiting.len() <= MAX_WAITING {
                return;
            }
            let Some((sequence, packet)) = self.waiting.pop_first() else {
                return;
            };
            self.next = Some(sequence + 1);
            ready.push(packet);
        }
    }
}

/// Passes on that the recorder has failed.
struct Reporter(mpsc::Sender<String>);

impl Actor for Reporter {
    type Context = Context<Self>;
}

impl Handler<RecordingFailed> for Reporter {
    type Result = ();

    fn handle(&mut self, RecordingFailed(problem): RecordingFailed, _: &mut Context<Self>) {
        // Once per recording.
        let _ = self.0.try_send(problem);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn packet(sequence: u64, arrived: Instant) -> Packet {
        Packet {
            payload: Payload::Opus([0xF8, 0xFF, 0xFE].as_slice().into()),
            sequence,
            timestamp: 0,
            marker: false,
            arrived,
            level: None,
        }
    }

    #[test]
    fn packets_come_in_order_once_and_a_lost_one_holds_up_the_others_for_a_moment() {
        let (mut order, start, mut ready) = (Order::default(), Instant::now(), Vec::new());
        let mut taken = |order: &mut Order, at| {
            order.take(at, &mut ready);
            let taken: Vec<u64> = ready.drain(..).map(|packet| packet.sequence).collect();
            taken
        };
        for sequence in [5, 7, 5] {
            order.push(packet(sequence, start));
        }
        assert_eq!(taken(&mut order, start), [5]);
        assert_eq!(order.patience(start), Some(REORDERING));
        order.push(packet(6, start));
        order.push(packet(9, start));
        assert_eq!(taken(&mut order, start), [6, 7]);
        assert_eq!(taken(&mut order, start + REORDERING), [9]);
        order.push(packet(8, start));
        assert_eq!(taken(&mut order, start + REORDERING), [0_u64; 0]);
    }
}
