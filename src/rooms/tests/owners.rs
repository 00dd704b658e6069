//! The owner of a room decides who is in it: at a join, at a resume, and when the owner changes.

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::signal_response::Message;

use super::super::admission::{IDENTITY_TAKEN, NOT_ADMITTED};
use super::super::events::Event;
use super::super::{Admission, ConnectionId, Keys, Route, token};
use super::Bench;
use vivavoce_auth::{Owner, Principal, Takeover, TenantId};

const REMOVED: Option<(Action, DisconnectReason)> =
    Some((Action::Disconnect, DisconnectReason::ParticipantRemoved));
const REFUSED: Option<(Action, DisconnectReason)> =
    Some((Action::Disconnect, DisconnectReason::JoinFailure));

fn tenant(id: &str) -> Principal {
    Principal::Tenant(TenantId::new(id).unwrap())
}

fn owned_by(id: &str) -> Owner {
    Owner::Tenant(TenantId::new(id).unwrap())
}

fn admission(identity: &str, principal: Principal) -> Admission {
    let mut admission = Bench::admission(identity, |claims| claims.vivavoce = Some(principal));
    admission.route = Route::OneConnection;
    admission.offer = Some(super::offer(super::BROWSER_JOIN, 1));
    admission
}

fn join(bench: &mut Bench, identity: &str, principal: Principal) -> ConnectionId {
    bench.connect(admission(identity, principal))
}

/// A caller to a number of this owner.
fn call(bench: &mut Bench, identity: &str, owner: Owner) -> ConnectionId {
    let by_number = true;
    takes(bench, identity, Takeover { owner, by_number })
}

fn takes(bench: &mut Bench, identity: &str, call: Takeover) -> ConnectionId {
    let mut admission = Bench::admission(identity, |claims| claims.kind = "sip".into());
    admission.owner = Some(call);
    bench.connect(admission)
}

fn room(bench: &mut Bench, metadata: &str) {
    let request = proto::CreateRoomRequest {
        name: "kitchen".into(),
        metadata: metadata.into(),
        ..Default::default()
    };
    bench.sfu.create_room(&request, bench.now).unwrap();
}

fn metadata(bench: &Bench) -> String {
    bench.sfu.list_rooms(&[])[0].metadata.clone()
}

fn present(bench: &Bench) -> Vec<String> {
    let present = bench.sfu.list_participants("kitchen").unwrap();
    present.into_iter().map(|one| one.identity).collect()
}

#[test]
fn a_token_opens_no_room_that_another_tenant_has_made_anew() {
    let mut bench = Bench::new(|_| ());
    let earlier = join(&mut bench, "bob", tenant("b"));
    assert_eq!(Owner::of(&metadata(&bench)), owned_by("b"));
    bench.sfu.delete_room("kitchen", bench.now).unwrap();
    bench.collect();
    assert!(bench.leave_of(earlier).is_some());
    join(&mut bench, "ann", tenant("a"));
    let refusal = bench.sfu.check(&admission("bob", tenant("b")));
    let refusal = refusal.unwrap_err();
    assert_eq!((refusal.status, refusal.text.as_str()), (403, NOT_ADMITTED));
    let late = join(&mut bench, "bob", tenant("b"));
    assert_eq!(bench.leave_of(late), REFUSED);
    // Nor can anyone with the identity of a participant replace them.
    let thief = join(&mut bench, "ann", tenant("b"));
    assert_eq!(bench.leave_of(thief), REFUSED);
    assert_eq!(present(&bench), ["ann"]);
    // The tenant's own tokens, and those that others have signed with the key pair.
    join(&mut bench, "amy", tenant("a"));
    bench.join("operator");
    assert_eq!(present(&bench), ["ann", "amy", "operator"]);
}

#[test]
fn a_session_of_an_earlier_owners_time_is_not_resumed() {
    let mut bench = Bench::new(|_| ());
    let ann = join(&mut bench, "ann", tenant("a"));
    let sid = bench.join_response(ann).participant.clone().unwrap().sid;
    for (principal, sid) in [
        (tenant("b"), String::new()),
        (Principal::Public, sid.clone()),
    ] {
        let mut again = admission("ann", principal);
        again.resume = Some(sid);
        let resumed = bench.connect(again);
        assert_eq!(bench.leave_of(resumed), REFUSED);
    }
    let mut again = admission("ann", tenant("a"));
    again.resume = Some(sid);
    let resumed = bench.connect(again);
    assert!(matches!(&bench.told(resumed)[0], Message::Reconnect(_)));
}

