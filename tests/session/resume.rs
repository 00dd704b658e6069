//! Sessions whose sockets break: what is said and heard goes on at the next socket.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use vivavoce::audio::Pcm;

use super::client::{Chunk, Session, config, with};
use super::endurance::times;
use super::sound::{OUTPUT, WIDE, decoded, encoded, likeness, sentences, spoken};
use crate::harness::{SENTENCES, Server, client, eventually, share_of_words};

/// How often the connection of one sentence breaks.
pub const BREAKS: usize = 3;

/// A client that comes back whenever its connection breaks.
pub struct Stubborn<'s> {
    server: &'s Server,
    pub session: Session,
    pub token: String,
    pub last_event: u64,
    /// From the first word of a socket to its `ready`, at worst.
    slowest: Duration,
    /// What came over the sockets before this one.
    sound: Vec<Chunk>,
    events: Vec<Value>,
}

impl<'s> Stubborn<'s> {
    pub async fn open(server: &'s Server, fields: Value) -> Self {
        Self::open_over(server, Session::connect(server).await, fields).await
    }

    async fn open_over(server: &'s Server, mut session: Session, fields: Value) -> Self {
        let config = config(with(json!({"resume": true}), fields));
        session.send(config).await;
        let token = session.next("ready").await.text("resume_token").to_owned();
        Self {
            server,
            session,
            token,
            last_event: 0,
            slowest: Duration::ZERO,
            sound: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The connection breaks, without a word, and with whatever is on its way.
    pub async fn breaks(&mut self) {
        self.breaks_towards(self.server).await;
    }

    /// The same, and the client will come back at this server.
    pub async fn breaks_towards(&mut self, server: &'s Server) {
        self.server = server;
        drop(self.next_socket().await);
    }

    /// Opens another socket; returns the one before it.
    async fn next_socket(&mut self) -> Session {
        let next = Session::connect(self.server).await;
        let last = std::mem::replace(&mut self.session, next);
        self.sound.extend(last.sound());
        for event in last.events() {
            // Told to a socket that had not come for its session yet.
            if event.kind() == "draining" && event["seq"].is_null() {
                continue;
            }
            let seq = event["seq"].as_u64();
            let seq = seq.unwrap_or_else(|| panic!("{event} has no number"));
            self.last_event = self.last_event.max(seq);
            self.events.push(event.body);
        }
        last
    }

    pub async fn comes_back(&mut self) {
        let began = Instant::now();
        self.asks_to_come_back().await;
        let ready = self.session.next("ready").await;
        self.slowest = self.slowest.max(began.elapsed());
        ready.text("resume_token").clone_into(&mut self.token);
    }

    pub async fn asks_to_come_back(&mut self) {
        let received: usize = self.sound.iter().map(|chunk| chunk.data.len()).sum();
        let resume = json!({
            "type": "resume", "token": self.token, "last_event": self.last_event, "received_bytes": received,
        });
        self.session.send(resume).await;
    }

    /// Until the utterance with this id is heard; how many pieces of sound have come before it.
    pub async fn until_started(&mut self, id: &str) -> usize {
        loop {
            let started = self.session.next("tts_started").await;
            if started.text("id") == id {
                return self.sound.len() + started.chunks_before;
            }
        }
    }

    /// All events that came, in order.
    pub fn all_events(&self) -> Vec<Value> {
        let now = self.session.events();
        let now = now.into_iter().map(|event| event.body);
        self.events.iter().cloned().chain(now).collect()
    }

    /// The token of the last `ready`.
    pub fn last_token(&self) -> String {
        let readies = self.session.events_of("ready");
        readies.last().unwrap().text("resume_token").to_owned()
    }

    /// What was understood.
    pub fn finals(&self) -> String {
        let all = self.all_events().into_iter();
        let finals = all.filter(|event| event["is_final"] == true);
        let texts = finals.map(|event| event["transcript"].as_str().unwrap().to_owned());
        texts.collect::<Vec<_>>().join(" ")
    }

    /// How an utterance was played to its end, whichever socket was told so.
    pub async fn completion_of(&mut self, id: &str) -> Value {
        let is_its = |event: &&Value| event["type"] == "tts_playback_complete" && event["id"] == id;
        if let Some(complete) = self.events.iter().find(is_its) {
            return complete.clone();
        }
        self.session.completion_of(id).await.body
    }

    /// Everything that came, in order.
    pub fn heard(&self) -> Vec<Chunk> {
        let mut sound = self.sound.clone();
        sound.extend(self.session.sound());
        sound
    }
}

/// A sentence that was said over sockets that broke.
pub struct SaidInPieces {
    heard: Vec<Chunk>,
    /// How long it was, as the server says.
    told: Duration,
    /// See [`Stubborn`].
    pub slowest: Duration,
}

/// A sentence is said over sockets that break at moments of this seed, and come back at these servers one after the other.
pub async fn said_in_pieces(home: &Server, next: [&Server; BREAKS], seed: u64) -> SaidInPieces {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = Stubborn::open(home, json!({})).await;
    client.session.speak("a", SENTENCES[0]).await;
    for server in next {
        tokio::time::sleep(Duration::from_millis(random.u64(0..900))).await;
        client.breaks_towards(server).await;
        tokio::time::sleep(Duration::from_millis(random.u64(0..200))).await;
        client.comes_back().await;
    }
    let complete = client.completion_of("a").await;
    let told = complete["duration_ms"].as_u64().unwrap();
    let said = SaidInPieces {
        heard: client.heard(),
        told: Duration::from_millis(told),
        slowest: client.slowest,
    };
    client.session.close().await;
    said
}

/// Nothing of it is missing, or there twice.
pub fn assert_whole(meant: &Pcm, all: &[SaidInPieces]) {
    for (seed, said) in all.iter().enumerate() {
        let heard = decoded(&said.heard, OUTPUT);
        let off = heard.duration().abs_diff(said.told);
        assert!(
            off < Duration::from_millis(2),
            "seed {seed}: {off:?} too much or too little"
        );
        let likeness = likeness(meant, &heard);
        assert!(likeness > 0.95, "seed {seed}: {likeness}");
    }
}

/// A line of a server's metrics.
pub async fn metric(server: &Server, name: &str) -> String {
    let metrics = client().get(format!("{}/metrics", server.url));
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_goes_on_at_the_sample_where_the_connection_broke() {
    let server = Server::start();
    let meant = spoken(&server, SENTENCES[0], OUTPUT).await;
    let next = [&server; BREAKS];
    let all = (0..times(12, 200) as u64).map(|seed| said_in_pieces(&server, next, seed));
    assert_whole(&meant, &join_all(all).await);
    let resumes = "vivavoce_session_resumes_total";
    let count = times(12, 200) * BREAKS;
    assert_eq!(metric(&server, resumes).await, format!("{resumes} {count}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn words_before_during_and_after_the_break_are_recognised() {
    let server = Server::start();
    let pause = Duration::from_secs(1);
    let speech = encoded(&sentences(&server, &SENTENCES[..2], pause).await, WIDE).await;
    let mut client = Stubborn::open(&server, json!({})).await;
    let half = speech.len() / 2;
    let (before, after) = (speech[..half].to_vec(), speech[half..].to_vec());
    client.session.hear(before).await;
    client.breaks().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    client.comes_back().await;
    // It kept what its microphone brought meanwhile.
    client.session.hear(after).await;
    let meant = SENTENCES[..2].join(" ");
    let all = || share_of_words(&meant, &client.finals()) >= 0.8;
    eventually("words are missing", all).await;
    client.session.close().await;
}

#[tokio::test]
async fn what_cannot_be_resumed_says_why_and_begins_anew() {
    let server = Server::start_with(&[("SOCKET_RESUME_SECONDS", "1")]);
    let mut client = Stubborn::open(&server, json!({"stream_id": "call"})).await;
    client.breaks().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let resume = json!({"type": "resume", "token": client.token, "last_event": 1});
    client.session.send(resume).await;
    let refused = client.session.refused("cannot_resume").await;
    assert!(
        refused.text("message").contains("it has ended"),
        "{refused}"
    );
    client
        .session
        .send(config(json!({"stream_id": "call"})))
        .await;
    client.session.next("ready").await;
    client.session.close().await;
}

/// A proxy that can stop to carry bytes without closing anything, as a network does that has lost its way.
struct Stalling {
    url: String,
    carries: watch::Sender<bool>,
}

impl Stalling {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/ws", listener.local_addr().unwrap());
        let address = server.url.trim_start_matches("http://").to_owned();
        let (carries, may_carry) = watch::channel(true);
        tokio::spawn(async move {
            let (near, _) = listener.accept().await.unwrap();
            let far = TcpStream::connect(address).await.unwrap();
            let (near, far) = (near.into_split(), far.into_split());
            tokio::join!(
                carry(near.0, far.1, may_carry.clone()),
                carry(far.0, near.1, may_carry)
            );
        });
        Self { url, carries }
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut may: watch::Receiver<bool>) {
    let mut bytes = [0; 4_096];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        // Nobody changes his mind any more once the test is over.
        if may.wait_for(|may| *may).await.is_err() || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_only_stalls_is_left_behind_without_a_lost_sample() {
    let server = Server::start();
    let meant = spoken(&server, SENTENCES[0], OUTPUT).await;
    let proxy = Stalling::before(&server).await;
    let over = Session::connect_to(&proxy.url).await;
    let mut client = Stubborn::open_over(&server, over, json!({})).await;
    client.session.speak("a", SENTENCES[0]).await;
    client.session.received(8_000).await;
    proxy.carries.send_replace(false);
    // The client has its own idea of how long nothing may come.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stalled = client.next_socket().await;
    client.comes_back().await;
    let told = client.session.completion_of("a").await;
    let heard = decoded(&client.heard(), OUTPUT);
    let off = heard.duration().abs_diff(told.time("duration_ms"));
    assert!(off < Duration::from_millis(2), "{off:?}");
    let likeness = likeness(&meant, &heard);
    assert!(likeness > 0.95, "{likeness}");
    // What waited in the network comes too late, and harms nothing.
    proxy.carries.send_replace(true);
    let mut stalled = stalled;
    assert_eq!(stalled.closed().await, 4410);
    client.session.speak("b", "Yes.").await;
    client.session.completion_of("b").await;
    client.session.close().await;
}
