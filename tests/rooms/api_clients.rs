//! LiveKit's own clients of its server API, unmodified: for Python and Node as programs, for Rust as the crate. All send
//! the same requests and must get the same results.

use livekit_api::services::egress::{EgressClient, EgressListFilter, EgressListOptions};
use livekit_api::services::room::{
    CreateRoomOptions, RoomClient, SendDataOptions, UpdateParticipantOptions,
};
use livekit_api::services::sip::{
    CreateSIPDispatchRuleOptions, CreateSIPOutboundTrunkOptions, CreateSIPParticipantOptions,
    ListSIPDispatchRuleFilter, ListSIPOutboundTrunkFilter, SIPClient,
    TransferSIPParticipantOptions,
};
use livekit_api::services::{ServerError, ServiceError};
use livekit_protocol as proto;
use livekit_protocol::sip_dispatch_rule::Rule;
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Client, Kind};
use super::{KEY, SECRET, join, keyed_server, token};
use crate::harness::Server;

/// One of the clients.
pub enum Api {
    Program(Box<Client>),
    Crate(Box<Crate>),
}

pub struct Crate {
    rooms: RoomClient,
    egress: EgressClient,
    sip: SIPClient,
}

/// The three.
pub const NAMES: [&str; 3] = ["Python", "Node", "Rust"];

impl Api {
    pub async fn open(name: &str, server: &Server, options: &Value) -> Self {
        let text = |field: &str| options[field].as_str().unwrap_or_default();
        let program = async |script, kind| {
            let arguments = [server.url.as_str(), "", &options.to_string()];
            let mut program = Client::run(script, kind, name, arguments);
            program.connected().await;
            Self::Program(Box::new(program))
        };
        match name {
            "Python" => program("api_python.py", Kind::Python).await,
            "Node" => program("api_node.mjs", Kind::Node).await,
            _ if options["token"].is_string() => Self::Crate(Box::new(Crate {
                rooms: RoomClient::with_token(&server.url, text("token")),
                egress: EgressClient::with_token(&server.url, text("token")),
                sip: SIPClient::with_token(&server.url, text("token")),
            })),
            _ => Self::Crate(Box::new(Crate {
                rooms: RoomClient::with_api_key(&server.url, text("key"), text("secret")),
                egress: EgressClient::with_api_key(&server.url, text("key"), text("secret")),
                sip: SIPClient::with_api_key(&server.url, text("key"), text("secret")),
            })),
        }
    }

    /// What a call brings as JSON, or the code of its error.
    pub async fn call(&mut self, name: &str, mut call: Value) -> Result<Value, String> {
        let shown = format!("{name} {call}");
        match self {
            Self::Program(program) => {
                call["do"] = name.into();
                let answer = program.command(call).await;
                match answer["code"].as_str() {
                    None => Ok(answer["answer"].clone()),
                    Some(code) => {
                        // The Rust client does not tell it.
                        assert_eq!(answer["status"], status_of(code), "{shown}");
                        Err(code.to_owned())
                    }
                }
            }
            Self::Crate(client) => match client.call(name, &call).await {
                Ok(answer) => Ok(answer),
                Err(ServiceError::Twirp(ServerError::Twirp(error))) => Err(error.code),
                Err(error) => panic!("{shown}: {error}"),
            },
        }
    }
}

fn status_of(code: &str) -> u16 {
    match code {
        "unauthenticated" => 401,
        "permission_denied" => 403,
        "canceled" | "deadline_exceeded" => 408,
        "failed_precondition" => 412,
        "resource_exhausted" => 429,
        "not_found" => 404,
        "unimplemented" => 501,
        _ => 400,
    }
}

fn shown<T: Serialize>(answer: T) -> Value {
    serde_json::to_value(answer).unwrap()
}

