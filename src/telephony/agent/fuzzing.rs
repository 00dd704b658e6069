//! Targets of [`vivavoce_core::fuzzing`]: messages as they come from the network, and what is read of their headers.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::BytesMut;
use rsipstack::sip::prelude::HeadersExt as _;
use rsipstack::sip::{Header, SipMessage, Transport};
use rsipstack::transaction::key::{TransactionKey, TransactionRole};
use rsipstack::transport::SipConnection;

use super::acl::to_tag;
use super::dialog::{Dialog, sdp};
use super::digest::{Asker, Authenticator, Challenge, Credentials};
use super::header::Address;
use super::in_dialog::{session_timer, unsupported};
use super::notify_and_info::{self, Notification};
use super::referral::ReferRequest;
use super::replaces::Replaces;
use super::stream::{Cutter, Piece};
use super::{bounds, client};
use vivavoce_core::fuzzing::{Target, text};

/// The targets of this folder.
pub const TARGETS: [Target; 3] = [
    // What the stack's parser does not bear is caught, as it is in the transports.
    text("sip_message", message, messages),
    text("sip_stream", stream, streams),
    text("sip_challenge", challenge, challenges),
];

fn messages() -> Vec<Vec<u8>> {
    MESSAGES.map(<[u8]>::to_vec).to_vec()
}

fn streams() -> Vec<Vec<u8>> {
    let both = [MESSAGES[0], b"\r\n\r\n", MESSAGES[3], b"\r\n"].concat();
    vec![both, MESSAGES[2].to_vec()]
}

fn challenges() -> Vec<Vec<u8>> {
    let samples: [&[u8]; 3] = [
        b"Digest realm=\"a\", nonce=\"b\", algorithm=SHA-256, qop=\"auth,auth-int\", stale=TRUE, opaque=\"c\\\"d\"",
        b"Digest nonce=x,realm = y , algorithm=MD5-sess",
        b"Basic realm=\"a\"",
    ];
    samples.map(<[u8]>::to_vec).to_vec()
}

const MESSAGES: [&[u8]; 5] = [
    b"INVITE sip:+14155550199@127.0.0.1;user=phone SIP/2.0\r\n\
      Via: SIP/2.0/UDP 192.0.2.7:5060;branch=z9hG4bKa;rport, SIP/2.0/TCP [2001:db8::1];branch=z9hG4bKb\r\n\
      Max-Forwards: 70\r\nFrom: \"A \\\" b\" <sip:%2B1@example.org:5060;ext=1>;tag=1\r\nTo: <tel:+14155550199>\r\n\
      Call-ID: a@b\r\nCSeq: 1 INVITE\r\nContact: <sip:x@192.0.2.7:5060;transport=udp>;expires=3\r\n\
      Record-Route: <sip:192.0.2.8;lr>,<sip:192.0.2.9;lr>\r\nRequire: timer, 100rel\r\nSupported: timer\r\n\
      Session-Expires: 1800;refresher=uac\r\nReplaces: c@d;to-tag=1;from-tag=2;early-only\r\n\
      Refer-To: <sip:c@h?Replaces=c%40d%3Bto-tag%3D1%3Bfrom-tag%3D2>\r\nP-Asserted-Identity: <sip:+1@h>\r\nX-One: 1\r\n two\r\n\
      Content-Type: application/sdp\r\nContent-Length: 28\r\n\r\nv=0\r\nm=audio 9 RTP/AVP 0 8\r\n",
    b"NOTIFY sip:a@h SIP/2.0\r\nv: SIP/2.0/UDP h;branch=z9hG4bK1;received=192.0.2.1\r\nf: <sip:b@h>;tag=1\r\n\
      t: <sip:a@h>;tag=2\r\ni: c\r\nCSeq: 4294967295 NOTIFY\r\no: refer;id=93\r\n\
      Subscription-State: terminated;reason=noresource\r\nc: message/sipfrag;version=2.0\r\nl: 20\r\n\r\nSIP/2.0 486 Busy Here",
    b"INFO sip:a@h SIP/2.0\r\nVia: SIP/2.0/TLS h;branch=z9hG4bK2\r\nFrom: sip:b@h;tag=1\r\nTo: sip:a@h;tag=2\r\nCall-ID: c\r\n\
      CSeq: 2 INFO\r\nContent-Type: application/dtmf-relay\r\nContent-Length: 24\r\n\r\nSignal= 5\r\nDuration= 160",
    b"SIP/2.0 401 Unauthorized\r\nVia: SIP/2.0/UDP 127.0.0.1:5060;branch=z9hG4bK3;received=127.0.0.1;rport=9\r\n\
      From: <sip:b@h>;tag=1\r\nTo: <sip:a@h>;tag=9\r\nCall-ID: c\r\nCSeq: 2 INVITE\r\n\
      WWW-Authenticate: Digest realm=\"a\", nonce=\"b\", algorithm=SHA-256, qop=\"auth,auth-int\"\r\nContent-Length: 0\r\n\r\n",
    b"INVITE sip:1@h SIP/2.0\r\nVia: SIP/2.0/UDP h\r\nFrom: <sip:b@h>;tag=1\r\nTo: <sip:a@h>\r\nCall-ID: c\r\nCSeq: 1 INVITE\r\n\
      Contact: <sip:b@h>\r\nContent-Type: multipart/mixed;boundary=x\r\nContent-Length: 68\r\n\r\n--x\r\n\
      Content-Type: application/sdp\r\n\r\nv=0\r\ns=-\r\n--x--\r\nand more of it\r\n",
];

