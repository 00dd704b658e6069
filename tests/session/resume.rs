//! Sessions whose sockets break: what is said and heard goes on at the next socket.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::client::{Chunk, Session, config, with};
use super::endurance::times;
use super::sound::{OUTPUT, WIDE, decoded, encoded, likeness, sentences, spoken};
use crate::harness::{SENTENCES, Server, client, eventually, share_of_words};

/// A client that comes back whenever its connection breaks.
struct Stubborn<'s> {
    server: &'s Server,
    session: Session,
    token: String,
    last_event: u64,
    /// What came over the sockets before this one.
    sound: Vec<Chunk>,
    events: Vec<Value>,
}

impl<'s> Stubborn<'s> {
    async fn open(server: &'s Server, fields: Value) -> Self {
        let config = config(with(json!({"resume": true}), fields));
        let mut session = Session::connect(server).await;
        session.send(config).await;
        let token = session.next("ready").await.text("resume_token").to_owned();
        Self {
            server,
            session,
            token,
            last_event: 0,
            sound: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The connection breaks, without a word, and with whatever is on its way.
    async fn breaks(&mut self) {
        let next = Session::connect(self.server).await;
        let last = std::mem::replace(&mut self.session, next);
        self.sound.extend(last.sound());
        for event in last.events() {
            let seq = event["seq"].as_u64().unwrap();
            self.last_event = self.last_event.max(seq);
            self.events.push(event.body);
        }
        drop(last);
    }

    async fn comes_back(&mut self) {
        let received: usize = self.sound.iter().map(|chunk| chunk.data.len()).sum();
        let resume = json!({
            "type": "resume", "token": self.token, "last_event": self.last_event, "received_bytes": received,
        });
        self.session.send(resume).await;
        let ready = self.session.next("ready").await;
        ready.text("resume_token").clone_into(&mut self.token);
    }

    /// Everything that came, in order.
    fn heard(&self) -> Vec<Chunk> {
        let mut sound = self.sound.clone();
        sound.extend(self.session.sound());
        sound
    }
}

/// A sentence is said over sockets that break at moments of this seed: what came of it, and how long it was.
async fn said_in_pieces(server: &Server, seed: u64) -> (Vec<Chunk>, Duration) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = Stubborn::open(server, json!({})).await;
    client.session.speak("a", SENTENCES[0]).await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(random.u64(0..900))).await;
        client.breaks().await;
        tokio::time::sleep(Duration::from_millis(random.u64(0..200))).await;
        client.comes_back().await;
    }
    let complete = client.session.completion_of("a").await;
    let heard = client.heard();
    client.session.close().await;
    (heard, complete.time("duration_ms"))
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_goes_on_at_the_sample_where_the_connection_broke() {
    let server = Server::start();
    let meant = spoken(&server, SENTENCES[0], OUTPUT).await;
    let all = (0..times(12, 200) as u64).map(|seed| said_in_pieces(&server, seed));
    for (seed, (heard, told)) in join_all(all).await.iter().enumerate() {
        let heard = decoded(heard, OUTPUT);
        let off = heard.duration().abs_diff(*told);
        assert!(
            off < Duration::from_millis(2),
            "seed {seed}: {off:?} too much or too little"
        );
        let likeness = likeness(&meant, &heard);
        assert!(likeness > 0.95, "seed {seed}: {likeness}");
    }
    let metrics = client().get(format!("{}/metrics", server.url));
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    let resumes = times(12, 200) * 3;
    assert!(metrics.contains(&format!("vivavoce_session_resumes_total {resumes}")));
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
    let finals = |client: &Stubborn| {
        let now = client.session.events();
        let all = client
            .events
            .iter()
            .cloned()
            .chain(now.into_iter().map(|event| event.body));
        let finals = all.filter(|event| event["is_final"] == true);
        let texts = finals.map(|event| event["transcript"].as_str().unwrap().to_owned());
        texts.collect::<Vec<_>>().join(" ")
    };
    let all = || share_of_words(&meant, &finals(&client)) >= 0.8;
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
