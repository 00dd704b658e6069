//! The telephone of a deployment against a stub of its server API, which stores trunks as embedded rooms do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use livekit_protocol as proto;
use prost::Message;
use tokio::sync::{Notify, mpsc};

use super::*;
use vivavoce_auth::{Owner, Principal};
use vivavoce_config::{Config, Secret, SipTransport};
use vivavoce_core::phone::PhoneNumber;
use vivavoce_core::tls_roots::Authorities;
use vivavoce_providers::transport::Transport;
use vivavoce_quotas::{Kind, Party, Quota, Share};
use vivavoce_seams::rooms::telephone::{CallNews, Callee, CallerIdentity, Login, Trunk};
use vivavoce_telephony::trunks::{Filter, Trunks};

struct Deployment {
    trunks: Trunks,
    /// Whether it knows trunks that come with a call.
    inline: AtomicBool,
    /// What every call is answered with instead, as JSON.
    refuses: Mutex<Option<&'static str>>,
    calls: Mutex<Vec<proto::CreateSipParticipantRequest>>,
    /// What the participant of a call says when it is looked at.
    statuses: Mutex<Vec<&'static str>>,
    changes: AtomicUsize,
    /// A transfer was asked for, and is answered: with what every call is, or that it was made.
    asked: Notify,
    moved: Notify,
    _folder: tempfile::TempDir,
}

fn answer<T: Message>(answer: &T) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/protobuf")
        .body(answer.encode_to_vec())
}

fn refusal(body: &'static str) -> HttpResponse {
    HttpResponse::BadRequest()
        .content_type("application/json")
        .body(body)
}

