//! The cases of RFC 4475, with messages of our own: whatever comes, the user agent answers the next request, a message that means
//! a call begins one, and none that is broken does.

use super::*;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is a call.
    Call,
    /// It is none.
    NoCall,
    /// Either is right.
    Either,
}
use Fate::{Call, Either, NoCall};

const SDP: &str = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 49170 RTP/AVP 0\r\n";

/// A message: its first line, then its headers, each ended by a line feed, then a body. `Content-Length` is added.
fn message(line: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("{line}\n{headers}Content-Length: {length}\n\n");
    (head.replace('\n', "\r\n") + body).into_bytes()
}

/// The usual headers of a request with this case as its Call-ID.
fn usual(case: &str, method: &str) -> String {
    format!(
        "Via: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK{case}\nMax-Forwards: 70\nFrom: <sip:caller@example.net>;tag=f{case}\n\
         To: <sip:callee@example.com>\nCall-ID: {case}@torture\nCSeq: 8 {method}\nContact: <sip:caller@192.0.2.1>\n"
    )
}

/// An INVITE, in the usual headers of which something is replaced.
fn invite(case: &str, from: &str, to: &str) -> Vec<u8> {
    let headers = usual(case, "INVITE");
    assert!(headers.contains(from), "{case}: {from}");
    let headers = headers.replacen(from, to, 1) + "Content-Type: application/sdp\n";
    message("INVITE sip:callee@example.com SIP/2.0", &headers, SDP)
}

fn line(case: &str, line: &str) -> Vec<u8> {
    let headers = usual(case, "INVITE") + "Content-Type: application/sdp\n";
    message(line, &headers, SDP)
}

fn more(case: &str, headers: &str) -> Vec<u8> {
    let headers = usual(case, "INVITE") + headers + "Content-Type: application/sdp\n";
    message("INVITE sip:callee@example.com SIP/2.0", &headers, SDP)
}

fn other(case: &str, method: &str, headers: &str) -> Vec<u8> {
    let headers = usual(case, method) + headers;
    message(
        &format!("{method} sip:callee@example.com SIP/2.0"),
        &headers,
        "",
    )
}

/// Text in which something is replaced.
fn edited(message: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(message.to_vec()).unwrap();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1).into_bytes()
}

