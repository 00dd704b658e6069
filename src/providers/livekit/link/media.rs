//! The media of a session: offers and answers, the mapping of packets to tracks, outgoing frames and messages.

use std::time::{Duration, Instant};

use livekit_protocol as proto;
use proto::SignalTarget;
use proto::signal_request::Message as Ask;
use serde::Deserialize;
use str0m::Input;
use str0m::net::{Protocol, Receive};
use str0m::rtp::RtpPacket;

use super::pc::{Arrival, Pc, Polled};
use super::request::Route;
use super::session::{Phase, Session};
use vivavoce_seams::rooms::link::{Ending, LinkEnd, LinkEvent, Listen, Packet, Payload};
use vivavoce_seams::rooms::view;

/// What a peer connection may yield in one go before anything else has its turn.
const MOST_PER_TURN: usize = 1_000;
/// How long after the end of media its reason may come.
const GOODBYE: Duration = Duration::from_secs(1);

impl Session {
    /// A datagram that came to one of the sockets.
    pub fn datagram(
        &mut self,
        source: std::net::SocketAddr,
        destination: std::net::SocketAddr,
        bytes: &[u8],
        now: Instant,
    ) {
        let Ok(receive) = Receive::new(Protocol::Udp, source, destination, bytes) else {
            return;
        };
        let input = Input::Receive(now, receive);
        // The server sends both connections' packets from one address: which one is meant is said by where they came to.
        let pc = if self.subscriber_addresses.contains(&destination) {
            self.subscriber.as_mut()
        } else {
            Some(&mut self.publisher)
        };
        if let Some(pc) = pc.filter(|pc| pc.accepts(&input)) {
            pc.handle(input);
        }
        self.settle(now);
    }

    pub(super) fn media_time(&mut self, now: Instant) {
        self.publisher.handle(Input::Timeout(now));
        if let Some(subscriber) = &mut self.subscriber {
            subscriber.handle(Input::Timeout(now));
        }
    }

    /// Whether everything flows that shall.
    pub(super) fn media_is_up(&self) -> bool {
        let publisher = self.publisher.is_connected() && !self.publisher.awaits_answer();
        let subscriber = self.subscriber.as_ref().is_some_and(Pc::is_connected);
        !self.wanted.restart && publisher && (self.route == Route::One || subscriber)
    }

    /// The link has something to send, or wishes something else.
    pub fn woken(&mut self, now: Instant) {
        self.settle(now);
    }

    /// Does everything that an input may have made possible.
    pub(super) fn settle(&mut self, now: Instant) {
        self.follow_wishes(now);
        self.frames(now);
        self.poll(now);
        self.check_media(now);
        self.follow_tracks(now);
        self.make_offer(now);
        self.messages(now);
        self.poll(now);
    }

    fn follow_wishes(&mut self, now: Instant) {
        if self.phase == Phase::Over {
            return;
        }
        let wishes = self.end.wishes();
        if wishes.left {
            return self.finish(Ending::Left, now);
        }
        if self.phase != Phase::Open {
            return;
        }
        if let Some(own) = &mut self.publication
            && let Some(info) = &own.info
            && own.muted != wishes.muted
        {
            own.muted = wishes.muted;
            let sid = info.sid.clone();
            let muted = wishes.muted;
            self.ask(Ask::Mute(proto::MuteTrackRequest { sid, muted }));
        }
        if self.attributes != wishes.attributes {
            self.attributes.clone_from(&wishes.attributes);
            self.ask(view::attributes(&wishes.attributes));
        }
        let nobody = Listen::Only(Vec::new());
        let listen = if self.options.join.audio {
            &wishes.listen
        } else {
            &nobody
        };
        for subscription in self.view.subscriptions(listen) {
            if !subscription.subscribe {
                // Asked for again, it comes with another description.
                let refused = &subscription.track_sids;
                self.carried.retain(|_, track| !refused.contains(track));
            }
            self.ask(Ask::Subscription(subscription));
        }
    }

    /// Sends the frames that wait. Without a connection the newest wait on: a new path is often found between two frames.
    fn frames(&mut self, now: Instant) {
        self.end.awake();
        let muted = self.publication.as_ref().is_some_and(|own| own.muted);
        let flows = self.publisher.is_connected() && self.publisher.publishes();
        if !(muted || flows) {
            return;
        }
        while let Some(frame) = self.end.next_frame() {
            if !muted && !self.publisher.write(frame, now) {
                self.end.frame_lost();
            }
        }
    }

    fn messages(&mut self, now: Instant) {
        while self.phase == Phase::Open
            && self.recovery.is_none()
            && self.publisher.takes_messages()
        {
            let Some(message) = self.end.next_message() else {
                return;
            };
            let reliable = message.reliable;
            let packet = self.outbox.packet(message, self.view.identity(), now);
            self.publisher.send(packet, reliable);
        }
    }

    pub(super) fn poll(&mut self, now: Instant) {
        self.wake_at = now + Duration::from_hours(1);
        for subscribing in [false, true] {
            for turn in 0..=MOST_PER_TURN {
                let pc = if subscribing {
                    self.subscriber.as_mut()
                } else {
                    Some(&mut self.publisher)
                };
                let Some(pc) = pc else { break };
                match pc.poll(now) {
                    Polled::Transmit(transmit) => self.out.datagrams.push(transmit),
                    Polled::Arrival(arrival) => self.arrived(subscribing, arrival, now),
                    Polled::Wait(at) => {
                        self.wake_at = self.wake_at.min(at);
                        break;
                    }
                }
                if turn == MOST_PER_TURN {
                    self.wake_at = now;
                }
            }
        }
    }