async fn serve(
    state: web::Data<Deployment>,
    method: web::Path<String>,
    body: web::Bytes,
) -> HttpResponse {
    let trunks = &state.trunks;
    let changes = |response: HttpResponse| {
        state.changes.fetch_add(1, Relaxed);
        response
    };
    match method.as_str() {
        "CreateSIPParticipant" => {
            let said = proto::CreateSipParticipantRequest::decode(body).unwrap();
            if let Some(refused) = *state.refuses.lock().unwrap() {
                return refusal(refused);
            }
            if said.sip_trunk_id.is_empty() && !state.inline.load(Relaxed) {
                return refusal(r#"{"code":"invalid_argument","msg":"missing sip trunk id"}"#);
            }
            let placed = proto::SipParticipantInfo {
                participant_id: "PA_1".to_owned(),
                participant_identity: said.participant_identity.clone(),
                room_name: said.room_name.clone(),
                sip_call_id: "SCL_1".to_owned(),
            };
            state.calls.lock().unwrap().push(said);
            answer(&placed)
        }
        "ListSIPOutboundTrunk" => answer(&proto::ListSipOutboundTrunkResponse {
            items: trunks.list_outbound(Filter::default(), &[]),
        }),
        "CreateSIPOutboundTrunk" => {
            let said = proto::CreateSipOutboundTrunkRequest::decode(body).unwrap();
            changes(answer(
                &trunks.create_outbound(said.trunk.unwrap()).unwrap(),
            ))
        }
        "DeleteSIPTrunk" => {
            let said = proto::DeleteSipTrunkRequest::decode(body).unwrap();
            trunks.delete_trunk(&said.sip_trunk_id).unwrap();
            changes(answer(&proto::SipTrunkInfo::default()))
        }
        "ListSIPInboundTrunk" => answer(&proto::ListSipInboundTrunkResponse {
            items: trunks.list_inbound(Filter::default(), &[]),
        }),
        "CreateSIPInboundTrunk" => {
            let said = proto::CreateSipInboundTrunkRequest::decode(body).unwrap();
            changes(answer(&trunks.create_inbound(said.trunk.unwrap()).unwrap()))
        }
        "UpdateSIPInboundTrunk" => {
            let said = proto::UpdateSipInboundTrunkRequest::decode(body).unwrap();
            changes(answer(
                &trunks
                    .update_inbound(&said.sip_trunk_id, said.action.unwrap())
                    .unwrap(),
            ))
        }
        "ListSIPDispatchRule" => answer(&proto::ListSipDispatchRuleResponse {
            items: trunks.list_rules(Filter::default(), &[]),
        }),
        "CreateSIPDispatchRule" => {
            let said = proto::CreateSipDispatchRuleRequest::decode(body).unwrap();
            changes(answer(
                &trunks.create_rule(said.dispatch_rule.unwrap()).unwrap(),
            ))
        }
        "UpdateSIPDispatchRule" => {
            let said = proto::UpdateSipDispatchRuleRequest::decode(body).unwrap();
            changes(answer(
                &trunks
                    .update_rule(&said.sip_dispatch_rule_id, said.action.unwrap())
                    .unwrap(),
            ))
        }
        "GetParticipant" => {
            let mut statuses = state.statuses.lock().unwrap();
            if statuses.is_empty() {
                return refusal(r#"{"code":"not_found","msg":"it is not there"}"#);
            }
            let status = if statuses.len() > 1 {
                statuses.remove(0)
            } else {
                statuses[0]
            };
            let attributes = [(attribute::CALL_STATUS.to_owned(), status.to_owned())];
            answer(&proto::ParticipantInfo {
                sid: "PA_1".to_owned(),
                identity: "caller".to_owned(),
                kind: proto::participant_info::Kind::Sip as i32,
                attributes: attributes.into_iter().collect(),
                ..Default::default()
            })
        }
        "TransferSIPParticipant" => {
            state.asked.notify_one();
            state.moved.notified().await;
            let refused = *state.refuses.lock().unwrap();
            refused.map_or_else(|| answer(&()), refusal)
        }
        "RemoveParticipant" => answer(&()),
        other => panic!("{other}"),
    }
}

struct Stage {
    state: web::Data<Deployment>,
    api: Arc<ServerApi>,
    telephone: LiveKitTelephone,
    news: mpsc::Receiver<CallNews>,
}

fn key() -> ApiKey {
    ApiKey {
        key: "key".to_owned(),
        secret: "a secret of the deployment".to_owned(),
    }
}

fn stage(inline: bool) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let state = web::Data::new(Deployment {
        trunks: Trunks::open(folder.path()).unwrap(),
        inline: AtomicBool::new(inline),
        refuses: Mutex::default(),
        calls: Mutex::default(),
        statuses: Mutex::new(vec!["active"]),
        changes: AtomicUsize::new(0),
        asked: Notify::new(),
        moved: Notify::new(),
        _folder: folder,
    });
    let shared = state.clone();
    let server = HttpServer::new(move || {
        let app = App::new().app_data(shared.clone());
        app.route("/twirp/livekit.SIP/{method}", web::post().to(serve))
            .route("/twirp/livekit.RoomService/{method}", web::post().to(serve))
    });
    let server = server
        .workers(1)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
    let host = format!("http://{}", server.addrs()[0]);
    actix_web::rt::spawn(server.run());
    let (sender, news) = mpsc::channel(16);
    let transport = Transport::new(&Authorities::default()).unwrap();
    let api = Arc::new(ServerApi::new(&host.parse().unwrap(), key(), &transport));
    Stage {
        telephone: LiveKitTelephone::new(Arc::clone(&api), &key(), sender),
        state,
        api,
        news,
    }
}

fn call(address: &str, password: &str) -> NewCall {
    NewCall {
        room: "kitchen".to_owned(),
        identity: "caller".to_owned(),
        principal: Principal::Operator,
        name: "Caller".to_owned(),
        metadata: String::new(),
        from: PhoneNumber::parse("+12125550100").unwrap(),
        display_name: None,
        hides_caller: false,
        to: Callee::Number(PhoneNumber::parse("+12125550101").unwrap()),
        trunk: Trunk {
            gateway: Gateway::parse(address).unwrap(),
            transport: SipTransport::Tcp,
            login: Some(Login {
                username: "ann".to_owned(),
                password: Secret::new(password),
            }),
            private: true,
            from_domain: None,
            headers: Vec::new(),
            via: None,
            identity: CallerIdentity::default(),
        },
        alternatives: Vec::new(),
        attributes: Vec::new(),
        hides_numbers: false,
        ringing_timeout: Duration::from_secs(30),
        max_duration: Duration::from_hours(1),
        dtmf: String::new(),
        classify: None,
    }
}

/// A line of nobody's.
fn line() -> Line {
    let quota = Quota::new(Kind::Calls, 1_000, Share::NONE);
    Line {
        owner: Owner::Nobody,
        permit: quota.hold(&Party::Operator),
    }
}

#[actix_web::test]
async fn a_call_brings_its_own_trunk() {
    let stage = stage(true);
    let placed = stage
        .telephone
        .call(call("sip.example.org:5070", "one"), line())
        .await
        .unwrap();
    assert_eq!(
        (placed.participant_sid.as_str(), placed.sip_call_id.as_str()),
        ("PA_1", "SCL_1")
    );
    let said = stage.state.calls.lock().unwrap().remove(0);
    let trunk = said.trunk.unwrap();
    assert_eq!(
        (
            trunk.hostname.as_str(),
            trunk.auth_username.as_str(),
            trunk.auth_password.as_str()
        ),
        ("sip.example.org:5070", "ann", "one")
    );
    assert_eq!(trunk.transport, proto::SipTransport::Tcp as i32);
    assert_eq!(
        (said.sip_call_to.as_str(), said.sip_number.as_str()),
        ("+12125550101", "+12125550100")
    );
    assert!(!said.wait_until_answered);
    assert_eq!(stage.state.changes.load(Relaxed), 0);
}

#[actix_web::test]
async fn a_deployment_that_wants_stored_trunks_gets_one_for_each_address_credential_and_number() {
    let stage = stage(false);
    for (address, password) in [
        ("a.example", "one"),
        ("a.example", "two"),
        ("b.example", "one"),
        ("a.example", "one"),
    ] {
        stage
            .telephone
            .call(call(address, password), line())
            .await
            .unwrap();
    }
    let ids: Vec<String> = stage
        .state
        .calls
        .lock()
        .unwrap()
        .iter()
        .map(|call| call.sip_trunk_id.clone())
        .collect();
    assert_eq!(ids[0], ids[3]);
    assert_ne!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2]);
    let trunks = stage.state.trunks.list_outbound(Filter::default(), &[]);
    assert_eq!(trunks.len(), 3);
    let second = trunks
        .iter()
        .find(|trunk| trunk.sip_trunk_id == ids[1])
        .unwrap();
    assert_eq!(
        (second.address.as_str(), second.auth_password.as_str()),
        ("a.example", "two")
    );
}

