//! Offers as phones, programs and carriers send them, and their answers.

use super::*;

const ALL: [Codec; 4] = [Codec::Opus, Codec::G722, Codec::Pcmu, Codec::Pcma];
const PHONE_CODECS: [Codec; 3] = [Codec::G722, Codec::Pcmu, Codec::Pcma];
const KEY: &str = "inline:QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNk";

/// SIPp's own.
const SIPP: &str = "v=0\r\n\
    o=user1 53655765 2353687637 IN IP4 192.0.2.7\r\n\
    s=-\r\n\
    c=IN IP4 192.0.2.7\r\n\
    t=0 0\r\n\
    m=audio 6000 RTP/AVP 0\r\n\
    a=rtpmap:0 PCMU/8000\r\n";

/// A softphone, with video.
const SOFT: &str = "v=0\r\n\
    o=- 1103518262 2061377022 IN IP4 192.0.2.7\r\n\
    s=-\r\n\
    c=IN IP4 192.0.2.7\r\n\
    t=0 0\r\n\
    a=tool:baresip 1.0.0\r\n\
    m=video 10026 RTP/AVP 97\r\n\
    a=rtpmap:97 H264/90000\r\n\
    m=audio 10024 RTP/AVP 9 0 8 101\r\n\
    a=rtpmap:9 G722/8000\r\n\
    a=rtpmap:0 PCMU/8000\r\n\
    a=rtpmap:8 PCMA/8000\r\n\
    a=rtpmap:101 telephone-event/8000\r\n\
    a=fmtp:101 0-15\r\n\
    a=rtcp:10025\r\n\
    a=sendrecv\r\n\
    a=label:1\r\n\
    a=rtcp-rsize\r\n\
    a=ssrc:1668414834 cname:sip:bob@192.0.2.7\r\n\
    a=ptime:20\r\n";

/// A carrier: A-law first, payload types of its own, DTMF at two clock rates.
const CARRIER: &str = "v=0\r\n\
    o=- 238540244 238540244 IN IP4 192.0.2.9\r\n\
    s=-\r\n\
    c=IN IP4 192.0.2.9\r\n\
    t=0 0\r\n\
    a=sendrecv\r\n\
    m=audio 16554 RTP/AVP 107 8 0 18 106 100 13\r\n\
    a=rtpmap:107 opus/48000/2\r\n\
    a=fmtp:107 maxplaybackrate=16000;useinbandfec=1\r\n\
    a=rtpmap:8 PCMA/8000\r\n\
    a=rtpmap:0 PCMU/8000\r\n\
    a=rtpmap:18 G729/8000\r\n\
    a=fmtp:18 annexb=no\r\n\
    a=rtpmap:106 telephone-event/48000\r\n\
    a=rtpmap:100 telephone-event/8000\r\n\
    a=fmtp:100 0-16\r\n\
    a=maxptime:150\r\n\
    a=ptime:30\r\n";

/// All of them.
pub const OFFERS: [&str; 4] = [SIPP, SOFT, CARRIER, ENCRYPTED];

/// A phone that requires encryption.
const ENCRYPTED: &str = "v=0\r\n\
    o=- 1 2 IN IP4 192.0.2.7\r\n\
    s=-\r\n\
    c=IN IP4 192.0.2.7\r\n\
    t=0 0\r\n\
    m=audio 6000 RTP/SAVP 8 0\r\n\
    a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNk|2^31\r\n\
    a=crypto:2 AES_CM_128_HMAC_SHA1_32 inline:QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNk\r\n\
    a=rtcp:6001 IN IP4 192.0.2.7\r\n\
    a=ptime:20\r\n\
    a=rtcp-mux\r\n\
    a=sendrecv\r\n";

fn local() -> SocketAddr {
    "192.0.2.1:20000".parse().unwrap()
}

fn negotiation(codecs: &[Codec], encryption: Encryption) -> OfferAnswer {
    OfferAnswer::new(codecs, encryption, local())
}

fn plain(codecs: &[Codec]) -> OfferAnswer {
    negotiation(codecs, Encryption::Off)
}

/// A line of a description, by its prefix.
fn line<'a>(said: &'a str, begin: &str) -> Option<&'a str> {
    said.lines().find(|line| line.starts_with(begin))
}

fn version(said: &str) -> u64 {
    let origin = line(said, "o=").unwrap();
    origin.split(' ').nth(2).unwrap().parse().unwrap()
}

