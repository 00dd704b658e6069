//! The two drivers and the pool over real sockets, with a vendor at the other end that does as each test says. Deadlines
//! are reached by a clock that stands still while anything is to do: only where nothing more comes is it let run.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use url::Url;

use super::pool::MOST;
use super::tts_driver::{Idle, Key, Pool, TtsEndpoint, Utterance};
use super::websocket::{Handshake, Received, Socket};
use super::{Permit, Permits, Transport, stt_driver, tts_driver};
use vivavoce_audio::format::{AudioFormat, Encoding, SampleRate};
use vivavoce_seams::{
    ErrorKind, ProviderError, SttEvent, SttStream, TextStream, Transcript, TtsEvent, TtsRequest,
    TtsStream,
};

const SLUG: &str = "vendor";
/// Longer than anything here takes, by a clock that runs.
const PATIENCE: Duration = Duration::from_secs(30);
const CREDENTIAL: [u8; 32] = [7; 32];
const IDLE: Idle = Idle {
    longest: Duration::from_mins(1),
    keep_alive: None,
    oldest: Duration::from_mins(10),
};

/// The other end.
struct Vendor(TcpListener);

type Peer = WebSocketStream<TcpStream>;

impl Vendor {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn url(&self) -> Url {
        let address = self.0.local_addr().unwrap();
        Url::parse(&format!("ws://{address}/")).unwrap()
    }

    async fn accept(&self) -> Peer {
        let accepting = async {
            let (tcp, _) = self.0.accept().await.unwrap();
            tokio_tungstenite::accept_async(tcp).await.unwrap()
        };
        let accepted = timeout(PATIENCE, accepting).await;
        accepted.expect("somebody dials")
    }

    /// An open socket, and its other end.
    async fn dialled(&self) -> (Socket, Peer) {
        let transport = transport();
        let dialling = transport.dial(SLUG, Handshake::new(self.url()), PATIENCE);
        let (socket, peer) = tokio::join!(dialling, self.accept());
        (socket.unwrap(), peer)
    }
}

fn transport() -> Transport {
    Transport::new(&vivavoce_core::tls_roots::Authorities::default()).unwrap()
}

/// The last thing before the clock stood still was a moment ago.
fn seconds_since(begun: Instant) -> u64 {
    begun.elapsed().as_secs_f64().round() as u64
}

/// The next message that comes; `None` at the end.
async fn next(peer: &mut Peer) -> Option<Message> {
    let next = timeout(PATIENCE, peer.next()).await;
    next.expect("something comes, or the end")?.ok()
}

/// Sound is sent as it is, and what comes is final.
struct Plain;

impl stt_driver::Protocol for Plain {
    fn chunk_bytes(&self) -> usize {
        1
    }

    fn audio(&mut self, audio: Bytes, io: &mut stt_driver::SttIo<'_>) {
        io.out.binary(audio);
    }