#[actix_web::test]
async fn a_trunk_that_is_wrong_is_refused_and_the_next_call_brings_its_own() {
    let stage = stage(true);
    let wrong = r#"{"code":"invalid_argument","msg":"trunk hostname should be a domain name or IP, not SIP URI"}"#;
    *stage.state.refuses.lock().unwrap() = Some(wrong);
    let error = stage
        .telephone
        .call(call("a.example", "one"), line())
        .await
        .unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Refused);
    *stage.state.refuses.lock().unwrap() = None;
    stage
        .telephone
        .call(call("b.example", "one"), line())
        .await
        .unwrap();
    let said = stage.state.calls.lock().unwrap().remove(0);
    assert_eq!(said.trunk.unwrap().hostname, "b.example");
    assert_eq!(stage.state.changes.load(Relaxed), 0, "one was stored");
}

#[actix_web::test]
async fn a_deployment_keeps_only_so_many_trunks_of_ours_and_all_of_others() {
    let stage = stage(false);
    let trunks = &stage.state.trunks;
    let others = |name: String| proto::SipOutboundTrunkInfo {
        name,
        address: "other.example".to_owned(),
        numbers: vec!["+12125550100".to_owned()],
        ..Default::default()
    };
    trunks
        .create_outbound(others("somebody's".to_owned()))
        .unwrap();
    let telephone = &stage.telephone;
    telephone
        .call(call("a.example", "one"), line())
        .await
        .unwrap();
    for index in 0..250 {
        let name = format!("vivavoce-{index}");
        trunks.create_outbound(others(name)).unwrap();
    }
    // There are 251 of ours; each new one removes some, the one that is used here and the others' never.
    let mut ours = 0;
    for index in 0..20 {
        let password = format!("new {index}");
        telephone
            .call(call("a.example", &password), line())
            .await
            .unwrap();
        telephone
            .call(call("a.example", "one"), line())
            .await
            .unwrap();
        let all = trunks.list_outbound(Filter::default(), &[]);
        assert!(all.iter().any(|trunk| trunk.name == "somebody's"));
        ours = all.len() - 1;
    }
    assert_eq!(ours, 200);
    let calls = stage.state.calls.lock().unwrap();
    let first = &calls[0].sip_trunk_id;
    let again = calls.iter().filter(|call| call.sip_trunk_id == *first);
    assert_eq!(again.count(), 21, "it was removed although it was used");
}

