//! Who may be moved to which room, and whose that is then.

use livekit_protocol as proto;
use proto::signal_response::Message;

use super::super::{Admission, ConnectionId, OperationError, Route};
use super::Bench;
use vivavoce_auth::{Owner, Principal, TenantId};

pub fn tenant(id: &str) -> Principal {
    Principal::Tenant(TenantId::new(id).unwrap())
}

pub fn admission(room: &str, identity: &str, principal: Principal) -> Admission {
    let mut admission = Bench::admission(identity, |claims| {
        claims.vivavoce = Some(principal);
        claims.video.room = room.to_owned();
    });
    room.clone_into(&mut admission.room);
    admission.route = Route::OneConnection;
    admission.offer = Some(super::offer(super::BROWSER_JOIN, 1));
    admission
}

/// Somebody whose media is up.
pub fn join(bench: &mut Bench, room: &str, identity: &str, principal: Principal) -> ConnectionId {
    let connection = bench.connect(admission(room, identity, principal));
    let all = bench.sfu.participants.values_mut();
    for participant in all.filter(|one| &*one.identity == identity) {
        participant.was_active = true;
    }
    connection
}

pub fn moved(
    bench: &mut Bench,
    from: &str,
    identity: &str,
    to: &str,
) -> Result<(), OperationError> {
    let moved = bench.sfu.move_participant(from, identity, to, bench.now);
    bench.collect();
    moved
}

pub fn present(bench: &Bench, room: &str) -> Vec<String> {
    let present = bench.sfu.list_participants(room).unwrap_or_default();
    present.into_iter().map(|one| one.identity).collect()
}

pub fn owner(bench: &Bench, room: &str) -> Owner {
    Owner::of(&bench.sfu.list_rooms(&[room.to_owned()])[0].metadata)
}

#[test]
fn a_room_that_nobody_owns_is_that_of_whoever_is_moved_there() {
    let mut bench = Bench::new(|_| ());
    let ann = join(&mut bench, "kitchen", "ann", tenant("a"));
    moved(&mut bench, "kitchen", "ann", "cellar").unwrap();
    assert_eq!(
        owner(&bench, "cellar"),
        Owner::Tenant(TenantId::new("a").unwrap())
    );
    assert_eq!(
        (present(&bench, "kitchen"), present(&bench, "cellar")),
        (vec![], vec!["ann".to_owned()])
    );
    let told = bench.told(ann);
    let told = told.iter().find_map(|message| match message {
        Message::RoomMoved(moved) => moved.room.clone(),
        _ => None,
    });
    assert_eq!(told.unwrap().name, "cellar");
    // Others have no business there.
    for stranger in [tenant("b"), Principal::Public] {
        let refused = bench.sfu.check(&admission("cellar", "eve", stranger));
        assert_eq!(refused.unwrap_err().status, 403);
    }
}

#[test]
fn nobody_is_moved_into_the_room_of_another_tenant() {
    let mut bench = Bench::new(|_| ());
    join(&mut bench, "kitchen", "ann", tenant("a"));
    join(&mut bench, "cellar", "bob", tenant("b"));
    let refused = moved(&mut bench, "kitchen", "ann", "cellar");
    assert!(
        matches!(refused, Err(OperationError::FailedPrecondition(_))),
        "{refused:?}"
    );
    assert_eq!(present(&bench, "kitchen"), ["ann"]);
    assert_eq!(present(&bench, "cellar"), ["bob"]);
}

#[test]
fn a_tenant_at_its_limit_may_move_its_participants_about() {
    let mut bench = Bench::new(|settings| settings.bounds.participants = 2);
    join(&mut bench, "kitchen", "ann", tenant("a"));
    join(&mut bench, "cellar", "amy", tenant("a"));
    moved(&mut bench, "kitchen", "ann", "cellar").unwrap();
    assert_eq!(present(&bench, "cellar"), ["amy", "ann"]);
    moved(&mut bench, "cellar", "ann", "kitchen").unwrap();
    assert_eq!(present(&bench, "kitchen"), ["ann"]);
}

#[test]
fn a_full_room_takes_nobody_who_is_moved() {
    let mut bench = Bench::new(|_| ());
    let small = proto::CreateRoomRequest {
        name: "cellar".to_owned(),
        max_participants: 1,
        ..Default::default()
    };
    bench.sfu.create_room(&small, bench.now).unwrap();
    join(&mut bench, "cellar", "bob", Principal::Operator);
    join(&mut bench, "kitchen", "ann", Principal::Operator);
    let refused = moved(&mut bench, "kitchen", "ann", "cellar");
    assert!(
        matches!(refused, Err(OperationError::FailedPrecondition(_))),
        "{refused:?}"
    );
}

#[test]
fn whoever_is_not_connected_yet_is_not_moved() {
    let mut bench = Bench::new(|_| ());
    bench.connect(admission("kitchen", "ann", Principal::Operator));
    let refused = moved(&mut bench, "kitchen", "ann", "cellar");
    assert!(
        matches!(refused, Err(OperationError::FailedPrecondition(_))),
        "{refused:?}"
    );
}
