//! A call takes a room of a tenant at the worst of moments: right after its provider was asked something.

use std::sync::Mutex;

use async_trait::async_trait;

use super::*;
use vivavoce_auth::{Principal, Takeover};
use vivavoce_embedded::Embedded;
use vivavoce_rooms::{Keys, RoomServer, Settings, Sockets};
use vivavoce_seams::rooms::ApiKey;
use vivavoce_seams::rooms::link::{Join, JoinKind, Listen, RoomLink};

const ROOM: &str = "kitchen";
const CALLER: &str = "sip_+14155550100";

/// The rooms of this process, in which a call of the operator's comes in once something was asked.
struct Contested {
    rooms: Embedded,
    call: Mutex<Option<Join>>,
    there: Mutex<Vec<RoomLink>>,
}

impl Contested {
    /// A room of the tenant's with somebody who stays whosever it is.
    async fn new() -> Self {
        let loopback = std::net::Ipv4Addr::LOCALHOST.into();
        let sockets = Sockets::bind(&[(loopback, loopback)], 0).unwrap();
        let settings = Settings {
            keys: Keys::new([("key", "secret")]),
            ..Settings::default()
        };
        let (server, _events) = RoomServer::start(settings, sockets).unwrap();
        let key = ApiKey {
            key: "key".to_owned(),
            secret: "secret".to_owned(),
        };
        let rooms = Embedded::new(server, key, None);
        let owner = Owner::Tenant(TenantId::new("a").unwrap());
        let (metadata, party) = (owner.in_place_of(""), owner.party());
        let made = rooms.create(ROOM, &metadata, &party).await;
        assert_eq!(made.unwrap(), Creation::Created);
        let agent = rooms.connect(join("agent", JoinKind::Agent, None)).await;
        let contested = Self {
            rooms,
            call: Mutex::new(Some(join(
                CALLER,
                JoinKind::Telephone,
                Some(Owner::Operator),
            ))),
            there: Mutex::new(vec![agent.unwrap()]),
        };
        // Until they are in.
        while contested.present().await.is_empty() {
            tokio::task::yield_now().await;
        }
        contested
    }

    async fn present(&self) -> Vec<String> {
        let present = self.rooms.participants(ROOM).await.unwrap();
        present.into_iter().map(|one| one.identity).collect()
    }

    async fn call_comes_in(&self) {
        let call = self.call.lock().unwrap().take();
        if let Some(call) = call {
            let link = self.rooms.connect(call).await.unwrap();
            self.there.lock().unwrap().push(link);
            while self.present().await.len() < 2 {
                tokio::task::yield_now().await;
            }
        }
    }
}

fn join(identity: &str, kind: JoinKind, owner: Option<Owner>) -> Join {
    Join {
        room: ROOM.to_owned(),
        identity: identity.to_owned(),
        name: String::new(),
        kind,
        principal: Principal::Operator,
        // By its number, a call takes a room from whoever has it.
        owner: owner.map(|owner| Takeover {
            owner,
            by_number: true,
        }),
        metadata: String::new(),
        attributes: Vec::new(),
        room_config: None,
        listen: Listen::Only(Vec::new()),
        audio: false,
    }
}

