//! A server is replaced while it does all at once: sessions whose sockets break, rooms, calls, speech for whoever asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::{Visitors, gap_that_may_be, longest_gap, longest_gap_in_room};
use crate::harness::*;
use crate::rooms::client::{Client, Kind};
use crate::rooms::join;
use crate::session::endurance::times;
use crate::session::resume::{BREAKS, assert_whole, said_in_pieces};
use crate::session::sound::{OUTPUT, spoken};
use crate::telephone::Exchange;
use crate::telephone::rig::baresip::Baresip;

/// The tone of people.
const PERSON: u32 = 700;

/// Two people of whom one hears the other.
struct Room {
    speaker: Client,
    listener: Client,
}

impl Room {
    async fn open(server: &Server, number: usize) -> Self {
        let name = format!("room-{number}");
        let mut speaker = join(server, Kind::Python, &name, "ann").await;
        let mut listener = join(server, Kind::Python, &name, "bob").await;
        speaker.publish(PERSON).await;
        listener.hears("ann", PERSON).await;
        listener
            .command(json!({"do": "keep", "identity": "ann"}))
            .await;
        Self { speaker, listener }
    }

    async fn gap(&mut self) -> Duration {
        longest_gap_in_room(&mut self.listener, "ann").await
    }

    async fn close(self) {
        self.speaker.leave().await;
        self.listener.leave().await;
    }
}

/// A telephone that hears a person in the room of its call.
struct Call {
    telephone: Baresip,
    person: Client,
}

impl Call {
    async fn open(exchange: &Exchange, number: usize) -> Self {
        let called = format!("+1415555{number:04}");
        let mut person = join(
            &exchange.server,
            Kind::Python,
            &format!("call-{called}"),
            "cleo",
        )
        .await;
        person.publish(PERSON).await;
        let mut telephone = Baresip::start().await;
        telephone
            .dial(&format!("sip:{called}@{}", exchange.address()))
            .await;
        telephone.next("CALL_ESTABLISHED").await;
        telephone.hears(PERSON).await;
        Self { telephone, person }
    }

    fn gap(&self) -> Duration {
        let file = self.telephone.recording("dec").unwrap();
        longest_gap(&file, 8_000)
    }

    async fn close(mut self) {
        self.telephone.hang_up().await;
        self.telephone.next("CALL_CLOSED").await;
        self.person.leave().await;
    }
}

/// Texts that are said for whoever asks, none twice.
async fn texts(url: String, running: Arc<AtomicBool>, said: Arc<AtomicUsize>) {
    let client = client();
    while running.load(SeqCst) {
        let number = said.fetch_add(1, SeqCst);
        let body = json!({
            "text": format!("This is the text of number {number}."),
            "tts_config": local(json!({"model": "flite"})),
        });
        let answer = client.post(format!("{url}/speak")).json(&body).send().await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.bytes().await.unwrap().len() > 1_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_it_does_goes_on() {
    let mut exchange = Exchange::start();
    let meant = spoken(&exchange.server, SENTENCES[0], OUTPUT).await;
    let mut rooms =
        join_all((0..times(1, 10)).map(|number| Room::open(&exchange.server, number))).await;
    let calls = join_all((0..times(1, 5)).map(|number| Call::open(&exchange, number))).await;
    let visitors = Visitors::of(&exchange.server);
    let (running, said) = (
        Arc::new(AtomicBool::new(true)),
        Arc::<AtomicUsize>::default(),
    );
    let texts = tokio::spawn(texts(
        exchange.server.url.clone(),
        Arc::clone(&running),
        Arc::clone(&said),
    ));
    visitors.some_more().await;
    let server = &exchange.server;
    let count = times(4, 200) as u32;
    // Some have begun to say something before the server is replaced, some begin after it.
    let window = Duration::from_millis(times(400, 8_000) as u64);
    let talk = (0..count).map(async |number| {
        tokio::time::sleep(window * number / count).await;
        said_in_pieces(server, [server; BREAKS], number.into()).await
    });
    let replacing = async {
        tokio::time::sleep(window * 5 / 8 + Duration::from_millis(250)).await;
        tokio::task::block_in_place(|| exchange.replaced())
    };
    let (pieces, next) = tokio::join!(join_all(talk), replacing);
    visitors.some_more().await;
    let before = said.load(SeqCst);
    eventually("nothing is said any more", || {
        said.load(SeqCst) > before + 2
    })
    .await;
    for (number, room) in rooms.iter_mut().enumerate() {
        let gap = room.gap().await;
        println!("room {number}: {gap:?} without the tone");
        assert!(gap <= gap_that_may_be(), "{gap:?} without the tone");
        room.listener.hears("ann", PERSON).await;
    }
    for (number, call) in calls.iter().enumerate() {
        let gap = call.gap();
        println!("call {number}: {gap:?} without the tone");
        assert!(gap <= gap_that_may_be(), "{gap:?} without the tone");
    }
    // One that comes to the new server in a call of the former one hears it, too.
    let mut late = join(&next.server, Kind::Python, "call-+14155550000", "late").await;
    late.hears("cleo", PERSON).await;
    late.leave().await;
    running.store(false, SeqCst);
    texts.await.unwrap();
    visitors.go().await;
    for room in rooms {
        room.close().await;
    }
    for call in calls {
        call.close().await;
    }
    assert_eq!(exchange.server.ended().code(), Some(0));
    assert_whole(&meant, &pieces);
    let mut slowest: Vec<_> = pieces.iter().map(|piece| piece.slowest).collect();
    slowest.sort();
    println!(
        "resumes: median of the worst {:?}, worst {:?}",
        slowest[slowest.len() / 2],
        slowest[slowest.len() - 1]
    );
    drop(next);
}