fn valid() -> Vec<(&'static str, Vec<u8>, Fate)> {
    let folded = "To :\n sip:callee@example.com\nfrom  : \"Caller \\\\\\\"\"   <sip:caller@example.net>\n ;\n tag = 98\n\
         MaX-fOrWaRdS: 0068\ni: wsinv@torture\ncseq: 0009\n  INVITE\nVia  : SIP  /   2.0\n /UDP\n  192.0.2.2;branch=z9hG4bKwsinv\n\
         s :\nNewHeader:   a value\n continued\nOddHeader: ;;,,;;,;\nRoute:\n <sip:proxy.example.com;lr;unknown=~v>\n\
         v:  SIP  / 2.0  / TCP  spindle.example.com ;\n branch = z9hG4bK9ikj8 ,\n SIP / 2.0 / UDP  192.168.255.111 ; branch= z9hG4bK30239\n\
         m:\"Quoted \\\"\\\"\" <sip:caller@example.net> ; p = newvalue ; secondparam ; q = 0.33\nContent-Type: application/sdp\n";
    let long = "a".repeat(700);
    let long_headers =
        format!("Unknown{long}: {long}\nX-Long: \"{long}\" <sip:{long}@example.net>;p={long}\n");
    let transports = "Via: SIP/2.0/TLS t2;branch=z9hG4bKt2\nVia: SIP/2.0/SCTP t3;branch=z9hG4bKt3\nVia: SIP/2.0/UNKNOWN t4;branch=z9hG4bKt4\n";
    let two = {
        let mut two = other("dblreq", "REGISTER", "");
        two.extend(line("dblreq2", "INVITE sip:second@example.com SIP/2.0"));
        two
    };
    let parts = "--b\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n\r\n--b\r\nContent-Type: application/octet-stream\r\n\r\n\u{1}\u{2}\r\n--b--";
    let mut binary = message(
        "MESSAGE sip:callee@example.com SIP/2.0",
        &(usual("mpart01", "MESSAGE") + "Content-Type: multipart/mixed;boundary=b\n"),
        parts,
    );
    binary.push(0xff);
    vec![
        ("wsinv", message("INVITE sip:callee@example.com;unknownparam SIP/2.0", folded, SDP), Either),
        (
            "intmeth",
            message(
                "!interesting-Method0123456789_*+`.%indeed'~ sip:1_unusual.URI~(to-be!sure)&isn't+it$/crazy?,/;;*:&it+has=1@example.com SIP/2.0",
                &usual("intmeth", "!interesting-Method0123456789_*+`.%indeed'~"),
                "",
            ),
            NoCall,
        ),
        ("esc01", line("esc01", "INVITE sip:sips%3Auser%40example.com@example.net SIP/2.0"), Call),
        ("escnull", other("escnull", "REGISTER", "Contact: <sip:%00@host5.example.com>\nContact: <sip:%00%00@host5.example.com>\n"), NoCall),
        ("esc02", message("RE%47IST%45R sip:registrar.example.com SIP/2.0", &usual("esc02", "RE%47IST%45R"), ""), NoCall),
        ("lwsdisp", edited(&other("lwsdisp", "OPTIONS", ""), "From: <sip:", "From: caller<sip:"), NoCall),
        ("longreq", more("longreq", &long_headers), Call),
        ("dblreq", two, NoCall),
        ("semiuri", message("OPTIONS sip:user;par=u%40example.net@example.com SIP/2.0", &usual("semiuri", "OPTIONS"), ""), NoCall),
        ("transports", other("transports", "OPTIONS", transports), NoCall),
        ("mpart01", binary, NoCall),
        ("unreason", b"SIP/2.0 200 = 2**3 * 5**2 \xd0\xbd\xd0\xbe\r\nVia: SIP/2.0/UDP 192.0.2.198;branch=z9hG4bK1324923\r\nCall-ID: unreason\r\nCSeq: 35 INVITE\r\nFrom: <sip:a@example.com>;tag=1\r\nTo: <sip:b@example.com>;tag=2\r\nContent-Length: 0\r\n\r\n".to_vec(), NoCall),
        ("noreason", b"SIP/2.0 100 \r\nVia: SIP/2.0/UDP 192.0.2.105;branch=z9hG4bK2398ndaoe\r\nCall-ID: noreason\r\nCSeq: 35 INVITE\r\nFrom: <sip:a@example.com>;tag=1\r\nTo: <sip:b@example.com>;tag=2\r\nContent-Length: 0\r\n\r\n".to_vec(), NoCall),
    ]
}

