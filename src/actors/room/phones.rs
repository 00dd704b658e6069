//! The telephone participants of a room, from the attributes of their `ParticipantInfo`, and the changes of call status
//! that are reported.

use std::collections::VecDeque;

use livekit_protocol::ParticipantInfo;

use crate::session::protocol::{QueueState, TransferState};
use vivavoce_seams::rooms::telephone::{
    AnswerFinding, AnswerReason, Answerer, CallStatus, Classification, attribute, cause_of,
    is_on_the_phone, status_of,
};

/// Steps of warm transfers that are remembered, so that each is reported once.
const MOST_STEPS: usize = 64;

/// The telephone participants in the order in which they joined.
#[derive(Debug, Default)]
pub struct Phones(Vec<Phone>);

/// The steps of warm transfers that have been reported. Both telephones of a transfer tell each.
#[derive(Debug, Default)]
pub struct TransferSteps(VecDeque<(String, String)>);

impl TransferSteps {
    /// A telephone was found in the room. Returns the state of a transfer that is under way.
    pub fn found(&mut self, info: &ParticipantInfo) -> Option<TransferState> {
        let state = self.changed(info)?;
        matches!(&*state.state, "ringing" | "consulting").then_some(state)
    }

    /// A telephone has changed. Returns the state of its transfer, where that is news.
    pub fn changed(&mut self, info: &ParticipantInfo) -> Option<TransferState> {
        if !is_on_the_phone(info) {
            return None;
        }
        let read = |name| info.attributes.get(name).filter(|text| !text.is_empty());
        let (id, state) = (
            read(attribute::TRANSFER_ID)?,
            read(attribute::TRANSFER_STATE)?,
        );
        let step = (id.clone(), state.clone());
        if self.0.contains(&step) {
            return None;
        }
        self.0.truncate(MOST_STEPS - 1);
        self.0.push_front(step);
        let text = |name| read(name).cloned().unwrap_or_default();
        Some(TransferState {
            transfer_id: id.clone(),
            state: state.clone(),
            reason: read(attribute::TRANSFER_REASON).cloned(),
            participant_identity: text(attribute::TRANSFER_CALLER),
            person_identity: text(attribute::TRANSFER_PERSON),
            transfer_to: text(attribute::TRANSFER_TO),
        })
    }
}

#[derive(Debug)]
struct Phone {
    identity: String,
    sip_call_id: String,
    /// The status that was reported last.
    status: Option<CallStatus>,
    /// The findings that were.
    classification: Option<Classification>,
    beep: Option<AnswerFinding>,
    /// Where it was in a queue.
    queue: Option<QueueState>,
}