#[async_trait]
impl RoomProvider for Contested {
    fn slug(&self) -> &'static str {
        "contested"
    }

    fn url(&self) -> Option<&str> {
        None
    }

    async fn rooms(&self) -> Result<Vec<Room>, RoomError> {
        self.rooms.rooms().await
    }

    async fn room(&self, name: &str) -> Result<Option<Room>, RoomError> {
        let room = self.rooms.room(name).await;
        self.call_comes_in().await;
        room
    }

    async fn look_into(
        &self,
        name: &str,
        by: &Access,
    ) -> Result<Option<(Room, Vec<ParticipantInfo>)>, RoomError> {
        let seen = self.rooms.look_into(name, by).await;
        self.call_comes_in().await;
        seen
    }

    async fn participants(&self, room: &str) -> Result<Vec<ParticipantInfo>, RoomError> {
        self.rooms.participants(room).await
    }

    async fn create(&self, name: &str, metadata: &str, by: &Party) -> Result<Creation, RoomError> {
        self.rooms.create(name, metadata, by).await
    }

    fn keeps_owners(&self) -> bool {
        true
    }

    async fn replace_metadata(
        &self,
        room: &str,
        expected: &str,
        metadata: &str,
    ) -> Result<bool, RoomError> {
        self.rooms.replace_metadata(room, expected, metadata).await
    }

    async fn delete(&self, room: &str, by: &Access) -> Result<(), RoomError> {
        self.rooms.delete(room, by).await
    }

    async fn show_recording(&self, room: &str, recorded: bool) -> Result<(), RoomError> {
        self.rooms.show_recording(room, recorded).await
    }

    async fn remove(&self, room: &str, identity: &str, by: &Access) -> Result<(), RoomError> {
        self.rooms.remove(room, identity, by).await
    }

    async fn mute(
        &self,
        track: &TrackOf<'_>,
        muted: bool,
        by: &Access,
    ) -> Result<TrackInfo, RoomError> {
        self.rooms.mute(track, muted, by).await
    }

    async fn connect(&self, join: Join) -> Result<RoomLink, RoomError> {
        self.rooms.connect(join).await
    }

    fn token(&self, pass: &RoomPass<'_>) -> Result<String, RoomError> {
        self.rooms.token(pass)
    }

    fn check_signature(&self, authorization: &str) -> Result<(), EventError> {
        self.rooms.check_signature(authorization)
    }

    fn read_event(&self, event: &SignedEvent) -> Result<WebhookEvent, EventError> {
        self.rooms.read_event(event)
    }
}

async fn contested() -> (Arc<Contested>, Rooms) {
    let provider = Arc::new(Contested::new().await);
    let rooms = Rooms {
        provider: provider.clone(),
        token_lifetime: Duration::from_mins(1),
        claim_unowned: false,
        guarded: true,
    };
    (provider, rooms)
}

#[tokio::test]
async fn whoever_looks_into_a_room_that_a_call_takes_does_not_see_the_caller() {
    let (provider, rooms) = contested().await;
    let tenant = Access::of_tenant("a");
    let (_, seen) = rooms.look_into(&tenant, ROOM).await.unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(provider.present().await, ["agent", CALLER]);
    let later = rooms.look_into(&tenant, ROOM).await;
    assert!(matches!(later, Err(RoomsError::NoRoom)), "{later:?}");
    // Nor is there anything to hang up.
    let (_, rooms) = contested().await;
    let call = rooms.seen(&tenant, ROOM, CALLER).await;
    assert!(matches!(call, Err(RoomsError::NoParticipant)), "{call:?}");
}

#[tokio::test]
async fn whoever_acts_in_a_room_that_a_call_has_taken_meanwhile_does_nothing() {
    let (provider, rooms) = contested().await;
    let wish = RemoveParticipant {
        access: Access::of_tenant("a"),
        room: ROOM.to_owned(),
        identity: "agent".to_owned(),
    };
    let removed = rooms.remove(wish).await;
    assert!(matches!(removed, Err(RoomsError::NoRoom)), "{removed:?}");
    let track = TrackOf {
        room: ROOM,
        identity: CALLER,
        sid: "TR_any",
    };
    let tenant = Access::of_tenant("a");
    let muted = provider.mute(&track, true, &tenant).await.unwrap_err();
    assert_eq!(muted.kind, RoomErrorKind::NoRoom);
    provider.delete(ROOM, &tenant).await.unwrap();
    assert_eq!(provider.present().await, ["agent", CALLER]);
    // Whoever owns it now, and whoever runs the server, may.
    let operator = Access::operator_session();
    provider.remove(ROOM, "agent", &operator).await.unwrap();
    provider.delete(ROOM, &Access::anonymous()).await.unwrap();
    assert!(provider.present().await.is_empty());
}
