//! Whose a call is, and who is in its room: strangers, tenants and tokens of earlier times, with real telephones.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::auth::{HOUSE, OF_A, OF_B, tenants, with_secrets};
use crate::harness::{Server, client, eventually};
use crate::rooms::client::{Client, Kind};
use crate::rooms::events::Inbox;
use crate::rooms::{KEY, SECRET, ask, call, server_elsewhere, token};
use crate::session::client::Session;
use crate::telephone::Exchange;
use crate::telephone::rig::sipp::{Run, Scenario, Sipp};
use crate::telephone::rig::{PATIENCE, baresip::Baresip};

/// The number that is called, and its room.
const CALLED: &str = "+14155550199";
const LOBBY: &str = "call-+14155550199";

/// An exchange with the tenants `a` and `b`, whose socket is public and whose key the tests have.
fn exchange(more: &[(&str, &str)]) -> Exchange {
    let tenants = tenants();
    let mut settings = vec![
        ("AUTH_REQUIRED", "true"),
        ("AUTH_SOCKET", "public"),
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", tenants.as_str()),
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
    ];
    settings.extend_from_slice(more);
    Exchange::with(&settings)
}

fn of_a() -> String {
    json!({"a": ["+1 (415) 555-0199"]}).to_string()
}

/// A session in a room that hears and speaks there.
fn speaks(room: &str, identity: &str) -> Value {
    json!({
        "type": "config", "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
        "rtc": {"room_name": room, "service_participant_identity": identity, "delete_room": "always"},
    })
}

async fn enters(server: &Server, token: Option<&str>, room: &str, identity: &str) -> Session {
    let mut session = Session::connect_as(server, token).await;
    session.send(speaks(room, identity)).await;
    session.next("ready").await;
    session
}

async fn is_refused(server: &Server, token: Option<&str>, room: &str) {
    let mut session = Session::connect_as(server, token).await;
    session.send(speaks(room, "refused")).await;
    session.refused("room_access_denied").await;
    session.close().await;
}

/// The calls that whoever has this token sees.
async fn calls(server: &Server, token: &str) -> Vec<Value> {
    let (_, answer) = ask(server, Method::GET, "/sessions", Some(token), &Value::Null).await;
    answer["calls"].as_array().unwrap().clone()
}

