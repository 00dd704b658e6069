//! The notification sent to a hook: a telephone has joined a room. It is derived from the room event.

use std::collections::{BTreeMap, HashSet, VecDeque};

use livekit_protocol::participant_info::Kind;
use livekit_protocol::{ParticipantInfo, WebhookEvent};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::host::Host;
use vivavoce_seams::rooms::telephone::{attribute, is_forwarded, is_on_the_phone};

/// The headers that contain the called host, in order of precedence.
const CALLED: [&str; 2] = ["sip.h.x-to-ip", "sip.h.to"];
/// The namespace of event ids derived from other ids (UUIDv5, RFC 9562, section 5.5).
const NAMESPACE: Uuid = Uuid::from_u128(0x5a3e_94b7_0c5d_4f0e_9a37_d1c2_68b4_7f11);

/// The body of the notification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "HookNotification")]
pub struct Announcement {
    /// The call's participant in the room.
    pub participant: Participant,
    /// The room.
    pub room: Room,
    /// The calling number; null if the call withholds it.
    pub from_phone_number: Option<String>,
    /// The called number; null if the call withholds it.
    pub to_phone_number: Option<String>,
    /// The prefix of the names of rooms of inbound calls (`sip.room_prefix`).
    pub room_prefix: Option<String>,
    /// The called host, which selected the hook.
    #[schemars(with = "String")]
    pub sip_host: Host,
    /// The known SIP headers of the call, by their names in lower case.
    pub sip_headers: BTreeMap<String, String>,
}

/// A participant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "HookParticipant")]
pub struct Participant {
    /// The display name.
    pub name: String,
    /// The identity.
    pub identity: String,
    /// The id of this stay in the room.
    pub sid: String,
}

/// A room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "HookRoom")]
pub struct Room {
    /// The name.
    pub name: String,
    /// The id of this instance of the room.
    pub sid: String,
}

/// Whether the event says that a telephone participant has joined.
pub fn is_call(event: &WebhookEvent) -> bool {
    event.event == "participant_joined" && event.participant.as_ref().is_some_and(is_on_the_phone)
}

/// Whether the event says that somebody has joined who is no agent: a telephone participant, or a person.
pub fn is_guest(event: &WebhookEvent) -> bool {
    let is_person = |one: &ParticipantInfo| one.kind() == Kind::Standard && !is_forwarded(one);
    let joined = event.event == "participant_joined";
    is_call(event) || joined && event.participant.as_ref().is_some_and(is_person)
}

/// The notification for an event; `None` if the called host is unknown.
pub fn announcement(event: &WebhookEvent, room_prefix: Option<&str>) -> Option<Announcement> {
    let participant = event.participant.as_ref()?;
    let room = event.room.as_ref()?;
    let attributes = &participant.attributes;
    let known = |name: &str| attributes.get(name).filter(|value| !value.is_empty());
    let host = called_host(|header| known(header).map(String::as_str))?;
    let headers = attributes.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix(attribute::HEADER)?;
        Some((name.to_owned(), value.clone()))
    });
    Some(Announcement {
        participant: Participant {
            name: participant.name.clone(),
            identity: participant.identity.clone(),
            sid: participant.sid.clone(),
        },
        room: Room {
            name: room.name.clone(),
            sid: room.sid.clone(),
        },
        from_phone_number: known(attribute::PHONE_NUMBER).cloned(),
        to_phone_number: known(attribute::TRUNK_PHONE_NUMBER).cloned(),
        room_prefix: room_prefix.map(str::to_owned),
        sip_host: host,
        sip_headers: headers.collect(),
    })
}

/// The called host, according to the INVITE headers in the participant's attributes.
pub fn called_host<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Host> {
    CALLED
        .into_iter()
        .find_map(|name| Host::of_header(header(name)?))
}

/// Whether a telephone participant belongs to an inbound call: only those have the headers of an INVITE, or were
/// brought to their room by a dispatch rule.
pub fn is_inbound(participant: &ParticipantInfo) -> bool {
    let attributes = &participant.attributes;
    let told = |name: &str| attributes.get(name).is_some_and(|value| !value.is_empty());
    told(attribute::RULE_ID) || CALLED.into_iter().any(told)
}

/// Whether a telephone participant comes by a carrier's socket.
pub fn is_by_carrier(participant: &ParticipantInfo) -> bool {
    let kind = participant.attributes.get(attribute::CARRIER);
    participant.kind() == Kind::Sip && kind.is_some_and(|kind| !kind.is_empty())
}

/// The id of the notification, the same whichever server sends it and however often: derived from the event's id, or
/// from the participant's id if it has none.
pub fn event_id(event: &WebhookEvent) -> Uuid {
    if !event.id.is_empty() {
        return Uuid::new_v5(&NAMESPACE, event.id.as_bytes());
    }
    let room = event.room.as_ref().map_or("", |room| &room.sid);
    let participant = event.participant.as_ref();
    let participant = participant.map_or("", |participant| &participant.sid);
    Uuid::new_v5(&NAMESPACE, format!("{room} {participant}").as_bytes())
}