/// As `transports` does: what does not fit is not read, and what the stack does not bear ends with it.
fn message(input: &[u8]) {
    if !bounds::fits(input, false) {
        return;
    }
    let from = SocketAddr::from(([192, 0, 2, 7], 5060));
    let read = catch_unwind(AssertUnwindSafe(|| {
        let message = SipMessage::try_from(input).ok()?;
        SipConnection::update_msg_received(message, from, Transport::Udp).ok()
    }));
    match read.ok().flatten() {
        Some(SipMessage::Request(request)) => {
            let _key = catch_unwind(|| {
                TransactionKey::from_request(&request, TransactionRole::Server).is_ok()
            });
            // From here on a panic would be ours.
            let _tag = to_tag(&request);
            let _timer = (session_timer(&request), unsupported(&request));
            let _news = (Notification::read(&request), notify_and_info::id(&request));
            let _key = notify_and_info::digit(&request);
            let _wish = ReferRequest::read(&request);
            let told = client::told(&request.headers);
            assert!(told.len() <= 128);
            for (_, value) in &told {
                let address = Address::parse(value);
                let _parts = (address.user(), address.host(), address.tag());
                let _replaces = Replaces::parse(value);
            }
            if let Some(sdp) = sdp(&request, &request.body) {
                assert!(sdp.len() <= request.body.len() + 2);
            }
            if let Some(mut dialog) = Dialog::inbound(&request) {
                let _order = (dialog.is_theirs(&request), dialog.in_order(&request));
                let _next = (dialog.next_hop(), dialog.target());
                dialog.retarget(&request);
            }
        }
        Some(SipMessage::Response(response)) => {
            let _key = catch_unwind(|| {
                TransactionKey::from_response(&response, TransactionRole::Client).is_ok()
            });
            let _sdp = sdp(&response, &response.body);
            let asked = response.headers.iter().filter_map(|header| match header {
                Header::WwwAuthenticate(value) => Some(value.value()),
                _ => None,
            });
            asked.for_each(|value| challenge(value.as_bytes()));
            let _to = response
                .to_header()
                .map(|to| Address::parse(to.value()).tag());
        }
        None => {}
    }
}

fn stream(input: &[u8]) {
    let mut whole = BytesMut::from(input);
    let mut cutter = Cutter::default();
    let mut at_once = Vec::new();
    let broken = loop {
        match cutter.cut(&mut whole) {
            Ok(Some(piece)) => at_once.push(piece),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    // In pieces it is the same.
    let mut some = BytesMut::new();
    let (mut cutter, mut cut) = (Cutter::default(), Vec::new());
    'all: for chunk in input.chunks(1 + input.len() / 50) {
        some.extend_from_slice(chunk);
        loop {
            match cutter.cut(&mut some) {
                Ok(Some(piece)) => cut.push(piece),
                Ok(None) => break,
                Err(_) => break 'all,
            }
        }
    }
    let messages = |pieces: Vec<Piece>| {
        let messages = pieces.into_iter().filter(|piece| *piece != Piece::Ping);
        messages.collect::<Vec<_>>()
    };
    if !broken {
        assert_eq!(messages(cut), messages(at_once));
    }
}

fn challenge(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let _read = Challenge::parse(text);
    let mut authenticator = Authenticator::new(Some(Credentials {
        username: "user".to_owned(),
        password: "password".to_owned(),
    }));
    if authenticator.challenged(Asker::Server, std::iter::once(text)) {
        for (_, answer) in authenticator.answers("INVITE", "sip:a") {
            // Nothing of it begins another header.
            assert!(!answer.contains(['\r', '\n']), "{answer:?}");
        }
    }
}
