//! Inbound calls: from which addresses, into which rooms, as which participants.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rig::baresip::{Baresip, Kind};
use super::rig::sipp::{Run, Scenario, Sipp};
use super::rig::{PATIENCE, certificates};
use super::{Exchange, becomes, hostile};
use crate::rooms::client::{Client, Kind as Sort};
use crate::rooms::{KEY, SECRET, join, workers};

/// The number that is called, and its room.
const CALLED: &str = "+14155550199";
const LOBBY: &str = "call-+14155550199";

/// The call that came in, once it is answered.
async fn active(exchange: &Exchange) -> Value {
    let active = |call: &Value| call["direction"] == "inbound" && call["status"] == "active";
    exchange.until("an active inbound one", active).await
}

/// What somebody in the room knows of a telephone whose call has this status there.
async fn attributes(somebody: &mut Client, identity: &str, status: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut present = somebody.command(json!({"do": "participants"})).await;
        let attributes = present["participants"][identity]["attributes"].take();
        if attributes["sip.callStatus"] == status {
            return attributes;
        }
        assert!(Instant::now() < deadline, "{identity} is {attributes}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the only call is over; gives why.
async fn over(exchange: &Exchange) -> String {
    let call = exchange
        .until("over", |call| call["status"] == "hangup")
        .await;
    call["cause"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_call_comes_into_the_room_of_its_number() {
    let exchange = Exchange::start();
    let mut ann = join(&exchange.server, Sort::Python, LOBBY, "ann").await;
    let headers = "X-To-IP: sip.example.com\nX-Account: 12\n";
    let scenario = Scenario::is_answered(headers).ended();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    let call = active(&exchange).await;
    assert_eq!(call["room_name"], LOBBY, "{call}");
    let identity = call["participant_identity"].as_str().unwrap().to_owned();
    ann.wait("participant_connected", &json!({"identity": identity}))
        .await;
    let attributes = attributes(&mut ann, &identity, "active").await;
    for (name, value) in [
        ("sip.callID", call["sip_call_id"].as_str().unwrap()),
        ("sip.phoneNumber", "+14155550100"),
        ("sip.trunkPhoneNumber", CALLED),
        ("sip.callStatus", "active"),
        ("sip.h.x-to-ip", "sip.example.com"),
        ("sip.h.x-account", "12"),
    ] {
        assert_eq!(attributes[name], value, "{name} of {attributes}");
    }
    exchange.hang_up(LOBBY, &identity).await;
    ann.wait("participant_disconnected", &json!({"identity": identity}))
        .await;
    telephone.passed().await;
    assert_eq!(over(&exchange).await, "local");
}

#[tokio::test]
async fn a_caller_hangs_up() {
    let exchange = Exchange::start();
    let mut session = exchange.session(LOBBY).await;
    let mut telephone = Baresip::start().await;
    telephone
        .dial(&format!("sip:{CALLED}@{}", exchange.address()))
        .await;
    telephone.next("CALL_ESTABLISHED").await;
    while session.next("sip_call").await.text("status") != "active" {}
    telephone.hang_up().await;
    assert_eq!(becomes(&mut session, "hangup").await, "remote");
    assert_eq!(over(&exchange).await, "remote");
}

#[tokio::test]
async fn a_call_whose_change_is_never_acknowledged_ends() {
    let exchange = Exchange::start();
    let scenario = Scenario::is_answered("")
        .pause(300)
        .offer("sendrecv")
        .response(200)
        .ended();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    active(&exchange).await;
    // The answer is sent again for 32 s.
    tokio::time::sleep(Duration::from_secs(15)).await;
    active(&exchange).await;
    assert_eq!(over(&exchange).await, "unreachable");
    telephone.passed().await;
}

#[tokio::test]
async fn the_room_of_a_caller_gets_the_agent_of_a_worker() {
    let keys = [("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)];
    let exchange = Exchange::with(&keys);
    let mut worker = workers::worker(&exchange.server, "worker", &json!({})).await;
    // A caller that has not proved its address costs no agent.
    let mut unproven = Sipp::call(&Scenario::gives_up(), CALLED, &exchange.address());
    unproven.passed().await;
    assert_eq!(over(&exchange).await, "cancelled");
    assert_eq!(worker.count("asked", &json!({})), 0);
    let mut telephone = Baresip::start().await;
    telephone
        .dial(&format!("sip:{CALLED}@{}", exchange.address()))
        .await;
    telephone.next("CALL_ESTABLISHED").await;
    let job = worker.wait("job", &json!({"room": LOBBY})).await;
    workers::jobs_until(
        &exchange.server,
        "running",
        |jobs| matches!(jobs, [one] if one["state"] == "running" && one["job_id"] == job["job"]),
    )
    .await;
    telephone.hang_up().await;
}

#[tokio::test]
async fn a_call_from_elsewhere_is_refused() {
    let exchange = Exchange::with(&[("SIP_ALLOWED_ADDRESSES", "127.0.0.8/29,10.0.0.0/8")]);
    for host in ["127.0.0.1", "127.0.0.7", "127.0.0.16"] {
        let run = Run {
            host,
            ..Run::default()
        };
        let scenario = Scenario::is_refused("", 403);
        Sipp::call_with(&scenario, CALLED, &exchange.address(), run)
            .passed()
            .await;
    }
    assert_eq!(exchange.calls().await, [] as [Value; 0]);
    let run = Run {
        host: "127.0.0.9",
        ..Run::default()
    };
    let scenario = Scenario::is_answered("").ends();
    Sipp::call_with(&scenario, CALLED, &exchange.address(), run)
        .passed()
        .await;
    assert_eq!(over(&exchange).await, "remote");
}

#[tokio::test]
async fn nobody_may_call_unless_somebody_may() {
    let exchange = Exchange::with(&[("SIP_ALLOWED_ADDRESSES", "")]);
    let scenario = Scenario::is_refused("", 403);
    Sipp::call(&scenario, CALLED, &exchange.address())
        .passed()
        .await;
}

#[tokio::test]
async fn calls_come_by_tcp_and_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (both, alone) = certificates(folder.path());
    let key = folder.path().join("key.pem").display().to_string();
    let alone = alone.display().to_string();
    let settings = [
        ("SIP_TLS_CERT", alone.as_str()),
        ("SIP_TLS_KEY", key.as_str()),
    ];
    let exchange = Exchange::with(&settings);
    let run = Run {
        transport: "t1",
        ..Run::default()
    };
    let scenario = Scenario::is_answered("").ends();
    Sipp::call_with(&scenario, CALLED, &exchange.address(), run)
        .passed()
        .await;
    let kind = Kind {
        transport: "tls",
        certificate: Some(both),
        ..Kind::default()
    };
    let mut telephone = Baresip::of(kind).await;
    let address = format!("127.0.0.1:{};transport=tls", exchange.port + 1);
    telephone.dial(&format!("sip:{CALLED}@{address}")).await;
    telephone.next("CALL_ESTABLISHED").await;
    active(&exchange).await;
    telephone.hang_up().await;
}

#[tokio::test]
async fn calls_are_put_on_hold_and_taken_up_again() {
    let exchange = Exchange::start();
    let scenario = Scenario::is_answered("")
        .offer("sendonly")
        .response(200)
        .acknowledge()
        .offer("inactive")
        .response(200)
        .acknowledge()
        .offer("sendrecv")
        .response(200)
        .acknowledge()
        .ends();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    telephone.passed().await;
    let messages = telephone.messages();
    let answers: Vec<&str> = messages
        .split("UDP message received")
        .map(|message| message.split("UDP message sent").next().unwrap())
        .filter(|message| message.contains("SIP/2.0 200 OK") && message.contains("m=audio"))
        .collect();
    let directions = ["sendrecv", "recvonly", "inactive", "sendrecv"];
    assert_eq!(answers.len(), directions.len(), "{messages}");
    for (answer, direction) in answers.iter().zip(directions) {
        let attributes = answer.lines().filter_map(|line| line.strip_prefix("a="));
        let said: Vec<&str> = attributes
            .map(str::trim_end)
            .filter(|name| directions.contains(name) || *name == "sendonly")
            .collect();
        assert_eq!(said, [direction], "{answer}");
    }
}

#[tokio::test]
async fn a_caller_may_not_move_its_call_by_itself() {
    let exchange = Exchange::start();
    let scenario = Scenario::is_answered("")
        .request_with("REFER", "Refer-To: <sip:+14155550111@127.0.0.1:9>\n", "")
        .response(405)
        .ends();
    Sipp::call(&scenario, CALLED, &exchange.address())
        .passed()
        .await;
    assert_eq!(over(&exchange).await, "remote");
}

#[tokio::test]
async fn a_caller_gives_up_before_anybody_answers() {
    let exchange = Exchange::start();
    let mut telephone = Sipp::call(&Scenario::gives_up(), CALLED, &exchange.address());
    telephone.passed().await;
    assert_eq!(over(&exchange).await, "cancelled");
}

#[tokio::test]
async fn a_caller_may_leave_it_to_us_what_sound_there_is() {
    let exchange = Exchange::start();
    let scenario = Scenario::is_offered().pause(500).ends();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    telephone.passed().await;
    assert_eq!(over(&exchange).await, "remote");
    let call = exchange.calls().await.remove(0);
    assert_eq!(call["media"]["codec"], "PCMU", "{call}");
    assert!(
        call["media"]["packets_received"].as_u64() > Some(5),
        "{call}"
    );
}

#[tokio::test]
async fn calls_come_and_go_by_ipv6() {
    let port = super::rig::ports(2);
    let listen = format!("udp:[::1]:{port}");
    let settings = [
        ("SIP_LISTEN", listen.as_str()),
        ("SIP_ALLOWED_ADDRESSES", "::1/128"),
    ];
    let exchange = Exchange::with(&settings);
    let run = Run {
        host: "::1",
        ..Run::default()
    };
    let mut caller = Sipp::call_with(
        &Scenario::is_answered("").ends(),
        CALLED,
        &format!("[::1]:{port}"),
        run,
    );
    caller.passed().await;
    assert_eq!(over(&exchange).await, "remote");
    let mut called = Sipp::start_with(Scenario::answers().ended(), run).await;
    let gateway = json!({"outbound_address": format!("[::1]:{}", called.port)});
    let id = exchange.call_to("six", gateway).await;
    exchange.answered(&id).await;
    exchange.hang_up("six", super::PHONE).await;
    called.passed().await;
}

/// Session timers (RFC 4028) are the caller's to renew; whether we are there may be asked at any time.
#[tokio::test]
async fn a_caller_may_ask_whether_we_are_still_there() {
    let exchange = Exchange::start();
    let timer = "Supported: timer\nSession-Expires: 1800;refresher=uac\n";
    let scenario = Scenario::is_answered(timer)
        .request("OPTIONS")
        .response(200)
        .request_with("UPDATE", timer, "")
        .response(200)
        .ends();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    telephone.passed().await;
    let messages = telephone.messages();
    let received = messages.split("UDP message received").skip(1);
    let answers = received.map(|message| message.split("UDP message sent").next().unwrap());
    let agreed = "Session-Expires: 1800;refresher=uac";
    for method in ["INVITE", "UPDATE"] {
        let is_answer = |answer: &&str| {
            let mut lines = answer.lines().map(str::trim_end);
            answer.contains("SIP/2.0 200")
                && lines.any(|line| line.starts_with("CSeq:") && line.ends_with(method))
        };
        let answer = answers.clone().find(is_answer).unwrap();
        assert!(answer.contains(agreed), "{answer}");
    }

    let (socket, local) = hostile::socket(&exchange).await;
    let message = format!(
        "OPTIONS sip:127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKasks;rport\r\nMax-Forwards: 70\r\n\
         From: <sip:x@{local}>;tag=1\r\nTo: <sip:127.0.0.1>\r\nCall-ID: asks\r\nCSeq: 1 OPTIONS\r\n\
         Content-Length: 0\r\n\r\n"
    );
    assert_eq!(hostile::answer(&socket, &message, "asks").await, 200);
}