impl Phones {
    /// A participant has joined or changed. Returns the call id and status if there is a change to report.
    pub fn there(&mut self, info: &ParticipantInfo) -> Option<(String, CallStatus)> {
        if !is_on_the_phone(info) {
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
                classification: None,
                beep: None,
                queue: None,
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

    /// A participant has joined or changed, and is known by [`Self::there`]. Returns what is news of who has answered its call.
    pub fn findings(&mut self, info: &ParticipantInfo) -> Vec<(String, AnswerFinding)> {
        let mut phones = self.0.iter_mut();
        let Some(phone) = phones.find(|phone| phone.identity == info.identity) else {
            return Vec::new();
        };
        let mut news = Vec::new();
        let classification = classification_of(info);
        if classification.is_some() && classification != phone.classification {
            phone.classification = classification;
            news.extend(classification.map(AnswerFinding::Classified));
        }
        let beep = beep_of(info);
        if beep.is_some() && beep != phone.beep {
            phone.beep = beep;
            news.extend(beep);
        }
        let of_call = |finding| (phone.sip_call_id.clone(), finding);
        news.into_iter().map(of_call).collect()
    }

    /// A participant has joined or changed, and is known by [`Self::there`]. Returns where it is in a queue, if that is news and
    /// was not over before.
    pub fn queued(&mut self, info: &ParticipantInfo) -> Option<QueueState> {
        let mut phones = self.0.iter_mut();
        let phone = phones.find(|phone| phone.identity == info.identity)?;
        let state = queue_of(info)?;
        let before = phone.queue.replace(state.clone());
        let is_over = matches!(&*state.state, "connected" | "left");
        let is_news = before.map_or(!is_over, |before| before != state);
        is_news.then_some(state)
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

/// Who has answered a participant's call, as its attributes say it.
fn classification_of(info: &ParticipantInfo) -> Option<Classification> {
    let read = |name| info.attributes.get(name).map(String::as_str);
    let milliseconds = |name| read(name).and_then(|text| text.parse().ok());
    let confidence: f32 = read(attribute::ANSWERED_BY_CONFIDENCE)?.parse().ok()?;
    Some(Classification {
        result: Answerer::parse(read(attribute::ANSWERED_BY)?)?,
        confidence: (confidence.clamp(0.0, 1.0) * 100.0).round() as u8,
        reason: AnswerReason::parse(read(attribute::ANSWERED_BY_REASON)?)?,
        after_ms: milliseconds(attribute::ANSWERED_BY_AFTER).unwrap_or_default(),
        sound_ms: milliseconds(attribute::ANSWERED_BY_SOUND).unwrap_or_default(),
    })
}

/// What its attributes say of a queue.
fn queue_of(info: &ParticipantInfo) -> Option<QueueState> {
    let read = |name| info.attributes.get(name).filter(|text| !text.is_empty());
    Some(QueueState {
        queue: read(attribute::QUEUE)?.clone(),
        participant_identity: info.identity.clone(),
        state: read(attribute::QUEUE_STATE)?.clone(),
        position: read(attribute::QUEUE_POSITION).and_then(|text| text.parse().ok()),
        reason: read(attribute::QUEUE_REASON).cloned(),
    })
}

/// What its attributes say of a beep.
fn beep_of(info: &ParticipantInfo) -> Option<AnswerFinding> {
    let read = |name| info.attributes.get(name).map(String::as_str);
    let heard = match read(attribute::BEEP)? {
        "heard" => true,
        "none" => false,
        _ => return None,
    };
    let after = read(attribute::BEEP_AFTER).and_then(|text| text.parse().ok());
    Some(AnswerFinding::Beep {
        heard,
        after_ms: after.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use livekit_protocol::DisconnectReason;
    use livekit_protocol::participant_info::{Kind, KindDetail};

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
    fn a_call_is_told_where_it_is_and_not_where_it_is_forwarded_to() {
        let mut phones = Phones::default();
        let mut forwarded = phone("ann", "active");
        forwarded.kind_details = vec![KindDetail::Forwarded as i32];
        assert_eq!(phones.there(&forwarded), None);
        assert_eq!(phones.gone(&forwarded), None);
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
    fn each_step_of_a_transfer_is_told_once_and_none_that_was_over_before() {
        let telling = |identity: &str, id: &str, state: &str| {
            let mut info = phone(identity, "active");
            for (name, value) in [
                (attribute::TRANSFER_ID, id),
                (attribute::TRANSFER_STATE, state),
                (attribute::TRANSFER_CALLER, "ann"),
            ] {
                info.attributes.insert(name.to_owned(), value.to_owned());
            }
            info
        };
        let mut steps = TransferSteps::default();
        assert_eq!(steps.found(&telling("ann", "T0", "cancelled")), None);
        assert_eq!(steps.found(&phone("bob", "active")), None);
        let told = steps.changed(&telling("ann", "T1", "ringing")).unwrap();
        assert_eq!(
            (&*told.state, &*told.participant_identity),
            ("ringing", "ann")
        );
        assert_eq!(steps.changed(&telling("bob", "T1", "ringing")), None);
        assert!(steps.changed(&telling("ann", "T1", "failed")).is_some());
        assert_eq!(steps.changed(&telling("ann", "T0", "cancelled")), None);
        // Whoever joins later.
        let mut steps = TransferSteps::default();
        assert!(steps.found(&telling("ann", "T2", "consulting")).is_some());
    }

    #[test]
    fn what_is_found_out_of_a_call_is_told_once_and_again_when_it_is_corrected() {
        let mut phones = Phones::default();
        let mut info = phone("ann", "active");
        phones.there(&info);
        assert_eq!(phones.findings(&info), []);
        for (name, value) in [
            (attribute::ANSWERED_BY, "machine"),
            (attribute::ANSWERED_BY_CONFIDENCE, "0.8"),
            (attribute::ANSWERED_BY_REASON, "long_greeting"),
            (attribute::ANSWERED_BY_AFTER, "2900"),
            (attribute::ANSWERED_BY_SOUND, "2400"),
        ] {
            info.attributes.insert(name.to_owned(), value.to_owned());
        }
        let found = Classification {
            result: Answerer::Machine,
            confidence: 80,
            reason: AnswerReason::LongGreeting,
            after_ms: 2_900,
            sound_ms: 2_400,
        };
        let told = |finding| vec![("SCL_ann".to_owned(), finding)];
        assert_eq!(
            phones.findings(&info),
            told(AnswerFinding::Classified(found))
        );
        assert_eq!(phones.findings(&info), []);
        let mut beep = |heard: &str, after: &str| {
            for (name, value) in [(attribute::BEEP, heard), (attribute::BEEP_AFTER, after)] {
                info.attributes.insert(name.to_owned(), value.to_owned());
            }
            phones.findings(&info)
        };
        let heard = AnswerFinding::Beep {
            heard: true,
            after_ms: 4_100,
        };
        assert_eq!(beep("heard", "4100"), told(heard));
        assert_eq!(beep("heard", "4100"), []);
        assert_eq!(beep("perhaps", "4100"), []);
    }

    #[test]
    fn each_step_in_a_queue_is_told_once_and_none_that_was_over_before() {
        let mut phones = Phones::default();
        let mut told = |state: &str, position: &str| {
            let mut info = phone("ann", "active");
            for (name, value) in [
                (attribute::QUEUE, "support"),
                (attribute::QUEUE_STATE, state),
                (attribute::QUEUE_POSITION, position),
            ] {
                info.attributes.insert(name.to_owned(), value.to_owned());
            }
            phones.there(&info);
            let state = phones.queued(&info)?;
            Some((state.state, state.position))
        };
        assert_eq!(told("left", ""), None);
        assert_eq!(told("waiting", "2"), Some(("waiting".to_owned(), Some(2))));
        assert_eq!(told("waiting", "2"), None);
        assert_eq!(told("waiting", "1"), Some(("waiting".to_owned(), Some(1))));
        assert_eq!(told("connected", ""), Some(("connected".to_owned(), None)));
        assert_eq!(phones.queued(&phone("bob", "active")), None);
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
