//! The telephone participants of a room, from the attributes of their `ParticipantInfo`, and the changes of call status
//! that are reported.

use livekit_protocol::ParticipantInfo;
use livekit_protocol::participant_info::Kind;

use vivavoce_seams::rooms::telephone::{CallStatus, attribute, cause_of, status_of};

/// The telephone participants in the order in which they joined.
#[derive(Debug, Default)]
pub struct Phones(Vec<Phone>);

#[derive(Debug)]
struct Phone {
    identity: String,
    sip_call_id: String,
    /// The status that was reported last.
    status: Option<CallStatus>,
}

impl Phones {
    /// A participant has joined or changed. Returns the call id and status if there is a change to report.
    pub fn there(&mut self, info: &ParticipantInfo) -> Option<(String, CallStatus)> {
        if info.kind() != Kind::Sip {
            return None;
        }
        let known = self
            .0
            .iter()
            .position(|phone| phone.identity == info.identity);
        let place = known.unwrap_or_else(|| {
            self.0.push(Phone {
                identity: info.identity.clone(),
                sip_call_id: String::new(),
                status: None,
            });
            self.0.len() - 1
        });
        let phone = self.0.get_mut(place)?;
        if let Some(id) = info.attributes.get(attribute::CALL_ID) {
            phone.sip_call_id.clone_from(id);
        }
        let status = status_of(info)?;
        // A hang-up without a cause is reported when the participant leaves, which has one.
        let unexplained =
            status.cause().is_some() && !info.attributes.contains_key(attribute::CAUSE);
        let over = phone.status.is_some_and(|status| status.cause().is_some());
        if over || unexplained || phone.status == Some(status) {
            return None;
        }
        phone.status = Some(status);
        Some((phone.sip_call_id.clone(), status))
    }

    /// A participant has left.
    pub fn gone(&mut self, info: &ParticipantInfo) -> Option<(String, CallStatus)> {
        let place = self
            .0
            .iter()
            .position(|phone| phone.identity == info.identity)?;
        let phone = self.0.remove(place);
        let over = phone.status.is_some_and(|status| status.cause().is_some());
        let active = phone.status == Some(CallStatus::Active);
        (!over).then(|| {
            (
                phone.sip_call_id,
                CallStatus::Hangup(cause_of(info, active)),
            )
        })
    }

    /// Whether this participant is on the telephone.
    pub fn knows(&self, identity: &str) -> bool {
        self.find(Some(identity)).is_some()
    }

    /// The telephone participant with this identity, or the first one.
    pub fn find(&self, identity: Option<&str>) -> Option<&str> {
        let mut phones = self.0.iter().map(|phone| phone.identity.as_str());
        match identity {
            Some(identity) => phones.find(|known| *known == identity),
            None => phones.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::DisconnectReason;

    use super::*;
    use vivavoce_seams::rooms::telephone::HangupCause;

    fn phone(identity: &str, status: &str) -> ParticipantInfo {
        let attributes = [
            (attribute::CALL_ID.to_owned(), format!("SCL_{identity}")),
            (attribute::CALL_STATUS.to_owned(), status.to_owned()),
        ];
        ParticipantInfo {
            identity: identity.to_owned(),
            kind: Kind::Sip as i32,
            attributes: attributes.into_iter().collect(),
            ..Default::default()
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as `Phones` tells it")]
    fn told(status: CallStatus) -> Option<(String, CallStatus)> {
        Some(("SCL_ann".to_owned(), status))
    }

    #[test]
    fn each_step_of_a_call_is_told_once() {
        let mut phones = Phones::default();
        assert_eq!(
            phones.there(&phone("ann", "dialing")),
            told(CallStatus::Dialing)
        );
        assert_eq!(phones.there(&phone("ann", "dialing")), None);
        assert_eq!(
            phones.there(&phone("ann", "ringing")),
            told(CallStatus::Ringing)
        );
        assert_eq!(phones.there(&phone("ann", "automation")), None);
        assert_eq!(
            phones.there(&phone("ann", "active")),
            told(CallStatus::Active)
        );
        assert_eq!(
            phones.there(&phone("ann", "hangup")),
            None,
            "why is not known yet"
        );
        let mut left = phone("ann", "hangup");
        left.disconnect_reason = DisconnectReason::ClientInitiated as i32;
        assert_eq!(
            phones.gone(&left),
            told(CallStatus::Hangup(HangupCause::Remote))
        );
        assert_eq!(phones.gone(&left), None);
    }

    #[test]
    fn the_cause_that_the_bridge_says_is_told_at_once_and_once() {
        let mut phones = Phones::default();
        phones.there(&phone("ann", "ringing"));
        let mut over = phone("ann", "hangup");
        over.attributes
            .insert(attribute::CAUSE.to_owned(), "busy".to_owned());
        assert_eq!(
            phones.there(&over),
            told(CallStatus::Hangup(HangupCause::Busy))
        );
        assert_eq!(phones.gone(&over), None);
    }

    #[test]
    fn a_reason_of_livekit_is_told_as_far_as_it_goes() {
        for (reason, before, cause) in [
            (
                DisconnectReason::UserRejected,
                "ringing",
                HangupCause::Declined,
            ),
            (
                DisconnectReason::UserUnavailable,
                "ringing",
                HangupCause::NoAnswer,
            ),
            (
                DisconnectReason::SipTrunkFailure,
                "dialing",
                HangupCause::Failed,
            ),
            (
                DisconnectReason::ParticipantRemoved,
                "ringing",
                HangupCause::Cancelled,
            ),
            (
                DisconnectReason::ParticipantRemoved,
                "active",
                HangupCause::Local,
            ),
            (DisconnectReason::RoomDeleted, "active", HangupCause::Local),
            (
                DisconnectReason::UnknownReason,
                "active",
                HangupCause::Remote,
            ),
        ] {
            let mut phones = Phones::default();
            phones.there(&phone("ann", before));
            let mut left = phone("ann", before);
            left.disconnect_reason = reason as i32;
            assert_eq!(
                phones.gone(&left),
                told(CallStatus::Hangup(cause)),
                "{reason:?}"
            );
        }
    }

    #[test]
    fn who_is_meant_is_who_is_named_or_who_came_first() {
        let mut phones = Phones::default();
        let mut other = phone("web", "active");
        other.kind = Kind::Standard as i32;
        assert_eq!(phones.there(&other), None);
        assert_eq!(phones.find(None), None);
        phones.there(&phone("ann", "active"));
        phones.there(&phone("bob", "active"));
        assert_eq!(
            (phones.find(None), phones.find(Some("bob"))),
            (Some("ann"), Some("bob"))
        );
        assert_eq!(phones.find(Some("web")), None);
        phones.gone(&phone("ann", "active"));
        assert_eq!(phones.find(None), Some("bob"));
    }
}