fn broken() -> Vec<(&'static str, Vec<u8>, Fate)> {
    let call = |case: &str| line(case, "INVITE sip:callee@example.com SIP/2.0");
    let length = format!("Content-Length: {}", SDP.len());
    let invalid = "Max-Forwards: 300\nCSeq: 36893488147419103232 REGISTER\nExpires: 10000000000000000000000000000000000000000000000\nContact: <sip:user@host129.example.com>;expires=280297596632815\n";
    let scalars = |case: &str| {
        let text = usual(case, "REGISTER")
            .replace("Max-Forwards: 70\n", "")
            .replace("CSeq: 8 REGISTER\n", "");
        message("REGISTER sip:example.com SIP/2.0", &(text + invalid), "")
    };
    let vias = invite(
        "badinv01",
        "branch=z9hG4bKbadinv01",
        "branch=z9hG4bKbadinv01;;,;,,",
    );
    vec![
        ("badinv01", edited(&vias, "Contact: <sip:caller@192.0.2.1>", "Contact: \"\" <> ;,"), NoCall),
        ("clerr", edited(&call("clerr"), &length, "Content-Length: 9999"), Either),
        ("ncl", edited(&call("ncl"), &length, "Content-Length: -999"), Either),
        ("scalar02", scalars("scalar02"), NoCall),
        ("scalarlg", b"SIP/2.0 503 Service Unavailable\r\nVia: SIP/2.0/TCP host129.example.com;branch=z9hG4bKzz\r\nFrom: <sip:a@h>;tag=1\r\nTo: <sip:b@h>;tag=2\r\nCall-ID: scalarlg\r\nCSeq: 9292394834772304023312 OPTIONS\r\nRetry-After: 949302838503028349304023988\r\nWarning: 1812 overture \"In Progress\"\r\nContent-Length: 0\r\n\r\n".to_vec(), NoCall),
        ("quotbal", invite("quotbal", "To: <sip", "To: \"Mr. J. User <sip"), Either),
        ("ltgtruri", line("ltgtruri", "INVITE <sip:user@example.com> SIP/2.0"), NoCall),
        ("lwsruri", line("lwsruri", "INVITE sip:user@example.com; lr SIP/2.0"), NoCall),
        ("lwsstart", line("lwsstart", "INVITE  sip:user@example.com  SIP/2.0"), Either),
        ("trws", message("OPTIONS sip:remote-target@example.com SIP/2.0  ", &usual("trws", "OPTIONS"), ""), NoCall),
        ("escruri", line("escruri", "INVITE sip:user@example.com?Route=%3Csip:example.com%3E SIP/2.0"), Either),
        ("baddate", more("baddate", "Date: Fri, 01 Jan 2010 16:00:00 EST\n"), Either),
        ("regbadct", other("regbadct", "REGISTER", "Contact: sip:user@example.com?Route=%3Csip:sip.example.com%3E\n"), NoCall),
        ("badaspec", edited(&other("badaspec", "OPTIONS", ""), "To: <sip:callee@example.com>", "To: \"Watson, Thomas\" < sip:t@example.org >"), NoCall),
        ("baddn", edited(&other("baddn", "OPTIONS", ""), "From: <sip:caller@example.net>", "From: Bell, Alexander <sip:a@example.com>"), NoCall),
        ("badvers", line("badvers", "INVITE sip:callee@example.com SIP/7.0"), NoCall),
        ("mismatch01", edited(&other("mismatch01", "OPTIONS", ""), "CSeq: 8 OPTIONS", "CSeq: 8 INVITE"), NoCall),
        ("mismatch02", edited(&message("NEWMETHOD sip:callee@example.com SIP/2.0", &usual("mismatch02", "NEWMETHOD"), ""), "CSeq: 8 NEWMETHOD", "CSeq: 8 INVITE"), NoCall),
        ("bigcode", b"SIP/2.0 4294967301 better not break the receiver\r\nVia: SIP/2.0/UDP 192.0.2.105;branch=z9hG4bK2398ndaoe\r\nCall-ID: bigcode\r\nCSeq: 353494 INVITE\r\nFrom: <sip:a@example.com>;tag=1\r\nTo: <sip:b@example.com>;tag=2\r\nContent-Length: 0\r\n\r\n".to_vec(), NoCall),
    ]
}

