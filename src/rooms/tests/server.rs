//! The handle and its thread, with real sockets and a real clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_response::Message;
use tokio::sync::mpsc;

use super::super::{
    Connection, Event, EventReceiver, Keys, OperationError, RoomServer, Route, Settings, Sockets,
    limits,
};
use super::Bench;
use vivavoce_seams::rooms::link::LinkEvent;
use vivavoce_seams::rooms::view::RoomView;

fn start() -> RoomServer {
    started().0
}

fn started() -> (RoomServer, EventReceiver) {
    let loopback = std::net::Ipv4Addr::LOCALHOST.into();
    let sockets = Sockets::bind(&[(loopback, loopback)], 0).unwrap();
    let settings = Settings {
        keys: Keys::new([("key", "secret")]),
        threads: 3,
        ..Settings::default()
    };
    RoomServer::start(settings, sockets).unwrap()
}

/// Whether the room is empty or does not exist.
async fn is_empty(server: &RoomServer) -> bool {
    let there = server.list_participants("kitchen".to_owned()).await;
    there.map_or(true, |there| there.is_empty())
}

#[tokio::test]
async fn a_connection_that_loses_either_half_is_gone() {
    let server = start();
    for loses_requests in [true, false] {
        let mut connection = server
            .connect(Bench::admission("alice", |_| ()))
            .await
            .unwrap();
        let first = connection.responses.next().await.unwrap();
        assert!(proto::SignalResponse::decode(first).is_ok());
        assert!(!is_empty(&server).await);
        // The other half is not notified; the end of the responses shows it.
        let gone = async {
            if loses_requests {
                drop(connection.requests);
                while connection.responses.next().await.is_some() {}
            } else {
                drop(connection.responses);
                while connection
                    .requests
                    .send(proto::SignalRequest::default().encode_to_vec().into())
                    .await
                    && !is_empty(&server).await
                {}
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone)
            .await
            .unwrap();
        assert!(is_empty(&server).await);
    }
}

#[tokio::test]
async fn a_connection_that_is_dropped_at_once_leaves_nothing() {
    let server = start();
    for _ in 0..200 {
        drop(server.connect(Bench::admission("alice", |_| ())).await);
    }
    let gone = async { while !is_empty(&server).await {} };
    tokio::time::timeout(Duration::from_secs(10), gone)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_end_of_the_server_is_the_last_that_is_told_of_its_rooms() {
    let (server, mut told) = started();
    let room = proto::CreateRoomRequest {
        name: "kitchen".to_owned(),
        ..Default::default()
    };
    server.create_room(room.clone()).await.unwrap();
    // Another handle still exists, as in registries.
    let held = server.clone();
    server.stop().await;
    let mut events = Vec::new();
    while let Some(event) = told.recv().await {
        events.push(event.event);
    }
    assert_eq!(events, [Event::RoomStarted, Event::RoomFinished]);
    let refused = held.create_room(room).await.unwrap_err();
    assert_eq!(refused, OperationError::Stopped);
}

/// A slow reader is told of every participant from its joining to its leaving: a client that tracks the room could not use
/// the end alone.
#[tokio::test]
async fn a_visit_is_told_whole_to_whoever_reads_after_it() {
    let server = start();
    let mut slow = server
        .connect(Bench::admission("slow", |_| ()))
        .await
        .unwrap();
    let visitor = Bench::admission("visitor", |_| ());
    let _visitor = server.connect(visitor).await.unwrap();
    server
        .remove_participant("kitchen".to_owned(), "visitor".to_owned())
        .await
        .unwrap();
    server.delete_room("kitchen".to_owned()).await.unwrap();
    let (mut view, mut events) = (RoomView::default(), Vec::new());
    while let Some(bytes) = slow.responses.next().await {
        match proto::SignalResponse::decode(bytes).unwrap().message {
            Some(Message::Join(join)) => {
                view.joined(join);
                view.connected();
            }
            Some(Message::Update(update)) => events.extend(view.update(update.participants)),
            _ => {}
        }
    }
    assert!(
        matches!(
            &events[..],
            [LinkEvent::ParticipantJoined(came), LinkEvent::ParticipantLeft(left)]
                if came.identity == "visitor" && left.sid == came.sid
        ),
        "{events:?}"
    );
}

/// Requests made before the connection was lost are handled, although the two arrive on different queues.
#[tokio::test]
async fn last_words_are_heard() {
    use proto::signal_request::Message;
    let (server, mut told) = started();
    for n in 0..100 {
        let admission = Bench::admission("alice", |claims| {
            claims.video.can_update_own_metadata = Some(true);
        });
        let mut connection = server.connect(admission).await.unwrap();
        connection.responses.next().await.unwrap();
        let change = proto::UpdateParticipantMetadata {
            metadata: format!("{n}"),
            ..Default::default()
        };
        let leave = proto::LeaveRequest::default();
        for message in [Message::UpdateMetadata(change), Message::Leave(leave)] {
            let message = Some(message);
            let request = proto::SignalRequest { message };
            assert!(
                connection
                    .requests
                    .send(request.encode_to_vec().into())
                    .await
            );
        }
        drop(connection);
        let left = loop {
            let event = told.recv().await.unwrap();
            if event.event == Event::ParticipantConnectionAborted {
                break event.participant.unwrap();
            }
        };
        assert_eq!(left.metadata, format!("{n}"));
        assert_eq!(
            left.disconnect_reason(),
            proto::DisconnectReason::ClientInitiated
        );
    }
}

/// The media sections of an offer that takes some work to answer.
const SECTIONS: u32 = 40;

/// Such an offer.
fn offer_of_many_sections(id: u32) -> Bytes {
    let section = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:MID\r\na=recvonly\r\na=rtcp-mux\r\na=rtpmap:111 opus/48000/2\r\n";
    let mids: Vec<String> = (0..SECTIONS).map(|mid| mid.to_string()).collect();
    let mut sdp = format!(
        "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE {}\r\na=ice-ufrag:abcd\r\n\
         a=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=fingerprint:sha-256 {}\r\na=setup:actpass\r\n",
        mids.join(" "),
        ["AB"; 32].join(":"),
    );
    for mid in mids {
        sdp.push_str(&section.replace("MID", &mid));
    }
    let offer = proto::signal_request::Message::Offer(super::offer(&sdp, id));
    encoded(offer)
}

fn encoded(message: proto::signal_request::Message) -> Bytes {
    let message = Some(message);
    proto::SignalRequest { message }.encode_to_vec().into()
}

/// A client that sends as many offers as it can, and how many were answered.
async fn flood(server: &RoomServer) -> (tokio::task::JoinHandle<Connection>, Arc<AtomicUsize>) {
    let mut admission = Bench::admission("mallory", |_| ());
    admission.route = Route::OneConnection;
    let Connection {
        requests,
        mut responses,
    } = server.connect(admission).await.unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&answered);
    let (begun, mut beginning) = mpsc::channel(1);
    let flooding = tokio::spawn(async move {
        let send = async {
            for id in 1..=OFFERS {
                requests.send(offer_of_many_sections(id)).await;
            }
            std::future::pending::<()>().await;
        };
        let read = async {
            while let Some(response) = responses.next().await {
                let response = proto::SignalResponse::decode(response).unwrap();
                if matches!(response.message, Some(Message::Answer(_))) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let _ = begun.try_send(());
                }
            }
        };
        tokio::select! {
            () = send => {}
            () = read => {}
        }
        Connection {
            requests,
            responses,
        }
    });
    beginning.recv().await.unwrap();
    (flooding, answered)
}