#[test]
fn nobody_goes_on_with_a_session_that_somebody_else_has_begun() {
    let mut bench = Bench::new(|_| ());
    room(&mut bench, r#"{"auth_id":"a"}"#);
    bench.join("operator");
    let mut again = admission("operator", tenant("a"));
    again.resume = Some(String::new());
    let resumed = bench.connect(again);
    assert_eq!(
        bench.leave_of(resumed),
        Some((Action::Reconnect, DisconnectReason::StateMismatch))
    );
}

#[test]
fn a_refreshed_token_is_its_tenants_still() {
    let mut bench = Bench::new(|_| ());
    let ann = join(&mut bench, "ann", tenant("a"));
    let refreshed = bench.told(ann).iter().find_map(|message| match message {
        Message::RefreshToken(token) => Some(token.clone()),
        _ => None,
    });
    let keys = Keys::new([("key", "secret")]);
    let claims = token::verify(&refreshed.unwrap(), &keys, 1_800_000_100).unwrap();
    assert_eq!(claims.principal(), tenant("a"));
}

#[test]
fn whoever_waits_without_the_right_of_a_calls_owner_is_gone_before_the_caller_comes() {
    let mut bench = Bench::new(|_| ());
    room(&mut bench, r#"{"topic":"tea"}"#);
    let stranger = join(&mut bench, "stranger", Principal::Public);
    let operator = bench.join("operator");
    bench.forget();
    call(&mut bench, "caller", owned_by("a"));
    assert_eq!(bench.leave_of(stranger), REMOVED);
    let seen = bench.updates(stranger);
    assert!(seen.iter().all(|one| one.identity != "caller"), "{seen:?}");
    let told_of_owner = bench
        .told(stranger)
        .iter()
        .any(|message| matches!(message, Message::RoomUpdate(_)));
    assert!(!told_of_owner, "whoever goes learns whose the room is");
    assert_eq!(bench.leave_of(operator), None);
    assert_eq!(present(&bench), ["operator", "caller"]);
    let now: serde_json::Value = serde_json::from_str(&metadata(&bench)).unwrap();
    assert_eq!(now, serde_json::json!({"topic": "tea", "auth_id": "a"}));
    assert_eq!(
        bench.events.last(),
        Some(&Event::ParticipantConnectionAborted)
    );
    // The owner's participants may join, and nobody else.
    let late = join(&mut bench, "stranger", Principal::Public);
    assert_eq!(bench.leave_of(late), REFUSED);
    join(&mut bench, "agent", tenant("a"));
    assert_eq!(present(&bench), ["operator", "caller", "agent"]);
}

#[test]
fn a_room_that_another_tenant_has_claimed_is_the_callers_owners_with_nothing_of_its_data() {
    let mut bench = Bench::new(|_| ());
    room(&mut bench, r#"{"auth_id":"b","secret":"of b"}"#);
    let spy = join(&mut bench, "spy", tenant("b"));
    let mut leg = admission("leg", tenant("b"));
    leg.claims.kind = "sip".into();
    let leg = bench.connect(leg);
    let caller = call(&mut bench, "caller", owned_by("a"));
    for gone in [spy, leg] {
        assert_eq!(bench.leave_of(gone), REMOVED);
    }
    assert_eq!(present(&bench), ["caller"]);
    assert_eq!(metadata(&bench), r#"{"auth_id":"a"}"#);
    let told = bench.join_response(caller).room.clone().unwrap();
    assert_eq!(told.metadata, r#"{"auth_id":"a"}"#);
    let again = join(&mut bench, "spy", tenant("b"));
    assert_eq!(bench.leave_of(again), REFUSED);
}

#[test]
fn a_call_to_a_number_of_nobodys_puts_no_one_out_of_a_tenants_room() {
    let mut bench = Bench::new(|_| ());
    room(&mut bench, r#"{"auth_id":"b","topic":"tea"}"#);
    let member = join(&mut bench, "member", tenant("b"));
    for owner in [Owner::Operator, owned_by("a")] {
        let by_number = false;
        let stranger = Takeover { owner, by_number };
        assert!(!bench.sfu.may_take("kitchen", &stranger));
        assert!(bench.sfu.may_take("cellar", &stranger));
        let caller = takes(&mut bench, "caller", stranger);
        assert_eq!(bench.leave_of(caller), REFUSED);
    }
    assert_eq!(bench.leave_of(member), None);
    assert_eq!(present(&bench), ["member"]);
    assert_eq!(metadata(&bench), r#"{"auth_id":"b","topic":"tea"}"#);
}

#[test]
fn nobody_who_waits_takes_the_callers_place() {
    let mut bench = Bench::new(|settings| settings.room.max_participants = 1);
    let stranger = join(&mut bench, "stranger", Principal::Public);
    let caller = call(&mut bench, "caller", owned_by("a"));
    assert_eq!(bench.leave_of(stranger), REMOVED);
    assert_eq!(bench.leave_of(caller), None);
    assert_eq!(present(&bench), ["caller"]);
}

#[test]
fn a_call_of_the_operators_is_not_for_tenants_and_not_for_the_public() {
    for empty in [true, false] {
        let mut bench = Bench::new(|_| ());
        if !empty {
            room(&mut bench, "free text");
        }
        call(&mut bench, "caller", Owner::Operator);
        for principal in [tenant("a"), Principal::Public] {
            let other = join(&mut bench, "other", principal);
            assert_eq!(bench.leave_of(other), REFUSED);
        }
        bench.join("operator");
        assert_eq!(present(&bench), ["caller", "operator"]);
        let owner = Owner::of(&metadata(&bench));
        let expected = if empty {
            Owner::Operator
        } else {
            // Metadata of the operator stays.
            assert_eq!(metadata(&bench), "free text");
            Owner::Unknown
        };
        assert_eq!(owner, expected);
    }
}

#[test]
fn a_room_of_nobody_is_claimed_by_a_tenants_token_only_where_that_is_allowed_and_nobody_is_on_the_telephone()
 {
    for (claim_unowned, telephone, allowed) in [
        (true, false, true),
        (false, false, false),
        (true, true, false),
    ] {
        let mut bench = Bench::new(|settings| settings.claim_unowned = claim_unowned);
        room(&mut bench, "");
        let stranger = join(&mut bench, "stranger", Principal::Public);
        if telephone {
            bench.join_with("phone", |claims| claims.kind = "sip".into());
        }
        let ann = join(&mut bench, "ann", tenant("a"));
        let case = format!("{claim_unowned} {telephone}");
        if allowed {
            assert_eq!(bench.leave_of(ann), None, "{case}");
            assert_eq!(bench.leave_of(stranger), REMOVED, "{case}");
            assert_eq!(Owner::of(&metadata(&bench)), owned_by("a"), "{case}");
        } else {
            assert_eq!(bench.leave_of(ann), REFUSED, "{case}");
            assert_eq!(bench.leave_of(stranger), None, "{case}");
            assert_eq!(Owner::of(&metadata(&bench)), Owner::Nobody, "{case}");
        }
        if telephone {
            let late = join(&mut bench, "late", Principal::Public);
            assert_eq!(bench.leave_of(late), REFUSED, "{case}");
        }
    }
}

#[test]
fn whoever_may_not_stay_goes_however_the_owner_changes() {
    let mine = r#"{"auth_id":"a"}"#.to_owned();
    for change in ["update", "replace", "create"] {
        let mut bench = Bench::new(|_| ());
        let stranger = join(&mut bench, "stranger", Principal::Public);
        let operator = bench.join("operator");
        let (sfu, now) = (&mut bench.sfu, bench.now);
        match change {
            "update" => {
                let updated = sfu.update_room_metadata("kitchen", mine.clone(), now);
                updated.unwrap();
            }
            "replace" => {
                let replaced = sfu.replace_room_metadata("kitchen", "", mine.clone(), now);
                assert_eq!(replaced, Ok(true));
            }
            _ => room(&mut bench, &mine),
        }
        bench.collect();
        assert_eq!(bench.leave_of(stranger), REMOVED);
        assert_eq!(bench.leave_of(operator), None);
    }
}

#[test]
fn without_tenants_nobody_is_removed_and_everybody_may_come() {
    let mut bench = Bench::new(|_| ());
    let ann = bench.join("ann");
    for metadata in [
        r#"{"auth_id":"a"}"#,
        "free text",
        r#"{"operator":true}"#,
        "",
    ] {
        let changed = bench
            .sfu
            .update_room_metadata("kitchen", metadata.to_owned(), bench.now);
        changed.unwrap();
        bench.collect();
        bench.join("bob");
        assert_eq!(present(&bench), ["ann", "bob"], "{metadata}");
    }
    assert_eq!(bench.leave_of(ann), None);
}

#[test]
fn whoever_calls_in_puts_nobody_out() {
    let calling = |id: &str| {
        let mut admission = Bench::admission("sip_1", |claims| {
            claims.kind = "sip".into();
            let id = ("sip.callID".to_owned(), id.to_owned());
            claims.attributes = [id].into();
        });
        admission.puts_nobody_out = true;
        admission
    };
    for owner in [None, Some(Owner::Operator)] {
        let mut bench = Bench::new(|_| ());
        let session = bench.join("sip_1");
        let mut admission = calling("SCL_1");
        admission.owner = owner.clone().map(|owner| Takeover {
            owner,
            by_number: true,
        });
        let caller = bench.connect(admission);
        assert_eq!(bench.leave_of(caller), REFUSED, "{owner:?}");
        assert_eq!(bench.leave_of(session), None, "{owner:?}");
        assert_eq!(present(&bench), ["sip_1"]);
    }
    // A call that was told to reconnect may be back before its first session has ended, but no other one.
    let mut bench = Bench::new(|_| ());
    bench.connect(calling("SCL_1"));
    bench.sfu.renew_participant("kitchen", "sip_1").unwrap();
    let other = bench.connect(calling("SCL_2"));
    assert_eq!(bench.leave_of(other), REFUSED);
    let again = bench.connect(calling("SCL_1"));
    assert_eq!(bench.leave_of(again), None);
    assert_eq!(present(&bench), ["sip_1"]);
}

#[test]
fn whoever_nobody_knows_takes_nobodys_identity() {
    for principal in [Principal::Operator, Principal::Public] {
        let mut bench = Bench::new(|_| ());
        let ann = join(&mut bench, "ann", principal);
        let refusal = bench.sfu.check(&admission("ann", Principal::Public));
        let refusal = refusal.unwrap_err();
        assert_eq!(
            (refusal.status, refusal.text.as_str()),
            (403, IDENTITY_TAKEN)
        );
        let thief = join(&mut bench, "ann", Principal::Public);
        assert_eq!(bench.leave_of(thief), REFUSED);
        assert_eq!(bench.leave_of(ann), None);
        // Other rooms accept it as before.
        let again = bench.join("ann");
        assert_eq!(bench.leave_of(again), None);
        assert_eq!(
            bench.leave_of(ann),
            Some((Action::Disconnect, DisconnectReason::DuplicateIdentity))
        );
    }
    // One that was told to reconnect may be back before its first session has ended.
    let mut bench = Bench::new(|_| ());
    join(&mut bench, "ann", Principal::Public);
    bench.sfu.renew_participant("kitchen", "ann").unwrap();
    let again = join(&mut bench, "ann", Principal::Public);
    assert_eq!(bench.leave_of(again), None);
    assert_eq!(present(&bench), ["ann"]);
}

#[test]
fn a_deserted_room_is_one_in_which_nobody_else_is_seen() {
    let mut bench = Bench::new(|_| ());
    let delete = |bench: &mut Bench| {
        let (sfu, now) = (&mut bench.sfu, bench.now);
        let deleted = sfu.delete_deserted_room("kitchen", "ann", &Principal::Public, now);
        deleted.unwrap();
        bench.collect();
        bench.sfu.list_rooms(&[]).is_empty()
    };
    join(&mut bench, "ann", Principal::Public);
    bench.join("bob");
    assert!(!delete(&mut bench));
    let now = bench.now;
    bench.sfu.remove_participant("kitchen", "bob", now).unwrap();
    // Another principal with the same identity is not the same participant.
    bench.join("ann");
    assert!(!delete(&mut bench));
    bench.sfu.remove_participant("kitchen", "ann", now).unwrap();
    join(&mut bench, "ann", Principal::Public);
    bench.join_with("listener", |claims| claims.video.hidden = true);
    assert!(delete(&mut bench));
}