/// Waits until so many calls are active; gives them, oldest first.
async fn active(server: &Server, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut calls = calls(server, HOUSE).await;
        calls.retain(|call| call["status"] == "active");
        if calls.len() == count {
            return calls;
        }
        assert!(Instant::now() < deadline, "{calls:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the server shows of a room to whoever has this token.
async fn shown(server: &Server, room: &str, token: &str) -> (u16, Value) {
    let path = format!("/rtc/rooms/{}", room.replace('+', "%2B"));
    ask(server, Method::GET, &path, Some(token), &Value::Null).await
}

fn metadata(room: &Value) -> Value {
    serde_json::from_str(room["metadata"].as_str().unwrap()).unwrap()
}

/// A token of `POST /rtc/token` for a room, or the status of the refusal.
async fn admitted(server: &Server, room: &str, token: &str) -> Result<String, u16> {
    let wish = json!({"room_name": room, "participant_name": "x", "participant_identity": "x"});
    let (status, answer) = ask(server, Method::POST, "/rtc/token", Some(token), &wish).await;
    let issued = answer["token"].as_str().map(str::to_owned);
    issued.ok_or(status)
}

/// What the door of the rooms says to a token.
async fn validated(server: &Server, token: &str) -> u16 {
    let url = format!("{}/rtc/validate?access_token={token}", server.url);
    client().get(url).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn whoever_waits_without_a_right_is_gone_before_the_caller_is_in_the_room() {
    let numbers = of_a();
    let exchange = exchange(&[("SIP_TENANT_NUMBERS", &numbers)]);
    let server = &exchange.server;
    let mut stranger = enters(server, None, LOBBY, "stranger").await;
    let mut telephone = Baresip::start().await;
    let address = exchange.address();
    telephone.dial(&format!("sip:{CALLED}@{address}")).await;
    assert_eq!(stranger.closed().await, 1000);
    let gone = stranger.next("provider_event").await;
    assert_eq!(
        gone["message"], "the room belongs to somebody else now",
        "{gone}"
    );
    telephone.next("CALL_ESTABLISHED").await;
    assert_eq!(active(server, 1).await[0]["room_name"], LOBBY);
    // It has neither seen the caller nor, leaving, deleted the room.
    for kind in ["sip_call", "participant_connected", "track_subscribed"] {
        let events = stranger.events_of(kind);
        assert!(events.is_empty(), "{events:?}");
    }
    let (status, room) = shown(server, LOBBY, OF_A).await;
    assert_eq!((status, metadata(&room)), (200, json!({"auth_id": "a"})));
    // The call is a's, for everybody.
    assert_eq!(
        (
            calls(server, OF_A).await.len(),
            calls(server, OF_B).await.len()
        ),
        (1, 0)
    );
    is_refused(server, None, LOBBY).await;
    is_refused(server, Some(OF_B), LOBBY).await;
    assert_eq!(admitted(server, LOBBY, OF_B).await, Err(403));
    let mut agent = enters(server, Some(OF_A), LOBBY, "agent").await;
    assert_eq!(agent.next("sip_call").await["status"], "active");
    agent.send(json!({"type": "hangup"})).await;
    telephone.next("CALL_CLOSED").await;
    agent.close().await;
}

#[tokio::test]
async fn without_a_token_nobody_is_put_out_of_a_room() {
    let exchange = exchange(&[]);
    let server = &exchange.server;
    let mut ann = enters(server, None, "free", "ann").await;
    let mut thief = Session::connect_as(server, None).await;
    thief.send(speaks("free", "ann")).await;
    thief.refused("room_access_denied").await;
    // Under another name it is let in, and leaves the room to whoever is there.
    thief.send(speaks("free", "thief")).await;
    thief.next("ready").await;
    thief.close().await;
    ann.next("participant_disconnected").await;
    assert_eq!(shown(server, "free", HOUSE).await.0, 200);
    assert!(ann.events_of("error").is_empty());
    ann.close().await;
    // Once nobody else is in it, it is deleted.
    let deadline = Instant::now() + Duration::from_secs(10);
    while shown(server, "free", HOUSE).await.0 != 404 {
        assert!(Instant::now() < deadline, "the room is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn without_a_token_nobody_enters_a_call_that_has_no_hook() {
    let exchange = exchange(&[]);
    let server = &exchange.server;
    // Whoever belongs to no tenant may wait where the operator's call comes.
    let operator = enters(server, Some(HOUSE), LOBBY, "operator").await;
    let scenario = Scenario::is_answered("").ended();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    let call = active(server, 1).await.remove(0);
    is_refused(server, None, LOBBY).await;
    for tenant in [OF_A, OF_B] {
        is_refused(server, Some(tenant), LOBBY).await;
        assert_eq!(admitted(server, LOBBY, tenant).await, Err(403));
        assert_eq!(shown(server, LOBBY, tenant).await.0, 404);
        assert_eq!(calls(server, tenant).await, [] as [Value; 0]);
    }
    let (status, room) = shown(server, LOBBY, HOUSE).await;
    assert_eq!((status, metadata(&room)), (200, json!({"operator": true})));
    assert_eq!(
        active(server, 1).await[0]["sip_call_id"],
        call["sip_call_id"]
    );
    operator.send(json!({"type": "hangup"})).await;
    telephone.passed().await;
    operator.close().await;
}

#[tokio::test]
async fn a_tenant_who_claims_a_calls_room_first_loses_it_to_the_callers_owner() {
    let numbers = of_a();
    let exchange = exchange(&[("SIP_TENANT_NUMBERS", &numbers)]);
    let server = &exchange.server;
    let issued = admitted(server, LOBBY, OF_B).await.unwrap();
    let url = server.url.replacen("http", "ws", 1);
    let mut spy = Client::start(Kind::Python, &url, "x", &issued, &json!({}));
    spy.connected().await;
    let of_b = enters(server, Some(OF_B), LOBBY, "of-b").await;
    let (_, room) = shown(server, LOBBY, OF_B).await;
    assert_eq!(metadata(&room), json!({"auth_id": "b"}));
    let scenario = Scenario::is_answered("").ended();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    spy.wait("disconnected", &json!({})).await;
    let mut of_b = of_b;
    assert_eq!(of_b.closed().await, 1000);
    let call = active(server, 1).await.remove(0);
    let caller = json!({"identity": call["participant_identity"]});
    assert_eq!(spy.count("participant_connected", &caller), 0);
    assert_eq!(of_b.events_of("sip_call").len(), 0);
    assert_eq!(validated(server, &issued).await, 403);
    assert_eq!(admitted(server, LOBBY, OF_B).await, Err(403));
    let (status, room) = shown(server, LOBBY, OF_A).await;
    assert_eq!((status, metadata(&room)), (200, json!({"auth_id": "a"})));
    assert_eq!(room["participants"].as_array().unwrap().len(), 1, "{room}");
    let own = admitted(server, LOBBY, OF_A).await.unwrap();
    assert_eq!(validated(server, &own).await, 200);
    exchange_hangs_up(server, &call).await;
    telephone.passed().await;
}

#[tokio::test]
async fn who_calls_a_name_takes_no_room_from_whoever_has_it() {
    let exchange = exchange(&[]);
    let server = &exchange.server;
    let of_a = enters(server, Some(OF_A), "call-kitchen", "of-a").await;
    let scenario = Scenario::is_answered("").ended();
    let mut telephone = Sipp::call(&scenario, "kitchen", &exchange.address());
    let call = active(server, 1).await.remove(0);
    let id = call["sip_call_id"].as_str().unwrap();
    assert_eq!(call["room_name"], format!("call-kitchen_{id}"));
    // Whoever is in the room of that name stays there, and is told of no caller.
    let (status, room) = shown(server, "call-kitchen", OF_A).await;
    assert_eq!((status, metadata(&room)), (200, json!({"auth_id": "a"})));
    assert_eq!(room["participants"].as_array().unwrap().len(), 1, "{room}");
    assert!(of_a.events_of("sip_call").is_empty());
    exchange_hangs_up(server, &call).await;
    telephone.passed().await;
    of_a.close().await;
}

#[tokio::test]
async fn a_call_to_a_number_of_nobodys_puts_no_one_out_of_a_tenants_room() {
    let numbers = json!({"b": ["200"]}).to_string();
    let exchange = exchange(&[("SIP_TENANT_NUMBERS", &numbers)]);
    let server = &exchange.server;
    let agent = enters(server, Some(OF_A), LOBBY, "agent").await;
    let scenario = Scenario::is_answered("").ended();
    let mut telephone = Sipp::call(&scenario, CALLED, &exchange.address());
    let call = active(server, 1).await.remove(0);
    let id = call["sip_call_id"].as_str().unwrap();
    assert_eq!(call["room_name"], format!("{LOBBY}_{id}"));
    // The call is the operator's, and the room with all who are in it the tenant's still.
    assert_eq!(calls(server, OF_A).await, [] as [Value; 0]);
    let (status, room) = shown(server, LOBBY, OF_A).await;
    assert_eq!((status, metadata(&room)), (200, json!({"auth_id": "a"})));
    assert_eq!(room["participants"].as_array().unwrap().len(), 1, "{room}");
    assert!(agent.events_of("sip_call").is_empty());
    exchange_hangs_up(server, &call).await;
    telephone.passed().await;
    agent.close().await;
}

async fn exchange_hangs_up(server: &Server, call: &Value) {
    let body = json!({
        "room_name": call["room_name"], "participant_identity": call["participant_identity"],
    });
    let path = "/rtc/participant";
    let (status, answer) = ask(server, Method::DELETE, path, Some(HOUSE), &body).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_further_call_to_a_number_has_a_room_of_its_own_and_everybody_is_told_its_name() {
    let exchange = exchange(&[]);
    let server = &exchange.server;
    let scenario = Scenario::is_answered("").ended();
    let run = Run {
        calls: 2,
        ..Run::default()
    };
    let mut telephones = Sipp::call_with(&scenario, CALLED, &exchange.address(), run);
    let calls = active(server, 2).await;
    let mut names: Vec<String> = calls
        .iter()
        .map(|call| call["room_name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names[0], LOBBY);
    let further = calls
        .iter()
        .find(|call| call["room_name"] != LOBBY)
        .unwrap();
    let id = further["sip_call_id"].as_str().unwrap();
    assert_eq!(names[1], format!("{LOBBY}_{id}"));
    for call in &calls {
        exchange_hangs_up(server, call).await;
    }
    telephones.passed().await;
}

#[tokio::test]
async fn a_token_of_an_earlier_room_opens_no_room_of_another_tenant() {
    let server = with_secrets(&[
        ("RTC_MODE", "embedded"),
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
    ]);
    let earlier = admitted(&server, "kitchen", OF_B).await.unwrap();
    assert_eq!(validated(&server, &earlier).await, 200);
    let grants = json!({"roomCreate": true});
    let (status, answer) = call(&server, "DeleteRoom", &grants, &json!({"room": "kitchen"})).await;
    assert_eq!(status, 200, "{answer}");
    let own = admitted(&server, "kitchen", OF_A).await.unwrap();
    assert_eq!(validated(&server, &earlier).await, 403);
    assert_eq!(validated(&server, &own).await, 200);
    // Nor does it go on with anybody's session; the operator's, and those of others with the key pair, stay good.
    let url = format!(
        "{}/rtc/validate?reconnect=1&access_token={earlier}",
        server.url
    );
    assert_eq!(client().get(url).send().await.unwrap().status(), 403);
    let grants = json!({"roomJoin": true, "room": "kitchen"});
    let of_others = token(600, &grants, &json!({"sub": "other"}));
    let operators = admitted(&server, "kitchen", HOUSE).await.unwrap();
    for token in [of_others, operators] {
        assert_eq!(validated(&server, &token).await, 200);
    }
}

/// A config that records.
fn records(name: &str) -> Value {
    json!({
        "type": "config", "stream_id": name, "recording": true,
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
    })
}

#[tokio::test]
async fn without_a_token_nobody_records_unless_that_is_meant_to_be() {
    let server = with_secrets(&[("AUTH_SOCKET", "public")]);
    let mut stranger = Session::connect_as(&server, None).await;
    stranger.send(records("of-a-stranger")).await;
    let refused = stranger.refused("recording_unavailable").await;
    let message = refused.text("message");
    assert!(message.contains("auth.public_recordings"), "{message}");
    stranger.close().await;
    let mut tenants = Session::connect_as(&server, Some(OF_A)).await;
    tenants.send(records("of-a")).await;
    tenants.next("ready").await;
    tenants.close().await;
}

#[tokio::test]
async fn a_public_recording_is_fetched_by_every_authenticated_caller_and_removed_by_none_but_the_operator()
 {
    let server = with_secrets(&[
        ("AUTH_SOCKET", "public"),
        ("AUTH_PUBLIC_RECORDINGS", "true"),
    ]);
    for (token, name) in [(None, "of-a-stranger"), (Some(HOUSE), "of-the-house")] {
        let mut session = Session::connect_as(&server, token).await;
        session.send(records(name)).await;
        session.next("ready").await;
        session.close().await;
        let file = server.data.path().join("recordings").join(name);
        let file = file.join("metadata.json");
        eventually("it is stored", || file.exists()).await;
    }
    let status = async |method: Method, path: &str, token: &str| {
        let request = client().request(method, format!("{}{path}", server.url));
        request.bearer_auth(token).send().await.unwrap().status()
    };
    for (token, [read, other, removed]) in [
        (OF_A, [200, 404, 404]),
        (OF_B, [200, 404, 404]),
        ("wrong", [401; 3]),
    ] {
        let get = Method::GET;
        assert_eq!(
            status(get.clone(), "/recording/of-a-stranger", token).await,
            read
        );
        let transcript = "/recording/of-a-stranger/transcript";
        assert_eq!(status(get.clone(), transcript, token).await, read);
        assert_eq!(status(get, "/recording/of-the-house", token).await, other);
        let path = "/recording/of-a-stranger";
        assert_eq!(status(Method::DELETE, path, token).await, removed);
    }
    let path = "/recordings";
    let (_, page) = ask(&server, Method::GET, path, Some(OF_A), &Value::Null).await;
    assert_eq!(page["recordings"], json!([]), "others' names are told");
    let path = "/recording/of-a-stranger";
    assert_eq!(status(Method::DELETE, path, HOUSE).await, 200);
}

/// A server that posts there what happens in its rooms, and is asked for no token.
fn deployment(events: &str) -> Exchange {
    Exchange::with(&[
        ("RTC_API_KEY", KEY),
        ("RTC_API_SECRET", SECRET),
        ("RTC_WEBHOOK_URLS", events),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
    ])
}

/// A server with the tenants `a` and `b` whose rooms are those of a deployment; the number is a's.
fn server_of(deployment: &Exchange, more: &[(&str, &str)]) -> Server {
    let (secrets, numbers) = (tenants(), of_a());
    let mut settings = vec![
        ("AUTH_REQUIRED", "true"),
        ("AUTH_SOCKET", "public"),
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", secrets.as_str()),
        ("SIP_TENANT_NUMBERS", numbers.as_str()),
        ("NULL_ENABLED", "true"),
    ];
    settings.extend_from_slice(more);
    server_elsewhere(&deployment.server.url.replacen("http", "ws", 1), &settings)
}

/// Posts what happens in the rooms of a deployment to a server of ours, as the deployment would if it had known its address.
fn relay(inbox: Inbox, server: &Server) {
    let url = format!("{}/rtc/webhook", server.url);
    actix_web::rt::spawn(async move {
        let mut posted = 0;
        loop {
            for event in inbox.taken().into_iter().skip(posted) {
                posted += 1;
                let request = client().post(&url).body(event.body);
                let request = request.header("authorization", event.authorization);
                let request = request.header("content-type", "application/webhook+json");
                assert_eq!(request.send().await.unwrap().status(), 200);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
}

#[actix_web::test]
async fn in_a_deployment_whoever_has_no_right_is_removed_when_the_caller_has_joined() {
    let inbox = Inbox::default();
    let url = inbox.open();
    let deployment = deployment(&url);
    let server = server_of(&deployment, &[]);
    relay(inbox.clone(), &server);
    for claimed in [false, true] {
        let waits = if claimed { Some(OF_B) } else { None };
        let mut waiting = enters(&server, waits, LOBBY, "waiting").await;
        let scenario = Scenario::is_answered("").ended();
        let mut telephone = Sipp::call(&scenario, CALLED, &deployment.address());
        let joined = waiting.next("participant_connected").await.at;
        assert_eq!(waiting.closed().await, 1000);
        let failed = waiting.next("provider_event").await;
        eprintln!(
            "removed from a deployment's room after {:?} (claimed before: {claimed})",
            failed.at - joined
        );
        let (status, room) = shown(&server, LOBBY, OF_A).await;
        assert_eq!((status, metadata(&room)), (200, json!({"auth_id": "a"})));
        is_refused(&server, None, LOBBY).await;
        assert_eq!(admitted(&server, LOBBY, OF_B).await, Err(403));
        let body = json!({
            "room_name": LOBBY, "participant_identity": room["participants"][0]["identity"],
        });
        let path = "/rtc/participant";
        let (status, answer) = ask(&server, Method::DELETE, path, Some(OF_A), &body).await;
        assert_eq!(status, 200, "{answer}");
        telephone.passed().await;
        let grants = json!({"roomCreate": true});
        let room = json!({"room": LOBBY});
        call(&deployment.server, "DeleteRoom", &grants, &room).await;
    }
}

#[actix_web::test]
async fn in_a_deployment_no_call_of_another_owner_comes_where_one_lasts() {
    let inbox = Inbox::default();
    let url = inbox.open();
    let deployment = deployment(&url);
    let hook = |of: &str| json!({"host": format!("{of}.example"), "url": "https://hooks.example/", "auth_id": of});
    let hooks = json!([hook("a"), hook("b")]).to_string();
    // The number is nobody's: whose a call is, the hook of its host says.
    let others = json!({"b": ["200"]}).to_string();
    let server = server_of(
        &deployment,
        &[("SIP_HOOKS_JSON", &hooks), ("SIP_TENANT_NUMBERS", &others)],
    );
    relay(inbox.clone(), &server);
    let scenario = Scenario::is_answered("X-To-IP: a.example\n").ended();
    let mut first = Sipp::call(&scenario, CALLED, &deployment.address());
    let owned = async || {
        let (status, room) = shown(&server, LOBBY, OF_A).await;
        (status == 200).then_some(room)
    };
    let deadline = Instant::now() + PATIENCE;
    let room = loop {
        if let Some(room) = owned().await {
            break room;
        }
        assert!(Instant::now() < deadline, "the room is not a's");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let caller = room["participants"][0]["identity"].clone();
    // To the same number, and a host of b's.
    let scenario = Scenario::is_answered("X-To-IP: b.example\n").ended();
    let mut second = Sipp::call(&scenario, CALLED, &deployment.address());
    second.passed().await;
    let room = owned().await.expect("the room is a's still");
    let present = room["participants"].as_array().unwrap();
    assert_eq!(present.len(), 1, "{room}");
    assert_eq!(present[0]["identity"], caller);
    let body = json!({"room_name": LOBBY, "participant_identity": caller});
    let path = "/rtc/participant";
    let (status, answer) = ask(&server, Method::DELETE, path, Some(OF_A), &body).await;
    assert_eq!(status, 200, "{answer}");
    first.passed().await;
}

#[tokio::test]
async fn the_socket_needs_a_token_and_start_says_what_a_public_one_opens() {
    let server = with_secrets(&[]);
    let answer = crate::session::client::handshake(&server, &[]).await;
    assert_eq!(answer.status(), 401);
    let tenants = tenants();
    let mut public = Server::start_logged(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_SOCKET", "public"),
        ("AUTH_API_SECRETS_JSON", &tenants),
    ]);
    let answer = crate::session::client::handshake(&public, &[]).await;
    assert_eq!(answer.status(), 101);
    // The server would wait for its socket.
    drop(answer);
    let log = public.log();
    assert!(
        log.contains("auth.socket is public: whoever reaches /ws can"),
        "{log}"
    );
}