const OFFERS: u32 = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_hundreds_of_offers_waiting_delays_nobody_else() {
    let server = start();
    let mut bob = server
        .connect(Bench::admission("bob", |claims| {
            claims.video.room = "cellar".into();
        }))
        .await
        .unwrap();
    let (flooding, answered) = flood(&server).await;
    for _ in 0..10 {
        let ping = encoded(proto::signal_request::Message::Ping(1));
        assert!(bob.requests.send(ping).await);
        loop {
            let response = bob.responses.next().await.unwrap();
            let response = proto::SignalResponse::decode(response).unwrap();
            if matches!(response.message, Some(Message::Pong(_))) {
                break;
            }
        }
    }
    // Bob is answered long before the flood is.
    let answered = answered.load(Ordering::Relaxed);
    assert!(answered < OFFERS as usize / 2, "{answered}");
    flooding.abort();
}

/// However fast the thread is: what exceeds the rate of a connection waits, and is not refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_gets_its_share_of_the_thread_and_no_more() {
    const ABOVE: u32 = 1_000;
    let (server, began) = (start(), Instant::now());
    let (flooding, answered) = flood(&server).await;
    let offers = (limits::CONNECTION_WORK_AT_ONCE + ABOVE) / SECTIONS;
    while answered.load(Ordering::Relaxed) < offers as usize {
        tokio::task::yield_now().await;
    }
    flooding.abort();
    // A few offers less: the one that exceeds the rate is answered, too.
    let above = (ABOVE - 3 * SECTIONS) / limits::CONNECTION_WORK_PER_SECOND.div_ceil(1_000);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(above.into()), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_does_not_wait_for_what_is_queued() {
    let server = start();
    let (flooding, answered) = flood(&server).await;
    server.stop().await;
    drop(flooding.await);
    let answered = answered.load(Ordering::Relaxed);
    assert!(answered < OFFERS as usize / 2, "{answered}");
}

/// The queue of a client that does not read has the newest states, not all.
#[tokio::test]
async fn whoever_reads_late_is_told_the_newest_of_each_participant_once() {
    let server = start();
    let mut bob = server
        .connect(Bench::admission("bob", |_| ()))
        .await
        .unwrap();
    let admission = Bench::admission("alice", |claims| {
        claims.video.can_update_own_metadata = Some(true);
    });
    let alice = server.connect(admission).await.unwrap();
    for n in 0..400 {
        let change = proto::UpdateParticipantMetadata {
            metadata: format!("{n} {}", "x".repeat(1_000)),
            ..Default::default()
        };
        let change = proto::signal_request::Message::UpdateMetadata(change);
        assert!(alice.requests.send(encoded(change)).await);
    }
    let newest = async {
        while !server
            .get_participant("kitchen".to_owned(), "alice".to_owned())
            .await
            .is_ok_and(|alice| alice.metadata.starts_with("399 "))
        {}
    };
    tokio::time::timeout(Duration::from_secs(10), newest)
        .await
        .unwrap();
    server
        .remove_participant("kitchen".to_owned(), "bob".to_owned())
        .await
        .unwrap();
    let mut updates = Vec::new();
    while let Some(response) = bob.responses.next().await {
        let response = proto::SignalResponse::decode(response).unwrap();
        match response.message {
            Some(Message::Update(update)) => updates.extend(update.participants),
            Some(Message::Leave(_)) => break,
            _ => {}
        }
    }
    let alices: Vec<_> = updates
        .iter()
        .filter(|one| one.identity == "alice")
        .collect();
    assert_eq!(alices.len(), 1);
    assert!(alices[0].metadata.starts_with("399 "));
}