fn unacceptable(answer: Result<String, SdpError>) -> &'static str {
    match answer {
        Err(error @ SdpError::Unacceptable(why)) => {
            assert_eq!(error.status(), 488);
            why
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_simplest_offer_is_answered_with_its_codec_and_no_keys() {
    let mut call = plain(&ALL);
    let answer = call.answer(SIPP).unwrap();
    assert_eq!(line(&answer, "m="), Some("m=audio 20000 RTP/AVP 0"));
    assert_eq!(line(&answer, "c="), Some("c=IN IP4 192.0.2.1"));
    assert_eq!(line(&answer, "a=sendrecv"), Some("a=sendrecv"));
    let agreement = call.agreement().unwrap();
    assert_eq!((agreement.codec, agreement.payload_type), (Codec::Pcmu, 0));
    assert_eq!(agreement.dtmf, None);
    assert_eq!(agreement.rtp, Some("192.0.2.7:6000".parse().unwrap()));
    assert_eq!(agreement.rtcp, Some("192.0.2.7:6001".parse().unwrap()));
    assert!(agreement.sends && agreement.hears && agreement.crypto.is_none());
}

#[test]
fn the_codec_is_the_one_we_like_best_and_other_media_is_refused_in_its_place() {
    let mut call = plain(&PHONE_CODECS);
    let answer = call.answer(SOFT).unwrap();
    let media: Vec<_> = answer.lines().filter(|l| l.starts_with("m=")).collect();
    assert_eq!(
        media,
        ["m=video 0 RTP/AVP 97", "m=audio 20000 RTP/AVP 9 101"]
    );
    assert_eq!(call.agreement().unwrap().dtmf, Some((101, 8_000)));
    let mut call = plain(&[Codec::Pcma, Codec::G722]);
    call.answer(SOFT).unwrap();
    assert_eq!(call.agreement().unwrap().codec, Codec::Pcma);
    // A later offer of ours still has the refused video section.
    let offer = call.offer();
    let media: Vec<_> = offer.lines().filter(|l| l.starts_with("m=")).collect();
    assert_eq!(
        media,
        ["m=video 0 RTP/AVP 97", "m=audio 20000 RTP/AVP 8 9 101"]
    );
}

#[test]
fn numbers_are_those_of_who_offers_also_in_our_later_offers() {
    let mut call = plain(&ALL);
    let answer = call.answer(CARRIER).unwrap();
    assert_eq!(line(&answer, "m="), Some("m=audio 20000 RTP/AVP 107 106"));
    assert_eq!(
        line(&answer, "a=rtpmap:107"),
        Some("a=rtpmap:107 opus/48000/2")
    );
    let agreement = call.agreement().unwrap();
    assert_eq!(
        (agreement.dtmf, agreement.packet_ms),
        (Some((106, 48_000)), 20)
    );
    let offer = call.offer();
    assert!(line(&offer, "a=rtpmap:107 opus").is_some(), "{offer}");
    assert!(line(&offer, "a=rtpmap:106 telephone-event/48000").is_some());
    let numbers: Vec<_> = line(&offer, "m=").unwrap().split(' ').skip(3).collect();
    let mut once = numbers.clone();
    once.dedup();
    assert_eq!((once.len(), numbers.len()), (6, 6), "{offer}");
    let mut call = plain(&[Codec::Pcma]);
    call.answer(CARRIER).unwrap();
    let agreement = call.agreement().unwrap();
    assert_eq!(
        (agreement.dtmf, agreement.packet_ms),
        (Some((100, 8_000)), 30)
    );
}

#[test]
fn our_offer_has_everything_and_the_answer_decides() {
    let mut call = plain(&ALL);
    let offer = call.offer();
    assert_eq!(
        line(&offer, "m="),
        Some("m=audio 20000 RTP/AVP 96 9 0 8 101 110")
    );
    let answer = "v=0\r\n\
        o=- 1 1 IN IP4 192.0.2.7\r\n\
        s=-\r\n\
        c=IN IP4 192.0.2.7\r\n\
        t=0 0\r\n\
        m=audio 6000 RTP/AVP 8 101\r\n\
        a=rtpmap:101 telephone-event/8000\r\n";
    call.accepted(answer).unwrap();
    let agreement = call.agreement().unwrap();
    assert_eq!((agreement.codec, agreement.payload_type), (Codec::Pcma, 8));
    assert_eq!(agreement.dtmf, Some((101, 8_000)));
    assert!(
        agreement
            .receives
            .contains(&(96, Format::Audio(Codec::Opus)))
    );
    // Early media first, then the final answer with another address.
    call.accepted(&answer.replace("6000 RTP/AVP 8", "7000 RTP/AVP 0"))
        .unwrap();
    let agreement = call.agreement().unwrap();
    assert_eq!(agreement.rtp, Some("192.0.2.7:7000".parse().unwrap()));
    let refused = answer.replace("m=audio 6000", "m=audio 0");
    assert!(matches!(
        call.accepted(&refused),
        Err(SdpError::Unacceptable(_))
    ));
}

#[test]
fn an_answer_without_an_offer_is_none_and_takes_nothing_from_what_is_agreed() {
    assert_eq!(plain(&ALL).accepted(SIPP), Err(SdpError::NoOffer));
    let mut call = plain(&ALL);
    call.answer(SIPP).unwrap();
    let agreement = call.agreement().cloned();
    let elsewhere = SIPP.replace("6000", "7000");
    for said in [SIPP, &elsewhere, "no description"] {
        assert_eq!(call.accepted(said), Ok(()));
        assert_eq!(call.agreement(), agreement.as_ref());
    }
    // A late answer: their newer offer has replaced ours.
    call.offer();
    call.answer(SOFT).unwrap();
    assert_eq!(call.accepted(SIPP), Ok(()));
    let rtp = call.agreement().unwrap().rtp;
    assert_eq!(rtp, Some("192.0.2.7:10024".parse().unwrap()));
}

#[test]
fn a_held_call_does_not_send_and_comes_back() {
    let mut call = plain(&PHONE_CODECS);
    let first = call.answer(SIPP).unwrap();
    let held = [
        (SIPP.to_owned() + "a=sendonly\r\n", "a=recvonly", true),
        (SIPP.to_owned() + "a=inactive\r\n", "a=inactive", false),
        (
            SIPP.replace("c=IN IP4 192.0.2.7", "c=IN IP4 0.0.0.0"),
            "a=recvonly",
            true,
        ),
    ];
    for (offer, direction, hears) in held {
        let answer = call.answer(&offer).unwrap();
        assert!(line(&answer, direction).is_some(), "{answer}");
        let agreement = call.agreement().unwrap();
        assert_eq!((agreement.sends, agreement.hears), (false, hears));
        let answer = call.answer(SIPP).unwrap();
        assert!(line(&answer, "a=sendrecv").is_some());
        assert!(version(&answer) > version(&first));
    }
    let answer = call.answer(SIPP).unwrap();
    assert_eq!(version(&call.answer(SIPP).unwrap()), version(&answer));
}

#[test]
fn we_hold_by_sending_only() {
    let mut call = plain(&PHONE_CODECS);
    let first = call.offer();
    call.accepted(SIPP).unwrap();
    call.hold(true);
    let offer = call.offer();
    assert!(line(&offer, "a=sendonly").is_some());
    assert_eq!(version(&offer), version(&first) + 1);
    call.accepted(&(SIPP.to_owned() + "a=recvonly\r\n"))
        .unwrap();
    let agreement = call.agreement().unwrap();
    assert!(agreement.sends && !agreement.hears);
    let answer = call.answer(SIPP).unwrap();
    assert!(line(&answer, "a=sendonly").is_some());
    call.hold(false);
    assert!(line(&call.offer(), "a=sendrecv").is_some());
}

#[test]
fn a_call_keeps_its_codec() {
    let mut call = plain(&[Codec::G722, Codec::Pcmu, Codec::Pcma]);
    call.answer(SIPP).unwrap();
    call.answer(SOFT).unwrap();
    assert_eq!(call.agreement().unwrap().codec, Codec::Pcmu);
}

#[test]
fn encryption_is_as_it_was_wished() {
    let line_of = |suite: &str| format!("a=crypto:7 {suite} {KEY}\r\n");
    let strong = line_of("AES_CM_128_HMAC_SHA1_80");
    let avp = SIPP.to_owned();
    let best_effort = avp.clone() + &strong;
    let savp = best_effort.replace("RTP/AVP", "RTP/SAVP");
    let short = avp.replace("RTP/AVP", "RTP/SAVP") + &line_of("AES_CM_128_HMAC_SHA1_32");
    let unknown = avp.replace("RTP/AVP", "RTP/SAVP") + &line_of("AES_256_CM_HMAC_SHA1_80");
    let dtls = avp.replace("RTP/AVP", "UDP/TLS/RTP/SAVPF");
    // Offer, and whether media is encrypted, for off, allow, require.
    let table: [(&str, [Option<bool>; 3]); 6] = [
        (&avp, [Some(false), Some(false), None]),
        (&best_effort, [Some(false), Some(true), Some(true)]),
        (&savp, [None, Some(true), Some(true)]),
        (&short, [None, Some(true), Some(true)]),
        (&unknown, [None, None, None]),
        (&dtls, [None, None, None]),
    ];
    for (offer, expected) in table {
        let wishes = [Encryption::Off, Encryption::Allow, Encryption::Require];
        for (encryption, expected) in wishes.into_iter().zip(expected) {
            let mut call = negotiation(&ALL, encryption);
            let answer = call.answer(offer);
            match (answer, expected) {
                (Ok(answer), Some(encrypted)) => {
                    assert_eq!(call.agreement().unwrap().crypto.is_some(), encrypted);
                    let crypto = line(&answer, "a=crypto:7 ");
                    assert_eq!(crypto.is_some(), encrypted, "{answer}");
                    assert!(!answer.contains(KEY));
                }
                (Err(error), None) => assert_eq!(error.status(), 488),
                (answer, _) => panic!("{encryption:?} {offer}: {answer:?}"),
            }
        }
    }
}

#[test]
fn what_we_require_we_offer_and_nothing_less_is_accepted() {
    let mut call = negotiation(&PHONE_CODECS, Encryption::Require);
    let offer = call.offer();
    assert!(line(&offer, "m=").unwrap().contains("RTP/SAVP"));
    assert!(line(&offer, "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:").is_some());
    assert!(line(&offer, "a=crypto:2 AES_CM_128_HMAC_SHA1_32 inline:").is_some());
    assert_eq!(call.offer(), offer);
    assert!(matches!(
        call.accepted(SIPP),
        Err(SdpError::Unacceptable(_))
    ));
    let answer = SIPP.replace("RTP/AVP", "RTP/SAVP")
        + &format!("a=crypto:2 AES_CM_128_HMAC_SHA1_32 {KEY}\r\n");
    call.accepted(&answer).unwrap();
    let (ours, theirs) = call.agreement().unwrap().crypto.clone().unwrap();
    assert!(offer.contains(&ours.write()));
    assert_eq!(theirs.write(), format!("2 AES_CM_128_HMAC_SHA1_32 {KEY}"));
    let plain = negotiation(&PHONE_CODECS, Encryption::Allow).offer();
    assert!(plain.contains("RTP/AVP") && !plain.contains("crypto"));
}

#[test]
fn of_two_offers_of_sound_the_encrypted_one_is_taken_where_that_is_allowed() {
    let offer = SIPP.to_owned()
        + "m=audio 6002 RTP/SAVP 0\r\n"
        + &format!("a=crypto:1 AES_CM_128_HMAC_SHA1_80 {KEY}\r\n");
    let media = |encryption| -> Vec<String> {
        let answer = negotiation(&ALL, encryption).answer(&offer).unwrap();
        let media = answer.lines().filter(|l| l.starts_with("m="));
        media.map(ToOwned::to_owned).collect()
    };
    let first = ["m=audio 20000 RTP/AVP 0", "m=audio 0 RTP/SAVP 0"];
    assert_eq!(media(Encryption::Off), first);
    let second = ["m=audio 0 RTP/AVP 0", "m=audio 20000 RTP/SAVP 0"];
    assert_eq!(media(Encryption::Allow), second);
    assert_eq!(media(Encryption::Require), second);
}

#[test]
fn what_cannot_be_a_call_is_refused_with_the_reason() {
    let mut call = plain(&PHONE_CODECS);
    let no_codec = SIPP.replace(" 0\r\na=rtpmap:0 PCMU/8000", " 18");
    assert!(unacceptable(call.answer(&no_codec)).contains("codec"));
    let other_family = SIPP.replace("c=IN IP4 192.0.2.7", "c=IN IP6 2001:db8::7");
    assert!(unacceptable(call.answer(&other_family)).contains("family"));
    let group = SIPP.replace("c=IN IP4 192.0.2.7", "c=IN IP4 224.2.1.1/127");
    assert!(unacceptable(call.answer(&group)).contains("group"));
    let none = SIPP.replace("m=audio 6000", "m=audio 0");
    assert!(unacceptable(call.answer(&none)).contains("audio"));
    let fax = SIPP.replace("m=audio 6000 RTP/AVP 0", "m=image 6000 udptl t38");
    assert!(unacceptable(call.answer(&fax)).contains("audio"));
    let broken = call.answer("hello").unwrap_err();
    assert_eq!(broken.status(), 400);
    // None of them changed the negotiated state.
    assert!(call.agreement().is_none());
    call.answer(SIPP).unwrap();
}

#[test]
fn version_six_has_addresses_of_its_own() {
    let local = "[2001:db8::1]:20000".parse().unwrap();
    let mut call = OfferAnswer::new(&ALL, Encryption::Off, local);
    let offer = SIPP.replace("c=IN IP4 192.0.2.7", "c=IN IP6 2001:db8::7");
    let answer = call.answer(&offer).unwrap();
    assert_eq!(line(&answer, "c="), Some("c=IN IP6 2001:db8::1"));
    let rtp = call.agreement().unwrap().rtp.unwrap();
    assert_eq!(rtp, "[2001:db8::7]:6000".parse().unwrap());
}

#[test]
fn one_port_is_shared_only_if_that_was_offered() {
    let mut call = plain(&ALL);
    let answer = call.answer(&(SIPP.to_owned() + "a=rtcp-mux\r\n")).unwrap();
    assert!(line(&answer, "a=rtcp-mux").is_some());
    assert!(call.agreement().unwrap().rtcp_mux);
    let answer = call.answer(SIPP).unwrap();
    assert!(line(&answer, "a=rtcp-mux").is_none());
}