/// The recent events, so that an event posted twice is reported once.
#[derive(Debug)]
pub struct RecentEvents {
    most: usize,
    ids: HashSet<Uuid>,
    order: VecDeque<Uuid>,
}

impl RecentEvents {
    /// Remembers this many events.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ids: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// Whether the event is new; remembers it.
    pub fn is_new(&mut self, id: Uuid) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }

    /// Forgets an event that could not be reported, so that it is new when it is posted again.
    pub fn forget(&mut self, id: Uuid) {
        if self.ids.remove(&id) {
            self.order.retain(|other| *other != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::participant_info::KindDetail;
    use serde_json::json;

    use super::*;

    fn call(attributes: &[(&str, &str)]) -> WebhookEvent {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        WebhookEvent {
            event: "participant_joined".to_owned(),
            id: "EV_a".to_owned(),
            room: Some(livekit_protocol::Room {
                name: "call-+4930".to_owned(),
                sid: "RM_a".to_owned(),
                ..livekit_protocol::Room::default()
            }),
            participant: Some(ParticipantInfo {
                name: "Phone +4940".to_owned(),
                identity: "sip_+4940".to_owned(),
                sid: "PA_a".to_owned(),
                kind: Kind::Sip as i32,
                attributes: attributes.iter().map(owned).collect(),
                ..ParticipantInfo::default()
            }),
            ..WebhookEvent::default()
        }
    }

    #[test]
    fn what_is_told_is_read_from_the_attributes() {
        let event = call(&[
            ("sip.phoneNumber", "+4940"),
            ("sip.trunkPhoneNumber", "+4930"),
            ("sip.callID", "SCL_a"),
            ("sip.h.to", "<sip:+4930@SIP.example.org:5060>"),
            ("sip.h.x-account", "7"),
        ]);
        assert!(is_call(&event));
        let told = announcement(&event, Some("call-")).unwrap();
        assert_eq!(
            serde_json::to_value(told).unwrap(),
            json!({
                "participant": {"name": "Phone +4940", "identity": "sip_+4940", "sid": "PA_a"},
                "room": {"name": "call-+4930", "sid": "RM_a"},
                "from_phone_number": "+4940", "to_phone_number": "+4930",
                "room_prefix": "call-", "sip_host": "sip.example.org",
                "sip_headers": {"to": "<sip:+4930@SIP.example.org:5060>", "x-account": "7"},
            })
        );
    }

    #[test]
    fn the_host_is_that_of_x_to_ip_and_otherwise_that_of_to() {
        let to = ("sip.h.to", "sip:a@b.example");
        for (attributes, host) in [
            (
                &[to, ("sip.h.x-to-ip", "192.0.2.1:5060")][..],
                Some("192.0.2.1"),
            ),
            (&[to, ("sip.h.x-to-ip", "")], Some("b.example")),
            (&[to, ("sip.h.x-to-ip", "!")], Some("b.example")),
            (&[to], Some("b.example")),
            (&[("sip.h.to", "tel:+4930")], None),
            (&[], None),
        ] {
            let told = announcement(&call(attributes), None);
            let found = told.as_ref().map(|told| told.sip_host.as_str());
            assert_eq!(found, host, "{attributes:?}");
        }
    }

    #[test]
    fn only_telephones_that_join_are_calls() {
        let mut event = call(&[]);
        event.event = "participant_left".to_owned();
        assert!(!is_call(&event));
        let mut event = call(&[]);
        event.participant.as_mut().unwrap().kind = Kind::Agent as i32;
        assert!(!is_call(&event));
        assert!(!is_call(&WebhookEvent {
            participant: None,
            ..call(&[])
        }));
    }

    #[test]
    fn whoever_is_forwarded_to_a_room_does_not_call_there() {
        for kind in [Kind::Sip, Kind::Standard] {
            let mut event = call(&[]);
            let participant = event.participant.as_mut().unwrap();
            participant.kind = kind as i32;
            assert!(is_guest(&event));
            let participant = event.participant.as_mut().unwrap();
            participant.kind_details = vec![KindDetail::Forwarded as i32];
            assert!(!is_call(&event) && !is_guest(&event));
        }
    }

    #[test]
    fn an_event_has_one_id_and_others_have_others() {
        let event = call(&[]);
        assert_eq!(event_id(&event), event_id(&call(&[("sip.h.to", "a")])));
        let nameless = WebhookEvent {
            id: String::new(),
            ..event.clone()
        };
        let mut later = nameless.clone();
        later.participant.as_mut().unwrap().sid = "PA_b".to_owned();
        let ids = [&event, &nameless, &later].map(event_id);
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    }

    #[test]
    fn what_was_told_is_remembered_within_bounds_and_what_failed_is_not() {
        let id = Uuid::from_u128;
        let mut told = RecentEvents::new(2);
        assert!(told.is_new(id(1)) && !told.is_new(id(1)));
        told.forget(id(1));
        assert!(told.is_new(id(1)) && told.is_new(id(2)) && told.is_new(id(3)));
        assert!(!told.is_new(id(2)) && !told.is_new(id(3)));
        assert!(told.is_new(id(1)), "the oldest is forgotten");
        assert_eq!((told.ids.len(), told.order.len()), (2, 2));
    }
}
