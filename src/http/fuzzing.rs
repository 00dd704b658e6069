//! What of this folder is fuzzed: frames of the socket, and the headers that we read ourselves.

use actix_web::http::header::{FORWARDED, HeaderMap, HeaderValue};

use super::peer::{TrustedProxies, X_FORWARDED_FOR};
use super::recording;
use vivavoce_socket::Frames;

/// The bytes of a connection, in pieces whose size the first byte says.
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

/// Text in two fragments with a ping between them, sound, and a close.
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
