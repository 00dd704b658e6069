//! The fuzz targets of this crate: WebSocket frames, and headers that are not parsed by a library.

use actix_web::http::header::{FORWARDED, HeaderMap, HeaderValue};
use livekit_protocol as proto;

use super::peer::{TrustedProxies, X_FORWARDED_FOR};
use super::recording;
use super::twirp::Wire;
use vivavoce_socket::Frames;

/// The bytes of a connection, in chunks whose size is given by the first byte.
pub fn frames(input: &[u8]) {
    let Some((size, bytes)) = input.split_first() else {
        return;
    };
    let mut frames = Frames::default();
    for piece in bytes.chunks(1 + usize::from(*size)) {
        frames.push(piece);
        while let Ok(Some(_)) = frames.next_frame() {}
        let _held = frames.unfinished();
    }
}

/// Text in two fragments with a ping between them, audio, and a close.
pub fn frame_samples() -> Vec<Vec<u8>> {
    let key = [1, 2, 3, 4];
    let frame = |first: u8, payload: &[u8]| {
        let mut bytes = vec![first];
        match payload.len() {
            short @ ..126 => bytes.push(0x80 | short as u8),
            long => {
                bytes.push(0xfe);
                bytes.extend((long as u16).to_be_bytes());
            }
        }
        bytes.extend(key);
        bytes.extend(
            payload
                .iter()
                .zip(key.iter().cycle())
                .map(|(byte, key)| byte ^ key),
        );
        bytes
    };
    let mut all = vec![40];
    all.extend(frame(0x01, b"{\"type\":"));
    all.extend(frame(0x89, b"ping"));
    all.extend(frame(0x80, b"\"clear\"}"));
    all.extend(frame(0x82, &[7; 640]));
    all.extend(frame(0x88, &[0x03, 0xe8]));
    vec![all]
}

/// A line each for `Forwarded`, `X-Forwarded-For` and `Range`.
pub fn headers(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for name in [FORWARDED, X_FORWARDED_FOR] {
        if let Some(Ok(value)) = lines.next().map(HeaderValue::from_bytes) {
            headers.append(name, value);
        }
    }
    let networks = ["10.0.0.0/8", "::/1"].map(|network| network.parse().into_iter());
    let proxies = TrustedProxies::new(networks.into_iter().flatten().collect());
    let _caller = proxies.behind([10, 0, 0, 1].into(), &headers);
    let range = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let _asked = recording::part(&range, 100);
}

/// What proxies and players send.
pub fn header_samples() -> Vec<Vec<u8>> {
    [
        "for=192.0.2.1;proto=https, for=\"[2001:db8::1]:4711\"\n192.0.2.1, 10.1.1.1\nbytes=0-99",
        "For=10.1.1.1, for=_hidden\n[::1]:80, 192.0.2.1:9\nbytes=-10",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// The body of a call of LiveKit's server API in JSON, read as the requests with the most fields.
pub fn twirp_json(input: &[u8]) {
    let _room = Wire::Json.read::<proto::CreateRoomRequest>(input);
    let _data = Wire::Json.read::<proto::SendDataRequest>(input);
    let _participant = Wire::Json.read::<proto::UpdateParticipantRequest>(input);
    let _trunk = Wire::Json.read::<proto::CreateSipOutboundTrunkRequest>(input);
    let _rule = Wire::Json.read::<proto::CreateSipDispatchRuleRequest>(input);
    let _call = Wire::Json.read::<proto::CreateSipParticipantRequest>(input);
    let _worker = Wire::Json.read::<proto::WorkerMessage>(input);
    let _dispatch = Wire::Json.read::<proto::CreateAgentDispatchRequest>(input);
}

/// What LiveKit's server SDKs send.
pub fn twirp_json_samples() -> Vec<Vec<u8>> {
    [
        r#"{"name":"kitchen","emptyTimeout":300,"maxParticipants":8,"metadata":"{\"a\":1}"}"#,
        r#"{"availability":{"jobId":"AJ_1","available":true,"participantAttributes":{"a":"b"}}}"#,
        r#"{"room":"kitchen","agentName":"cook","metadata":"m","attributes":{"a":"b"}}"#,
        r#"{"room":"kitchen","data":"aGVsbG8=","kind":"RELIABLE","destinationIdentities":["ann"],"topic":"t"}"#,
        r#"{"room":"kitchen","identity":"ann","metadata":"m","permission":{"canPublish":true,"canSubscribe":true},"attributes":{"a":"b"}}"#,
        r#"{"trunk":{"name":"t","address":"gateway.example:5060","transport":"SIP_TRANSPORT_UDP","numbers":["+14155550100"],"authUsername":"u","authPassword":"p"}}"#,
        r#"{"rule":{"dispatchRuleIndividual":{"roomPrefix":"call-","pin":""}},"trunkIds":["ST_1"],"attributes":{"a":"b"}}"#,
        r#"{"sipTrunkId":"ST_1","sipCallTo":"+14155550199","roomName":"kitchen","participantIdentity":"phone","ringingTimeout":"30s","waitUntilAnswered":true}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