#[actix_web::test]
async fn what_the_other_side_answers_is_told_without_numbers() {
    let stage = stage(true);
    let busy = r#"{"code":"resource_exhausted","msg":"sip status 486: Busy Here","meta":{"sip_status_code":"486"}}"#;
    *stage.state.refuses.lock().unwrap() = Some(busy);
    let error = stage
        .telephone
        .call(call("a.example", "one"), line())
        .await
        .unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Rejected(486));
    let none = r#"{"code":"unavailable","msg":"no response from servers"}"#;
    *stage.state.refuses.lock().unwrap() = Some(none);
    let error = stage
        .telephone
        .call(call("a.example", "one"), line())
        .await
        .unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Full);
    *stage.state.refuses.lock().unwrap() =
        Some(r#"{"code":"internal","msg":"no route to +12125550101 with secret-word"}"#);
    let error = stage
        .telephone
        .call(call("a.example", "secret-word"), line())
        .await
        .unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Unavailable);
    assert!(
        !error.message.contains("5550101") && !error.message.contains("secret-word"),
        "{error}"
    );
}

#[actix_web::test]
async fn a_private_gateway_is_refused_unless_it_is_meant() {
    let stage = stage(true);
    let mut call = call("127.0.0.1:5070", "one");
    call.trunk.private = false;
    let error = stage.telephone.call(call, line()).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Refused);
    assert!(stage.state.calls.lock().unwrap().is_empty());
}