fn odd() -> Vec<(&'static str, Vec<u8>, Fate)> {
    let call = "INVITE sip:callee@example.com SIP/2.0";
    let without = |case: &str, header: &str| {
        let text = usual(case, "INVITE");
        let lines = text.lines().filter(|line| !line.starts_with(header));
        let headers = lines.collect::<Vec<_>>().join("\n") + "\n";
        message(call, &headers, "")
    };
    vec![
        ("badbranch", edited(&other("badbranch", "OPTIONS", ""), "z9hG4bKbadbranch", "z9hG4bK"), NoCall),
        ("insuf", without("insuf", "Call-ID"), NoCall),
        ("unkscm", message("OPTIONS nobodyKnowsThisScheme:totallyopaquecontent SIP/2.0", &usual("unkscm", "OPTIONS"), ""), NoCall),
        ("novelsc", message("OPTIONS soap.beep://192.0.2.103:3002 SIP/2.0", &usual("novelsc", "OPTIONS"), ""), NoCall),
        ("unksm2", edited(&other("unksm2", "REGISTER", ""), "To: <sip:callee@example.com>", "To: isbn:2983792873"), NoCall),
        ("bext01", other("bext01", "OPTIONS", "Require: nothingSupportsThis\nProxy-Require: noProxiesSupportThis\n"), NoCall),
        ("invut", edited(&line("invut", call), "application/sdp", "application/unknownformat"), Call),
        ("regaut01", other("regaut01", "REGISTER", "Authorization: NoOneKnowsThisScheme opaque-data=here\n"), NoCall),
        ("multi01", more("multi01", "CSeq: 9 INVITE\nCall-ID: other\nMax-Forwards: 5\nFrom: <sip:x@example.com>;tag=2\nTo: <sip:y@example.com>\n"), NoCall),
        ("mcl01", other("mcl01", "OPTIONS", "Content-Length: 13\n"), NoCall),
        ("bcast", b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 192.0.2.198;branch=z9hG4bK1324923\r\nVia: SIP/2.0/UDP 255.255.255.255;branch=z9hG4bK1saber23\r\nCall-ID: bcast\r\nCSeq: 35 INVITE\r\nFrom: <sip:a@example.com>;tag=1\r\nTo: <sip:b@example.com>;tag=2\r\nContact: <sip:u@192.0.2.198>\r\nContent-Length: 0\r\n\r\n".to_vec(), NoCall),
        ("zeromf", edited(&other("zeromf", "OPTIONS", ""), "Max-Forwards: 70", "Max-Forwards: 0"), NoCall),
        ("cparam01", other("cparam01", "REGISTER", "Contact: sip:+19725552222@gw1.example.net;unknownparam\n"), NoCall),
        ("cparam02", other("cparam02", "REGISTER", "Contact: <sip:+19725552222@gw1.example.net;unknownparam>\n"), NoCall),
        ("regescrt", other("regescrt", "REGISTER", "Contact: <sip:user@example.com?Route=%3Csip:sip.example.com%3E>\n"), NoCall),
        ("sdp01", more("sdp01", "Accept: text/nobodyKnowsThis\n"), Call),
        // RFC 2543: no branch, no tag.
        ("inv2543", edited(&invite("inv2543", ";branch=z9hG4bKinv2543", ""), ";tag=finv2543", ""), Either),
    ]
}

#[tokio::test]
async fn the_tortures_of_rfc_4475_are_survived_and_only_calls_are_calls() {
    let cases: Vec<_> = [valid(), broken(), odd()].concat();
    assert_eq!(cases.len(), 49);
    let mut called = called(Protocol::Udp, &[HERE]).await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(called.address).await.unwrap();
    let own = socket.local_addr().unwrap();
    let mut problems = Vec::new();
    for (number, (case, message, fate)) in cases.iter().enumerate() {
        socket.send(message).await.unwrap();
        // It is in order: what comes after it is answered after it.
        let ping = format!(
            "OPTIONS sip:h SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bKping{number}\r\nFrom: <sip:a@h>;tag=1\r\nTo: <sip:h>\r\n\
             Call-ID: ping{number}\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
        );
        socket.send(ping.as_bytes()).await.unwrap();
        let answered = async {
            let mut datagram = vec![0; 65_535];
            loop {
                let length = socket.recv(&mut datagram).await.unwrap();
                let text = String::from_utf8_lossy(&datagram[..length]);
                if text.contains(&format!("ping{number}")) {
                    return text.starts_with("SIP/2.0 200");
                }
            }
        };
        let answered = timeout(PATIENCE, answered).await;
        assert_eq!(answered, Ok(true), "after {case}");
        let invited = timeout(Duration::from_millis(30), called.invitations.recv()).await;
        let is_call = invited.is_ok();
        if let Ok(Some(invitation)) = invited {
            // Whatever is in it can be looked at.
            let _ = (
                invitation.called(),
                invitation.headers(),
                invitation.offer(),
                invitation.answers(),
            );
            invitation.refuse(486);
        }
        if (*fate == Call && !is_call) || (*fate == NoCall && is_call) {
            problems.push(format!("{case}: {fate:?}, {is_call}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}