    fn finalize(&mut self, _io: &mut stt_driver::SttIo<'_>) {}

    fn end(&mut self, io: &mut stt_driver::SttIo<'_>) {
        io.out.text("end");
    }

    fn receive(
        &mut self,
        message: Received,
        io: &mut stt_driver::SttIo<'_>,
    ) -> Result<stt_driver::Flow, ProviderError> {
        match message {
            Received::Text(text) if text == "done" => return Ok(stt_driver::Flow::Finished),
            Received::Text(text) => io.events.push(SttEvent::Final(Transcript {
                text,
                ..Transcript::default()
            })),
            Received::Binary(_) | Received::Closed(_) => {}
        }
        Ok(stt_driver::Flow::Continue)
    }
}

/// Text is sent as it is, what comes as bytes is sound.
impl tts_driver::Protocol for Plain {
    fn begin(&mut self, _io: &mut tts_driver::TtsIo<'_>) {}

    fn text(&mut self, piece: &str, io: &mut tts_driver::TtsIo<'_>) {
        io.out.text(piece);
    }

    fn end(&mut self, io: &mut tts_driver::TtsIo<'_>) {
        io.out.text("end");
    }

    fn receive(
        &mut self,
        message: Received,
        io: &mut tts_driver::TtsIo<'_>,
    ) -> Result<tts_driver::Flow, ProviderError> {
        match message {
            Received::Text(_) => return Ok(tts_driver::Flow::Finished),
            Received::Binary(sound) => io.events.push(TtsEvent::Audio(sound)),
            Received::Closed(_) => {}
        }
        Ok(tts_driver::Flow::Continue)
    }
}

// --- recognition ---

async fn free() -> Permit {
    let permits = Permits::new(SLUG, None);
    permits
        .acquire(CREDENTIAL, &vivavoce_quotas::Party::Operator, PATIENCE)
        .await
        .unwrap()
}

async fn heard(stream: &mut SttStream) -> Option<Result<SttEvent, ProviderError>> {
    let next = timeout(10 * PATIENCE, stream.events.next()).await;
    next.expect("it is told, or over")
}

#[tokio::test]
async fn a_vendor_that_is_silent_is_asked_for_a_sign_of_life_and_then_given_up() {
    let vendor = Vendor::new().await;
    let (socket, mut peer) = vendor.dialled().await;
    let mut stream = stt_driver::open(socket, Plain, free().await).await.unwrap();
    tokio::time::pause();
    let begun = Instant::now();
    let error = heard(&mut stream).await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
    assert_eq!(seconds_since(begun), 12);
    assert!(heard(&mut stream).await.is_none());
    tokio::time::resume();
    assert!(matches!(next(&mut peer).await, Some(Message::Ping(_))));
    assert!(matches!(next(&mut peer).await, Some(Message::Close(_))));
}

#[tokio::test]
async fn a_vendor_that_takes_no_more_sound_is_given_up() {
    let vendor = Vendor::new().await;
    let (socket, peer) = vendor.dialled().await;
    let SttStream { sink, mut events } =
        stt_driver::open(socket, Plain, free().await).await.unwrap();
    tokio::time::pause();
    // More than the system takes for somebody who does not read.
    let sound = Bytes::from(vec![0; 1 << 20]);
    let sending = async { while sink.send(sound.clone()).await.is_ok() {} };
    let (error, ()) = tokio::join!(events.next(), sending);
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(error.message.contains("stopped accepting"), "{error}");
    drop(peer);
}

#[tokio::test]
async fn the_last_words_come_before_the_end_and_the_permit_goes_back_behind_them() {
    let vendor = Vendor::new().await;
    let (socket, mut peer) = vendor.dialled().await;
    let permits = Permits::new(SLUG, NonZeroU32::new(1));
    let permit = permits
        .acquire(CREDENTIAL, &vivavoce_quotas::Party::Operator, PATIENCE)
        .await
        .unwrap();
    let mut stream = stt_driver::open(socket, Plain, permit).await.unwrap();
    stream.sink.send(Bytes::from_static(b"ab")).await.unwrap();
    assert_eq!(
        next(&mut peer).await,
        Some(Message::binary(&b"ab"[..])),
        "sound comes as it is"
    );
    stream.sink = vivavoce_seams::AudioSink::channel(1).0;
    assert_eq!(next(&mut peer).await, Some(Message::text("end")));
    let refused = permits
        .acquire(
            CREDENTIAL,
            &vivavoce_quotas::Party::Operator,
            Duration::ZERO,
        )
        .await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Overloaded);
    peer.send(Message::text("bye")).await.unwrap();
    peer.send(Message::text("done")).await.unwrap();
    let last = heard(&mut stream).await.unwrap().unwrap();
    assert!(matches!(last, SttEvent::Final(heard) if heard.text == "bye"));
    assert!(heard(&mut stream).await.is_none());
    permits
        .acquire(CREDENTIAL, &vivavoce_quotas::Party::Operator, PATIENCE)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_stream_that_nobody_listens_to_is_closed_and_its_permit_goes_back() {
    let vendor = Vendor::new().await;
    let (socket, mut peer) = vendor.dialled().await;
    let permits = Permits::new(SLUG, NonZeroU32::new(1));
    let permit = permits
        .acquire(CREDENTIAL, &vivavoce_quotas::Party::Operator, PATIENCE)
        .await
        .unwrap();
    let stream = stt_driver::open(socket, Plain, permit).await.unwrap();
    drop(stream.events);
    // The sink alone keeps nothing open.
    assert!(matches!(next(&mut peer).await, Some(Message::Close(_))));
    permits
        .acquire(CREDENTIAL, &vivavoce_quotas::Party::Operator, PATIENCE)
        .await
        .unwrap();
    drop(stream.sink);
}

// --- synthesis ---

fn endpoint(idle: Option<Idle>, streams: Option<NonZeroU32>) -> std::sync::Arc<TtsEndpoint> {
    let vendor = super::Vendor {
        slug: SLUG,
        address: "ws://127.0.0.1",
        setting: "VENDOR_API_KEY",
        refused: |refusal| refusal.error(SLUG, refusal.kind(), &refusal.body),
    };
    let vendor = vendor.endpoint(None, None, streams, &transport()).unwrap();
    std::sync::Arc::new(TtsEndpoint::new(vendor, idle))
}

fn text(text: &'static str) -> TextStream {
    futures_util::stream::iter([text.to_owned()]).boxed()
}

fn speak(endpoint: &std::sync::Arc<TtsEndpoint>, vendor: &Vendor, text: TextStream) -> TtsStream {
    let format = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);
    let request = TtsRequest {
        party: vivavoce_quotas::Party::Operator,
        voice_id: None,
        model: String::new(),
        speaking_rate: 1.0,
        preferred: format,
        connection_timeout: PATIENCE,
        request_timeout: PATIENCE,
        credential: None,
    };
    let utterance = Utterance {
        handshake: Handshake::new(vendor.url()),
        credential: CREDENTIAL,
        format,
        protocol: || Plain,
    };
    endpoint.speak(utterance, &request, text)
}

/// All sound of an utterance, or why there is none.
async fn said(stream: TtsStream) -> Result<Vec<u8>, ProviderError> {
    let mut sound = Vec::new();
    let mut events = stream.events;
    let all = async {
        while let Some(event) = events.next().await {
            match event? {
                TtsEvent::Audio(bytes) => sound.extend_from_slice(&bytes),
                TtsEvent::Word { .. } => {}
                TtsEvent::Done => return Ok(()),
            }
        }
        panic!("it ended without Done")
    };
    timeout(10 * PATIENCE, all).await.expect("it ends")?;
    Ok(sound)
}

/// Hears the text of an utterance to its end.
async fn text_of(peer: &mut Peer) -> String {
    let mut text = String::new();
    loop {
        match next(peer).await.expect("the text goes on") {
            Message::Text(piece) if piece == "end" => return text,
            Message::Text(piece) => text.push_str(&piece),
            other => panic!("{other:?}"),
        }
    }
}

/// Says this much, and that it was all.
async fn answer(peer: &mut Peer, sound: &'static [u8]) {
    peer.send(Message::binary(sound)).await.unwrap();
    peer.send(Message::text("done")).await.unwrap();
}

#[tokio::test]
async fn a_warm_socket_that_turns_out_to_be_dead_costs_one_more_dial_and_no_text() {
    let vendor = Vendor::new().await;
    let endpoint = endpoint(Some(IDLE), None);
    let serve = async {
        let mut first = vendor.accept().await;
        assert_eq!(text_of(&mut first).await, "one");
        answer(&mut first, b"1").await;
        assert_eq!(text_of(&mut first).await, "two");
        drop(first);
        let mut second = vendor.accept().await;
        assert_eq!(text_of(&mut second).await, "two");
        answer(&mut second, b"2").await;
        second
    };
    let listen = async {
        assert_eq!(
            said(speak(&endpoint, &vendor, text("one"))).await.unwrap(),
            b"1"
        );
        said(speak(&endpoint, &vendor, text("two"))).await
    };
    let (mut second, sound) = tokio::join!(serve, listen);
    assert_eq!(sound.unwrap(), b"2");

    // Once more, and a new socket that dies is the end of it: nobody dials for a third time.
    let serve = async {
        assert_eq!(text_of(&mut second).await, "three");
        drop(second);
        let mut third = vendor.accept().await;
        assert_eq!(text_of(&mut third).await, "three");
        drop(third);
    };
    let ((), outcome) = tokio::join!(serve, said(speak(&endpoint, &vendor, text("three"))));
    assert_eq!(outcome.unwrap_err().kind, ErrorKind::Unavailable);
    let again = timeout(Duration::ZERO, vendor.0.accept()).await;
    assert!(again.is_err(), "it was dialled once too often");
}

#[tokio::test]
async fn sound_that_was_heard_is_not_said_again_when_its_socket_dies() {
    let vendor = Vendor::new().await;
    let endpoint = endpoint(Some(IDLE), None);
    let serve = async {
        let mut peer = vendor.accept().await;
        text_of(&mut peer).await;
        answer(&mut peer, b"1").await;
        text_of(&mut peer).await;
        peer.send(Message::binary(&b"half"[..])).await.unwrap();
        peer
    };
    let listen = async {
        said(speak(&endpoint, &vendor, text("one"))).await.unwrap();
        let mut stream = speak(&endpoint, &vendor, text("two"));
        let first = stream.events.next().await.unwrap().unwrap();
        assert!(matches!(first, TtsEvent::Audio(sound) if sound == "half"));
        stream
    };
    let (peer, stream) = tokio::join!(serve, listen);
    drop(peer);
    assert_eq!(said(stream).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert!(timeout(Duration::ZERO, vendor.0.accept()).await.is_err());
}

#[tokio::test]
async fn a_vendor_that_owes_sound_is_given_up_but_not_while_the_text_goes_on() {
    let vendor = Vendor::new().await;
    let endpoint = endpoint(None, None);
    let (more, pieces) = tokio::sync::mpsc::channel::<String>(1);
    let pieces = tokio_stream::wrappers::ReceiverStream::new(pieces).boxed();
    let mut stream = speak(&endpoint, &vendor, pieces);
    let mut peer = vendor.accept().await;
    more.send("so far".to_owned()).await.unwrap();
    assert_eq!(next(&mut peer).await, Some(Message::text("so far")));
    tokio::time::pause();
    let waiting = timeout(Duration::from_mins(1), stream.events.next()).await;
    assert!(waiting.is_err(), "a text may take its time");
    drop(more);
    let begun = Instant::now();
    let error = stream.events.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
    assert_eq!(seconds_since(begun), 5);
}

#[tokio::test]
async fn a_vendor_that_stalls_in_the_middle_is_given_up_sooner() {
    let vendor = Vendor::new().await;
    let endpoint = endpoint(None, None);
    let mut stream = speak(&endpoint, &vendor, text("one"));
    let mut peer = vendor.accept().await;
    assert_eq!(next(&mut peer).await, Some(Message::text("one")));
    peer.send(Message::binary("half")).await.unwrap();
    let first = stream.events.next().await.unwrap().unwrap();
    assert!(matches!(first, TtsEvent::Audio(sound) if sound == "half"));
    tokio::time::pause();
    let begun = Instant::now();
    let error = stream.events.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
    assert_eq!(seconds_since(begun), 3);
}

#[tokio::test]
async fn an_utterance_that_is_dropped_gives_back_its_permit() {
    let vendor = Vendor::new().await;
    let endpoint = endpoint(None, NonZeroU32::new(1));
    let dropped = speak(&endpoint, &vendor, text("one"));
    let mut peer = vendor.accept().await;
    text_of(&mut peer).await;
    drop(dropped);
    assert!(matches!(next(&mut peer).await, Some(Message::Close(_))));
    let serve = async {
        let mut peer = vendor.accept().await;
        assert_eq!(text_of(&mut peer).await, "two");
        answer(&mut peer, b"2").await;
    };
    let ((), sound) = tokio::join!(serve, said(speak(&endpoint, &vendor, text("two"))));
    assert_eq!(sound.unwrap(), b"2");
}

// --- the pool ---

fn key(number: usize) -> Key {
    Key {
        url: format!("ws://vendor/{number}"),
        credential: CREDENTIAL,
    }
}

#[tokio::test]
async fn a_pool_is_bounded_and_what_was_used_longest_ago_goes_first() {
    let vendor = Vendor::new().await;
    let pool = Pool::default();
    let mut peers = Vec::new();
    for number in 0..MOST {
        let (socket, peer) = vendor.dialled().await;
        pool.put(key(number), socket, IDLE);
        peers.push(peer);
    }
    // The first is used once more, so that the second is now the oldest.
    let first = pool.take(&key(0)).await.expect("all are kept");
    pool.put(key(0), first, IDLE);
    let (socket, _peer) = vendor.dialled().await;
    pool.put(key(MOST), socket, IDLE);
    assert!(matches!(next(&mut peers[1]).await, Some(Message::Close(_))));
    assert!(pool.take(&key(1)).await.is_none());
    for number in [0, 2, MOST] {
        assert!(pool.take(&key(number)).await.is_some(), "{number}");
    }
}

#[tokio::test]
async fn a_socket_is_not_kept_for_longer_than_the_vendor_bears() {
    let vendor = Vendor::new().await;
    let pool = Pool::default();
    let (socket, mut peer) = vendor.dialled().await;
    let keep_alive = Some((Duration::from_secs(25), "still here"));
    let idle = Idle { keep_alive, ..IDLE };
    tokio::time::pause();
    pool.put(key(0), socket, idle);
    for _ in 0..2 {
        let message = peer.next().await.unwrap().unwrap();
        assert_eq!(message, Message::text("still here"));
    }
    let message = peer.next().await.unwrap().unwrap();
    assert!(matches!(message, Message::Close(_)), "{message:?}");
    assert!(pool.take(&key(0)).await.is_none());
}

#[tokio::test]
async fn a_socket_that_its_vendor_has_closed_is_not_given_to_anybody() {
    let vendor = Vendor::new().await;
    let pool = Pool::default();
    let (socket, mut peer) = vendor.dialled().await;
    pool.put(key(0), socket, IDLE);
    peer.close(None).await.unwrap();
    // The keeper has noticed when it has let go of its end.
    while next(&mut peer).await.is_some() {}
    assert!(pool.take(&key(0)).await.is_none());
}