/// The participant of the call has left.
fn left(reason: proto::DisconnectReason) -> WebhookEvent {
    WebhookEvent {
        event: "participant_left".to_owned(),
        participant: Some(proto::ParticipantInfo {
            sid: "PA_1".to_owned(),
            kind: proto::participant_info::Kind::Sip as i32,
            disconnect_reason: reason as i32,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn caller() -> CallOf {
    CallOf {
        room: "kitchen".to_owned(),
        identity: "caller".to_owned(),
        sip_call_id: String::new(),
    }
}

#[actix_web::test]
async fn a_call_that_was_answered_a_moment_ago_was_no_longer_cancelled() {
    use proto::DisconnectReason::{ClientInitiated, ParticipantRemoved};
    for (hangs_up, reason, status, cause) in [
        (true, ParticipantRemoved, None, HangupCause::Local),
        (
            false,
            ParticipantRemoved,
            Some("active"),
            HangupCause::Local,
        ),
        (false, ClientInitiated, Some("hangup"), HangupCause::Remote),
        (false, ClientInitiated, None, HangupCause::Failed),
    ] {
        let mut stage = stage(true);
        let placed = call("a.example", "one");
        stage.telephone.call(placed, line()).await.unwrap();
        assert_eq!(stage.news.recv().await.unwrap().status, CallStatus::Dialing);
        if hangs_up {
            stage.telephone.hang_up(&caller()).await.unwrap();
        }
        let mut left = left(reason);
        let attributes =
            status.map(|status| (attribute::CALL_STATUS.to_owned(), status.to_owned()));
        left.participant.as_mut().unwrap().attributes = attributes.into_iter().collect();
        stage.telephone.happened(&left);
        let last = stage.news.recv().await.unwrap();
        assert_eq!(last.status, CallStatus::Hangup(cause), "{status:?}");
    }
}

/// A telephone that was moved hangs up, which may be told before the transfer is answered.
#[actix_web::test]
async fn a_telephone_that_goes_while_it_is_moved_has_gone_as_the_transfer_ends() {
    use proto::DisconnectReason::{ClientInitiated, RoomDeleted};
    let refused = Some(r#"{"code":"unavailable","msg":"the telephone declines"}"#);
    let canceled = Some(r#"{"code":"canceled","msg":"there is no call any more"}"#);
    for (refuses, reason, moved, cause) in [
        (None, ClientInitiated, true, HangupCause::Transferred),
        (refused, ClientInitiated, false, HangupCause::Remote),
        (canceled, ClientInitiated, true, HangupCause::Transferred),
        (canceled, RoomDeleted, false, HangupCause::Local),
        // Which is no refusal for the deployment.
        (None, RoomDeleted, true, HangupCause::Local),
    ] {
        let mut stage = stage(true);
        let placed = call("a.example", "one");
        stage.telephone.call(placed, line()).await.unwrap();
        while stage.news.recv().await.unwrap().status != CallStatus::Active {}
        *stage.state.refuses.lock().unwrap() = refuses;
        let transfer = NewTransfer {
            call: caller(),
            to: TransferTarget::Uri("tel:+12125550102".to_owned()),
            ringing_timeout: Duration::from_secs(30),
        };
        let transferred = stage.telephone.transfer(transfer, oneshot::channel().0);
        let goes = async {
            stage.state.asked.notified().await;
            let left = left(reason);
            stage.telephone.happened(&left);
            // Long enough for whoever would tell it at once.
            let early = tokio::time::timeout(Duration::from_millis(50), stage.news.recv());
            assert!(
                early.await.is_err(),
                "told before the transfer was answered"
            );
            stage.state.statuses.lock().unwrap().clear();
            stage.state.moved.notify_one();
        };
        let (outcome, ()) = tokio::join!(transferred, goes);
        assert_eq!(outcome.is_ok(), moved, "{refuses:?}");
        let last = stage.news.recv().await.unwrap();
        assert_eq!(last.status, CallStatus::Hangup(cause));
    }
}

#[actix_web::test]
async fn a_call_is_followed_until_it_is_over() {
    let mut stage = stage(true);
    *stage.state.statuses.lock().unwrap() = vec!["ringing", "active"];
    stage
        .telephone
        .call(call("a.example", "one"), line())
        .await
        .unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(stage.news.recv().await.unwrap().status);
    }
    assert_eq!(
        seen,
        [CallStatus::Dialing, CallStatus::Ringing, CallStatus::Active]
    );
    let left = left(proto::DisconnectReason::RoomDeleted);
    stage.telephone.happened(&left);
    let last = stage.news.recv().await.unwrap();
    assert_eq!(last.status, CallStatus::Hangup(HangupCause::Local));
    assert_eq!(last.sip_call_id, "SCL_1");
}

fn inbound(prefix: &str, addresses: &str) -> Option<Inbound> {
    let environment = [
        ("SIP_ALLOWED_ADDRESSES".to_owned(), addresses.to_owned()),
        ("SIP_ROOM_PREFIX".to_owned(), prefix.to_owned()),
    ];
    let config = Config::from_sources(&[], &environment.into(), None).unwrap();
    Inbound::from_settings(&config.settings.sip)
}

#[actix_web::test]
async fn who_may_call_in_is_set_up_once_and_changed_when_the_settings_change() {
    let stage = stage(true);
    let settle = async |prefix: &str, addresses: &str| {
        let inbound = inbound(prefix, addresses).unwrap();
        provision(Arc::clone(&stage.api), inbound).await;
        let trunks = stage.state.trunks.list_inbound(Filter::default(), &[]);
        let rules = stage.state.trunks.list_rules(Filter::default(), &[]);
        assert_eq!((trunks.len(), rules.len()), (1, 1));
        (
            trunks[0].clone(),
            rules[0].clone(),
            stage.state.changes.load(Relaxed),
        )
    };
    let (trunk, rule, changes) = settle("call-", "192.0.2.0/24").await;
    assert_eq!(trunk.allowed_addresses, ["192.0.2.0/24"]);
    assert_eq!(
        trunk.include_headers(),
        proto::SipHeaderOptions::SipAllHeaders
    );
    assert_eq!(rule.trunk_ids, [trunk.sip_trunk_id.as_str()]);
    let (_, _, again) = settle("call-", "192.0.2.0/24").await;
    assert_eq!(again, changes, "nothing was touched");
    let (changed_trunk, changed_rule, _) = settle("room-", "198.51.100.7/32").await;
    assert_eq!(changed_trunk.sip_trunk_id, trunk.sip_trunk_id);
    assert_eq!(changed_trunk.allowed_addresses, ["198.51.100.7/32"]);
    assert_eq!(changed_rule.sip_dispatch_rule_id, rule.sip_dispatch_rule_id);
    let rule = changed_rule.rule.unwrap().rule.unwrap();
    let callee = proto::SipDispatchRuleCallee {
        room_prefix: "room-".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        rule,
        proto::sip_dispatch_rule::Rule::DispatchRuleCallee(callee)
    );
    assert_eq!(inbound("x-", ""), None);
    // Which the deployment adds.
    assert_eq!(
        inbound("room_", "192.0.2.0/24"),
        inbound("room", "192.0.2.0/24")
    );
}