impl Crate {
    async fn call(&self, name: &str, call: &Value) -> Result<Value, ServiceError> {
        let text = |field: &str| call[field].as_str().unwrap_or_default();
        let texts = |field: &str| -> Vec<String> {
            serde_json::from_value(call[field].clone()).unwrap_or_default()
        };
        let (rooms, room, identity) = (&self.rooms, text("room"), text("identity"));
        Ok(match name {
            "create" => {
                let options = CreateRoomOptions {
                    metadata: text("metadata").to_owned(),
                    empty_timeout: u32::try_from(call["empty_timeout"].as_u64().unwrap_or(0))
                        .unwrap(),
                    ..Default::default()
                };
                shown(rooms.create_room(room, options).await?)
            }
            "list" => json!({"rooms": shown(rooms.list_rooms(texts("names")).await?)}),
            "delete" => shown(rooms.delete_room(room).await?),
            "room metadata" => shown(rooms.update_room_metadata(room, text("metadata")).await?),
            "participants" => {
                json!({"participants": shown(rooms.list_participants(room).await?)})
            }
            "participant" => shown(rooms.get_participant(room, identity).await?),
            "remove" => shown(rooms.remove_participant(room, identity).await?),
            "forward" => {
                let forwarded = rooms.forward_participant(room, identity, text("to"));
                shown(forwarded.await?)
            }
            "mute" => {
                let muted = call["muted"] == true;
                let track = rooms.mute_published_track(room, identity, text("sid"), muted);
                json!({"track": shown(track.await?)})
            }
            "update" => {
                let permission = call["can_publish"].as_bool();
                let options = UpdateParticipantOptions {
                    metadata: text("metadata").to_owned(),
                    attributes: serde_json::from_value(call["attributes"].clone())
                        .unwrap_or_default(),
                    permission: permission.map(|can_publish| proto::ParticipantPermission {
                        can_publish,
                        can_subscribe: true,
                        can_publish_data: true,
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                shown(rooms.update_participant(room, identity, options).await?)
            }
            "subscribe" => {
                let (tracks, on) = (vec![text("sid").to_owned()], call["on"] == true);
                let subscribed = rooms.update_subscriptions(room, identity, tracks, on);
                shown(subscribed.await?)
            }
            "send" => {
                let options = SendDataOptions {
                    destination_identities: texts("to"),
                    topic: Some("t".to_owned()),
                    ..Default::default()
                };
                let sent = rooms.send_data(room, text("text").into(), options);
                shown(sent.await?)
            }
            "egress" => {
                let filter = EgressListFilter::All;
                let options = EgressListOptions {
                    filter,
                    active: false,
                    page_token: None,
                };
                shown(self.egress.list_egress(options).await?)
            }
            "layout" => shown(self.egress.update_layout("EG_x", "grid").await?),
            _ => return Box::pin(self.telephone(name, call)).await,
        })
    }

    async fn telephone(&self, name: &str, call: &Value) -> Result<Value, ServiceError> {
        let text = |field: &str| call[field].as_str().unwrap_or_default().to_owned();
        let sip = &self.sip;
        Ok(match name {
            "make trunk" => {
                let options = CreateSIPOutboundTrunkOptions {
                    auth_username: "ann".to_owned(),
                    auth_password: "secret".to_owned(),
                    ..Default::default()
                };
                let numbers = vec!["+14155550100".to_owned()];
                let made =
                    sip.create_sip_outbound_trunk(text("name"), text("address"), numbers, options);
                shown(made.await?)
            }
            "rename trunk" => {
                let update = proto::SipOutboundTrunkUpdate {
                    name: Some(text("name")),
                    ..Default::default()
                };
                shown(sip.update_sip_outbound_trunk(text("sid"), update).await?)
            }
            "drop trunk" => shown(sip.delete_sip_trunk(&text("sid")).await?),
            "trunks" => {
                let all = sip.list_sip_outbound_trunk(ListSIPOutboundTrunkFilter::All);
                json!({"items": shown(all.await?)})
            }
            "make rule" => {
                let rule = Rule::DispatchRuleIndividual(proto::SipDispatchRuleIndividual {
                    room_prefix: text("name"),
                    ..Default::default()
                });
                let options = CreateSIPDispatchRuleOptions {
                    name: text("name"),
                    ..Default::default()
                };
                shown(Box::pin(sip.create_sip_dispatch_rule(rule, options)).await?)
            }
            "rules" => {
                let all = sip.list_sip_dispatch_rule(ListSIPDispatchRuleFilter::All);
                json!({"items": shown(all.await?)})
            }
            "drop rule" => shown(sip.delete_sip_dispatch_rule(&text("sid")).await?),
            "dial" => {
                let options = CreateSIPParticipantOptions {
                    participant_identity: text("identity"),
                    wait_until_answered: call["wait"].as_bool(),
                    ..Default::default()
                };
                let placed = sip.create_sip_participant(
                    text("sid"),
                    text("to"),
                    text("room"),
                    options,
                    None,
                );
                shown(placed.await?)
            }
            _ => {
                let options = TransferSIPParticipantOptions::default();
                let moved = sip.transfer_sip_participant(
                    text("room"),
                    text("identity"),
                    text("to"),
                    options,
                );
                moved.await?;
                json!({})
            }
        })
    }
}

fn with_key() -> Value {
    json!({"key": KEY, "secret": SECRET})
}

/// Everything that the API does with rooms and those who are in them.
async fn administers(name: &str) {
    let server = keyed_server();
    let mut api = Api::open(name, &server, &with_key()).await;
    let mut ok = async |method: &str, call: Value| {
        let answer = api.call(method, call.clone()).await;
        answer.unwrap_or_else(|code| panic!("{name}: {method} {call}: {code}"))
    };
    let room = json!({"room": "kitchen"});
    let ann = json!({"room": "kitchen", "identity": "ann"});
    let with = |call: &Value, more: Value| {
        let mut call = call.clone();
        for (field, value) in more.as_object().unwrap() {
            call[field] = value.clone();
        }
        call
    };

    let created = ok(
        "create",
        with(&room, json!({"metadata": "m", "empty_timeout": 60})),
    )
    .await;
    assert_eq!(
        (&created["name"], &created["metadata"]),
        (&json!("kitchen"), &json!("m"))
    );
    assert!(
        created["sid"].as_str().unwrap().starts_with("RM_"),
        "{created}"
    );
    let changed = ok("room metadata", with(&room, json!({"metadata": "n"}))).await;
    assert_eq!(changed["metadata"], "n");
    let listed = ok("list", json!({"names": ["kitchen", "none"]})).await;
    assert_eq!(listed["rooms"].as_array().unwrap().len(), 1);
    assert_eq!(listed["rooms"][0]["sid"], created["sid"]);

    let mut subject = join(&server, Kind::Python, "kitchen", "ann").await;
    let mut other = join(&server, Kind::Python, "kitchen", "bob").await;
    let track = subject.publish(440).await;
    other.hears("ann", 440).await;
    let listed = ok("participants", room.clone()).await;
    let identities = listed["participants"].as_array().unwrap().iter();
    let identities: Vec<_> = identities
        .map(|one| one["identity"].as_str().unwrap())
        .collect();
    assert_eq!(identities, ["ann", "bob"]);
    let got = ok("participant", ann.clone()).await;
    assert_eq!(
        (&got["identity"], &got["tracks"][0]["sid"]),
        (&json!("ann"), &json!(track))
    );

    for muted in [true, false] {
        let answer = ok("mute", with(&ann, json!({"sid": track, "muted": muted}))).await;
        assert_eq!(answer["track"]["sid"], json!(track));
        let event = if muted {
            "track_muted"
        } else {
            "track_unmuted"
        };
        other.next(event, &json!({"sid": track})).await;
        other.hears("ann", if muted { 0 } else { 440 }).await;
    }
    let bob = json!({"room": "kitchen", "identity": "bob", "sid": track});
    for on in [false, true] {
        ok("subscribe", with(&bob, json!({"on": on}))).await;
        other.hears("ann", if on { 440 } else { 0 }).await;
    }
    ok("send", with(&room, json!({"text": "hello", "to": ["bob"]}))).await;
    other
        .wait("data", &json!({"text": "hello", "topic": "t"}))
        .await;

    let about = json!({"metadata": "about ann", "attributes": {"mood": "good"}});
    let changed = ok("update", with(&ann, about)).await;
    assert_eq!(changed["metadata"], "about ann");
    assert_eq!(changed["attributes"], json!({"mood": "good"}));
    let of = json!({"identity": "ann"});
    other.next("participant_attributes_changed", &of).await;
    ok("update", with(&ann, json!({"can_publish": false}))).await;
    other
        .next("track_unpublished", &json!({"sid": track}))
        .await;
    let refused = subject
        .attempt(json!({"do": "publish", "hertz": 440}))
        .await;
    assert!(refused.is_err(), "{refused:?}");

    ok("remove", ann).await;
    assert_eq!(subject.next("disconnected", &json!({})).await["reason"], 4);
    ok("delete", room).await;
    assert_eq!(other.next("disconnected", &json!({})).await["reason"], 5);
    let listed = ok("list", json!({"names": []})).await;
    assert!(
        listed["rooms"].as_array().is_none_or(Vec::is_empty),
        "{listed}"
    );
}

#[tokio::test]
async fn livekits_python_client_administers_rooms() {
    administers("Python").await;
}

#[tokio::test]
async fn livekits_node_client_administers_rooms() {
    administers("Node").await;
}

#[tokio::test]
async fn livekits_rust_client_administers_rooms() {
    administers("Rust").await;
}

/// Names are those of protobuf's JSON, which clients in Rust write otherwise.
fn either<'a>(value: &'a Value, camel: &str, snake: &str) -> &'a str {
    value[camel]
        .as_str()
        .or(value[snake].as_str())
        .unwrap_or_default()
}

#[tokio::test]
async fn livekits_clients_keep_trunks_and_dispatch_rules() {
    let server = keyed_server();
    for name in NAMES {
        let mut api = Api::open(name, &server, &with_key()).await;
        let mut ok = async |method: &str, call: Value| {
            let answer = api.call(method, call.clone()).await;
            answer.unwrap_or_else(|code| panic!("{name}: {method} {call}: {code}"))
        };
        let made = ok(
            "make trunk",
            json!({"name": name, "address": "sip.example.org"}),
        )
        .await;
        let sid = either(&made, "sipTrunkId", "sip_trunk_id").to_owned();
        assert!(sid.starts_with("ST_"), "{made}");
        let renamed = ok("rename trunk", json!({"sid": sid, "name": "other"})).await;
        assert_eq!(renamed["name"], "other");
        let listed = ok("trunks", json!({})).await;
        let [trunk] = listed["items"].as_array().unwrap().as_slice() else {
            panic!("{name}: {listed}");
        };
        assert_eq!(
            (&trunk["name"], &trunk["address"]),
            (&json!("other"), &json!("sip.example.org"))
        );
        assert_eq!(either(trunk, "authUsername", "auth_username"), "ann");
        ok("drop trunk", json!({"sid": sid})).await;
        let listed = ok("trunks", json!({})).await;
        assert!(
            listed["items"].as_array().is_none_or(Vec::is_empty),
            "{listed}"
        );
        let made = ok("make rule", json!({"name": "call-"})).await;
        let sid = either(&made, "sipDispatchRuleId", "sip_dispatch_rule_id").to_owned();
        assert!(sid.starts_with("SDR_"), "{made}");
        let listed = ok("rules", json!({})).await;
        assert_eq!(listed["items"][0]["name"], "call-");
        ok("drop rule", json!({"sid": sid})).await;
        let listed = ok("rules", json!({})).await;
        assert!(
            listed["items"].as_array().is_none_or(Vec::is_empty),
            "{listed}"
        );
    }
}

#[tokio::test]
async fn every_api_client_understands_why_it_is_refused() {
    let server = keyed_server();
    let kitchen = json!({"room": "kitchen"});
    let nobody =
        json!({"room": "kitchen", "identity": "nobody", "sid": "TR_x", "muted": true, "on": true});
    let nothing = json!({"token": token(600, &json!({}), &json!({}))});
    let elsewhere = json!({"roomAdmin": true, "room": "elsewhere"});
    let elsewhere = json!({"token": token(600, &elsewhere, &json!({}))});
    for name in NAMES {
        let mut opened: Option<(&str, Api)> = None;
        let wrong = json!({"key": KEY, "secret": "another secret of thirty-two bytes"});
        let unknown = json!({"key": "unknown", "secret": SECRET});
        for (who, options, method, call, code) in [
            (
                "wrong secret",
                &wrong,
                "create",
                &kitchen,
                "unauthenticated",
            ),
            (
                "unknown key",
                &unknown,
                "list",
                &json!({"names": []}),
                "unauthenticated",
            ),
            (
                "no grant",
                &nothing,
                "list",
                &json!({"names": []}),
                "unauthenticated",
            ),
            (
                "other room",
                &elsewhere,
                "participant",
                &nobody,
                "unauthenticated",
            ),
            ("owner", &with_key(), "delete", &kitchen, "not_found"),
            ("owner", &with_key(), "participants", &kitchen, "not_found"),
            ("owner", &with_key(), "participant", &nobody, "not_found"),
            ("owner", &with_key(), "remove", &nobody, "not_found"),
            ("owner", &with_key(), "mute", &nobody, "not_found"),
            ("owner", &with_key(), "update", &nobody, "not_found"),
            ("owner", &with_key(), "subscribe", &nobody, "not_found"),
            ("owner", &with_key(), "layout", &json!({}), "unimplemented"),
            (
                "no grant",
                &nothing,
                "trunks",
                &json!({}),
                "unauthenticated",
            ),
            (
                "owner",
                &with_key(),
                "drop trunk",
                &json!({"sid": "ST_x"}),
                "not_found",
            ),
            (
                "owner",
                &with_key(),
                "make trunk",
                &json!({"name": "t", "address": "sip:a@b"}),
                "invalid_argument",
            ),
            (
                "owner",
                &with_key(),
                "dial",
                &json!({"sid": "ST_x", "to": "+14155550123", "room": "r", "identity": "p", "wait": false}),
                "not_found",
            ),
        ] {
            if opened.as_ref().is_none_or(|(before, _)| *before != who) {
                opened = Some((who, Api::open(name, &server, options).await));
            }
            let (_, api) = opened.as_mut().unwrap();
            let answer = api.call(method, call.clone()).await;
            assert_eq!(
                answer,
                Err(code.to_owned()),
                "{name}, {who}: {method} {call}"
            );
        }
    }
}
