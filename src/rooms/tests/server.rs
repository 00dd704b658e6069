//! The handle and its thread, with real sockets and a real clock: what belongs to the edges and not to the world.

use std::time::Duration;

use livekit_protocol as proto;
use prost::Message as _;
use tokio::sync::mpsc;

use super::super::{Event, Keys, OperationError, RoomEvent, RoomServer, Settings, Sockets};
use super::Bench;

fn start() -> RoomServer {
    started().0
}

fn started() -> (RoomServer, mpsc::Receiver<RoomEvent>) {
    let loopback = std::net::Ipv4Addr::LOCALHOST.into();
    let sockets = Sockets::bind(&[(loopback, loopback)], 0).unwrap();
    let settings = Settings {
        keys: Keys::new([("key", "secret")]),
        ..Settings::default()
    };
    RoomServer::start(settings, sockets).unwrap()
}

/// Whether nobody is there, perhaps because there never was a room.
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
        // Nobody is told when the other half goes; the end of the responses says that one was.
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
    // Somebody still holds it, as doors and registries do.
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

/// What was said on a connection before it went is heard, though the two come to the thread by different ways.
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