    fn arrived(&mut self, subscribing: bool, arrival: Arrival, now: Instant) {
        if self.phase == Phase::Over {
            return;
        }
        match arrival {
            Arrival::Lost if self.phase == Phase::Open && self.recovery.is_none() => {
                self.trouble("media stopped arriving", false, now);
            }
            Arrival::Closed if self.phase == Phase::Open => {
                // A server that says goodbye may still say why.
                self.media_by = Some(now + GOODBYE);
            }
            Arrival::Message(bytes, reliable) => {
                if let Some(event) = self.inbox.read(&bytes, reliable) {
                    self.tell(vec![event], now);
                }
            }
            Arrival::Rtp(mid, packet) if subscribing || self.route == Route::One => {
                if let Some(writer) = self
                    .carried
                    .get(&mid)
                    .and_then(|track| self.writers.get(track))
                {
                    writer.write(received(&packet, now));
                }
            }
            Arrival::Changed | Arrival::Lost | Arrival::Closed | Arrival::Rtp(..) => {}
        }
    }

    /// Tells of tracks that can be heard now, and ends those that cannot any more.
    fn follow_tracks(&mut self, now: Instant) {
        if self.phase == Phase::Over {
            return;
        }
        let owner = |track: &String| self.view.owner(track).map(str::to_owned);
        let asked: Vec<&str> = self.view.asked().map(|(sid, _)| sid).collect();
        let live = |track: &String| asked.contains(&track.as_str());
        let heard: Vec<(String, String)> = self
            .carried
            .values()
            .filter(|track| live(track))
            .filter_map(|track| Some((track.clone(), owner(track)?)))
            .collect();
        self.writers
            .retain(|track, _| heard.iter().any(|(heard, _)| heard == track));
        let mut events = Vec::new();
        for (sid, identity) in heard {
            if !self.writers.contains_key(&sid) {
                let (writer, audio) = LinkEnd::track();
                self.writers.insert(sid.clone(), writer);
                events.push(LinkEvent::TrackSubscribed {
                    identity,
                    sid,
                    audio,
                });
            }
        }
        self.tell(events, now);
    }

    /// One offer is out at a time; what is wished meanwhile is in the next.
    fn make_offer(&mut self, now: Instant) {
        let nothing = super::pc::Wanted::default();
        // A restart replaces an offer whose answer went astray with the socket.
        let waits = self.publisher.awaits_answer() && !self.wanted.restart;
        if self.phase != Phase::Open || waits || self.wanted == nothing {
            return;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        if self.publisher.awaits_answer() || !self.publisher.described() {
            self.complete(&mut wanted);
        }
        match self.publisher.offer(&wanted) {
            Ok(Some(offer)) => {
                self.offered_at = Some(now);
                if self.route == Route::One {
                    self.last_offer = Some(offer.clone());
                }
                self.ask(Ask::Offer(offer));
            }
            Ok(None) => {}
            Err(error) => self.failed(&error, now),
        }
    }

    /// An offer that was never answered took its changes with it: the next one has them all.
    fn complete(&self, wanted: &mut super::pc::Wanted) {
        let own = self.publication.as_ref().filter(|own| own.info.is_some());
        if !self.publisher.publishes() {
            wanted.publish = own.map(|own| own.cid.clone());
        }
        if !self.publisher.described() {
            wanted.channels = true;
            wanted.restart = false;
            if self.route == Route::One && self.options.join.audio {
                wanted.slots = wanted.slots.max(3);
            }
        }
    }

    pub(super) fn answered(&mut self, answer: &proto::SessionDescription, now: Instant) {
        match self.publisher.answered(answer) {
            Ok(None) => {}
            Ok(Some(tracks)) => {
                self.offered_at = None;
                if self.route == Route::One {
                    self.last_answer = Some(answer.clone());
                    self.carried = tracks;
                }
            }
            Err(error) => self.failed(&error, now),
        }
    }

    /// An offer of the server: with two connections, of what it sends.
    pub(super) fn offered(&mut self, offer: &proto::SessionDescription, now: Instant) {
        if self.route == Route::One {
            return;
        }
        let addresses = self.subscriber_addresses.clone();
        let subscriber = self
            .subscriber
            .get_or_insert_with(|| Pc::new(&addresses, now));
        match subscriber.accept(offer) {
            Ok((answer, tracks)) => {
                self.carried = tracks;
                self.last_offer = Some(offer.clone());
                self.last_answer = Some(answer.clone());
                self.ask(Ask::Answer(answer));
            }
            Err(error) => self.failed(&error, now),
        }
    }

    pub(super) fn trickled(&mut self, trickle: &proto::TrickleRequest) {
        #[derive(Deserialize)]
        struct Init {
            candidate: String,
        }
        let Ok(init) = serde_json::from_str::<Init>(&trickle.candidate_init) else {
            return;
        };
        let pc = match trickle.target() {
            SignalTarget::Publisher => Some(&mut self.publisher),
            SignalTarget::Subscriber => self.subscriber.as_mut(),
        };
        if let Some(pc) = pc {
            pc.candidate(&init.candidate);
        }
    }
}

fn received(packet: &RtpPacket, now: Instant) -> Packet {
    Packet {
        payload: Payload::Opus(std::sync::Arc::clone(&packet.payload)),
        sequence: *packet.seq_no,
        timestamp: packet.header.timestamp,
        marker: packet.header.marker,
        arrived: now,
        level: packet.header.ext_vals.audio_level.map(i8::unsigned_abs),
    }
}
